"""Held-out masked cross-entropy, with fixed masks: the same targets for every model and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.parallel import specs

# Masks at evaluation hang on the row only, never on a run's seed: runs are compared on one set of
# targets.
EVALUATION_SEED = 20_000


@dataclass(frozen=True)
class Scores:
    """Held-out scores over all targets; cross-entropies in nats.

    Attributes:
        cross_entropy: Mean negative log-likelihood of a target.
        standard_error: Of ``cross_entropy``, rows being the independent units.
        accuracy: Share of targets predicted.
        targets: Number of targets.
        floor: Cross-entropy of the same targets under training unigram frequencies; None if those
            were not given.
        gain: ``floor - cross_entropy``; None likewise.
        gain_standard_error: Of ``gain``.
    """

    cross_entropy: float
    standard_error: float
    accuracy: float
    targets: int
    floor: float | None = None
    gain: float | None = None
    gain_standard_error: float | None = None

    def sentence(self) -> str:
        """The scores in one line."""
        text = f"held-out cross-entropy {self.cross_entropy:.3f}"
        if self.floor is not None:
            text += f", unigram floor {self.floor:.3f}, gain {self.gain:.3f} nats"
        error = f"standard error {self.standard_error:.3f}"
        if self.gain_standard_error is not None:
            error += f", of the gain {self.gain_standard_error:.3f}"
        return f"{text} (accuracy {self.accuracy:.3f}; {self.targets:,} targets, {error})"


def make_scorer(
    model: MaskedLM, objective: MaskedLanguageModel
) -> Callable[[Mapping[str, Any], Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """A jitted ``score(params, batch)``: what each slot of each row got, on every device.

    The batch is split over the batch axes; it runs under a mesh.

    Returns:
        ``nll``, ``correct``, ``targets``, ``weights``, each (rows, slots).
    """
    key = jax.random.key(EVALUATION_SEED, impl="threefry2x32")

    def local(params, batch):
        rows = objective.corrupt(key, jnp.zeros((), jnp.int32), batch)
        output: Any = model.apply(
            {"params": params},
            rows["input_ids"],
            segment_ids=rows["segment_ids"],
            position_ids=rows["position_ids"],
            positions=rows["positions"],
            targets=rows["targets"],
        )
        return {
            "nll": output["nll"],
            "correct": output["correct"],
            "targets": rows["targets"],
            "weights": rows["weights"],
        }

    def score(params, batch):
        whole = jax.tree.map(specs.gathered, params)
        scored = jax.shard_map(
            local,
            in_specs=(jax.P(), jax.P(specs.BATCH)),
            out_specs=jax.P(specs.BATCH),
            axis_names=set(specs.BATCH),
        )(whole, batch)
        return {name: specs.constrain(x, None, None) for name, x in scored.items()}

    return jax.jit(score)


def held_out(
    score: Callable[..., dict[str, jax.Array]],
    params: Mapping[str, Any],
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    max_rows: int | None = None,
    unigram_counts: Int[np.ndarray, "vocab"] | None = None,
) -> Scores:
    """Scores a model on held-out rows.

    Args:
        score: Of `make_scorer`.
        params: Parameters.
        batches: `ValidationBatches`: every row once, the last batch filled with empty rows.
        max_rows: Use only the first rows.
        unigram_counts: Training frequency of every id, for the floor.

    Raises:
        ValueError: If no token could be masked.
    """
    log_probabilities = None
    if unigram_counts is not None:
        smoothed = unigram_counts.astype(np.float64) + 1
        log_probabilities = np.log(smoothed / smoothed.sum())
    per_row: list[Float[np.ndarray, "rows columns"]] = []
    for batch, real in _up_to(batches, max_rows):
        out = jax.tree.map(np.asarray, score(params, _put(batch)))
        weights = out["weights"].astype(np.float64) * real[:, None]
        floor = np.zeros_like(weights)
        if log_probabilities is not None:
            floor = -log_probabilities[out["targets"]]
        values = np.stack(
            [out["nll"].astype(np.float64), out["correct"], floor, np.ones_like(floor)]
        )
        per_row.append((values * weights).sum(axis=-1).T)
    return _scores(np.concatenate(per_row), floor_known=log_probabilities is not None)


def unigram_counts(tokens: Iterator[np.ndarray], vocab_size: int) -> Int[np.ndarray, "vocab"]:
    """Frequency of every id in blocks of training tokens."""
    counts = np.zeros(vocab_size, np.int64)
    for block in tokens:
        counts += np.bincount(block, minlength=vocab_size)
    return counts


def _up_to(batches, max_rows: int | None):
    """Batches and which of their rows count, until ``max_rows`` rows have been given."""
    seen = 0
    for batch in batches:
        real = batch["example_weights"].astype(bool)
        if max_rows is not None:
            real = real & (batch["example_ids"] < max_rows)
        if not real.any():
            return
        seen += int(real.sum())
        yield {k: v for k, v in batch.items() if k != "example_weights"}, real


def _put(batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    sharding = jax.NamedSharding(jax.sharding.get_mesh(), jax.P(specs.BATCH))
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def _scores(rows: Float[np.ndarray, "rows 4"], *, floor_known: bool) -> Scores:
    """Ratios of sums over rows, with the standard error of a ratio estimate (rows as clusters)."""
    nll, correct, floor, weight = rows.T
    total = weight.sum()
    if total == 0:
        raise ValueError("No held-out token could be masked; the validation split is too small.")

    def ratio(numerator) -> tuple[float, float]:
        mean = numerator.sum() / total
        return float(mean), float(math.sqrt(((numerator - mean * weight) ** 2).sum()) / total)

    cross_entropy, error = ratio(nll)
    if not floor_known:
        return Scores(cross_entropy, error, ratio(correct)[0], int(total))
    gain, gain_error = ratio(floor - nll)
    floor_mean = ratio(floor)[0]
    return Scores(cross_entropy, error, ratio(correct)[0], int(total), floor_mean, gain, gain_error)
