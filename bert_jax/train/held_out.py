"""Held-out scores, with fixed masks: the same targets for every model and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bert_jax.objectives.base import Apply, Batch, Objective, Passed, Sums, select
from bert_jax.parallel import specs

# Masks at evaluation hang on the row only, never on a run's seed: runs are compared on one set of
# targets.
EVALUATION_SEED = 20_000
_FLOOR = "unigram floor"  # beside the objective's own names


@dataclass(frozen=True)
class Score:
    """A mean over the held-out split.

    Attributes:
        mean: Sum over weight.
        standard_error: Of ``mean``, rows being the independent units.
        weight: What was divided by: the number of targets, of tokens, of rows.
    """

    mean: float
    standard_error: float
    weight: float


@dataclass(frozen=True)
class Scores:
    """Held-out scores; cross-entropies in nats.

    Attributes:
        values: By name, what the objective's losses give: ``loss`` and ``accuracy`` of predicted
            tokens in all objectives of this package, and what each has beside.
        floor: Cross-entropy of the same targets under training unigram frequencies; None if those
            were not given.
        gain: ``floor`` minus ``loss``; None likewise.
    """

    values: Mapping[str, Score]
    floor: Score | None = None
    gain: Score | None = None

    @property
    def cross_entropy(self) -> float:
        """Mean negative log-likelihood of a target."""
        return self.values["loss"].mean

    @property
    def standard_error(self) -> float:
        """Of `cross_entropy`."""
        return self.values["loss"].standard_error

    @property
    def accuracy(self) -> float:
        """Share of targets predicted."""
        return self.values["accuracy"].mean

    @property
    def targets(self) -> int:
        """Number of targets."""
        return int(self.values["loss"].weight)

    def sentence(self) -> str:
        """The scores in one line."""
        if "loss" not in self.values:
            return self.others()
        text = f"held-out cross-entropy {self.cross_entropy:.3f}"
        error = f"standard error {self.standard_error:.3f}"
        if self.floor is not None and self.gain is not None:
            text += f", unigram floor {self.floor.mean:.3f}, gain {self.gain.mean:.3f} nats"
            error += f", of the gain {self.gain.standard_error:.3f}"
        text += f" (accuracy {self.accuracy:.3f}; {self.targets:,} targets, {error})"
        others = self.others()
        return f"{text}; {others}" if others else text

    def others(self) -> str:
        """What the objective gives beside loss and accuracy, in one line."""
        return ", ".join(
            f"{name.replace('_', ' ')} {score.mean:.4f} (standard error {score.standard_error:.4f})"
            for name, score in self.values.items()
            if name not in ("loss", "accuracy", "dropped")
        )


def make_scorer(
    objective: Objective, apply: Apply
) -> Callable[[Mapping[str, Any], Mapping[str, jax.Array]], dict[str, Any]]:
    """A jitted ``score(params, batch)``: what each row got, on every device.

    The batch is split over the batch axes; it runs under a mesh. Stages run in order, on the same
    parameters.

    Returns:
        ``sums``: name -> (sum, weight), each (rows,); and ``targets`` and ``weights``, (rows,
        slots), of objectives that have them.
    """
    key = jax.random.key(EVALUATION_SEED, impl="threefry2x32")

    def local(params, batch):
        rows = objective.corrupt(key, jnp.zeros((), jnp.int32), batch)
        sums: Sums = {}
        for stage in objective.stages:
            trained, frozen = select(params, stage.trains)
            result = stage.loss(apply, trained, rows, None, frozen)
            found, passed = result if isinstance(result, Passed) else (result, {})
            _check_rows(stage.name, found, rows)
            sums |= found
            rows = {**rows, **passed}
        return {"sums": sums} | {n: rows[n] for n in ("targets", "weights") if n in rows}

    def score(params, batch):
        whole = jax.tree.map(specs.gathered, params)
        scored = jax.shard_map(
            local,
            in_specs=(jax.P(), jax.P(specs.BATCH)),
            out_specs=jax.P(specs.BATCH),
            axis_names=set(specs.BATCH),
        )(whole, batch)
        return jax.tree.map(lambda x: specs.constrain(x, *[None] * x.ndim), scored)

    return jax.jit(score)


def _check_rows(stage: str, sums: Sums, rows: Batch) -> None:
    count = rows["example_ids"].shape
    for name, pair in sums.items():
        if any(jnp.shape(part) != count for part in pair):
            raise ValueError(
                f"stage {stage!r} gives {name!r} as numbers of shape "
                f"{[jnp.shape(part) for part in pair]}; held-out scores need one a row, {count}."
            )


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
        ValueError: If there was nothing to score.
    """
    log_probabilities = None
    if unigram_counts is not None:
        smoothed = unigram_counts.astype(np.float64) + 1
        log_probabilities = np.log(smoothed / smoothed.sum())
    rows: dict[str, list[Float[np.ndarray, "2 rows"]]] = {}
    for batch, real in _up_to(batches, max_rows):
        out = jax.tree.map(np.asarray, score(params, _put(batch)))
        pairs = {n: np.stack(pair).astype(np.float64) for n, pair in out["sums"].items()}
        if log_probabilities is not None and "targets" in out:
            weights = out["weights"].astype(np.float64)
            floor = -(log_probabilities[out["targets"]] * weights).sum(axis=-1)
            pairs[_FLOOR] = np.stack([floor, weights.sum(axis=-1)])
        for name, pair in pairs.items():
            rows.setdefault(name, []).append(np.where(real, pair, 0.0))
    return _scores({name: np.concatenate(parts, axis=1) for name, parts in rows.items()})


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


def _scores(rows: dict[str, Float[np.ndarray, "2 rows"]]) -> Scores:
    """Ratios of sums over rows."""
    floor = rows.pop(_FLOOR, None)
    values = {name: _ratio(*pair) for name, pair in rows.items()}
    if not any(score.weight for score in values.values()):
        raise ValueError("No held-out token could be masked; the validation split is too small.")
    if floor is None or "loss" not in rows:
        return Scores(values)
    loss, weight = rows["loss"]
    return Scores(values, _ratio(*floor), _ratio(floor[0] - loss, weight))


def _ratio(numerator: Float[np.ndarray, "rows"], weight: Float[np.ndarray, "rows"]) -> Score:
    """A ratio of sums, with the standard error of a ratio estimate (rows as clusters)."""
    total = weight.sum()
    if total == 0:
        return Score(0.0, 0.0, 0.0)
    mean = numerator.sum() / total
    error = math.sqrt(((numerator - mean * weight) ** 2).sum()) / total
    return Score(float(mean), error, float(total))
