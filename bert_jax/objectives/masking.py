"""Dynamic masking on the device: which tokens are predicted, and what stands in their place.

The number of predictions is static (slots), so that shapes never change; empty slots have weight
0. What happens to a row depends on its own key only, so it is the same on any mesh.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Integer

from bert_jax.objectives.policy import Masking, SpecialIds
from bert_jax.objectives.selection import Selection, select

__all__ = [
    "Masked",
    "Masking",
    "SpecialIds",
    "mask_tokens",
    "maskable_tokens",
    "selection_table",
    "selection_weights",
]

_BERT = Masking()


class Masked(NamedTuple):
    """A corrupted batch.

    Attributes:
        input_ids: (batch, length), some tokens replaced.
        positions: (batch, slots): where predictions are made; with replacement, some more than
            once.
        targets: (batch, slots): the original ids there.
        weights: (batch, slots): 1 where a prediction counts, 0 in an empty slot; float32.
        dropped: (batch,): tokens selected for which there was no slot; they stand in
            ``input_ids`` unchanged, chosen at random, so the loss is not biased. (But of a
            windowed selection, the last word.)
    """

    input_ids: Int[Array, "*batch length"]
    positions: Int[Array, "*batch slots"]
    targets: Int[Array, "*batch slots"]
    weights: Float[Array, "*batch slots"]
    dropped: Int[Array, "*batch"]


def mask_tokens(
    key: jax.Array,
    input_ids: Int[Array, "batch length"],
    maskable: Bool[Array, "batch length"],
    masking: Masking = _BERT,
    *,
    special: SpecialIds,
    vocab_size: int,
    word_ids: Int[Array, "batch length"] | None = None,
    selection_weights: Float[Array, "batch length"] | None = None,
    rate: Float[Array, ""] | float | None = None,
) -> Masked:
    """Selects tokens to predict and corrupts the input there.

    Args:
        key: One typed key a row; or a single key, which is folded with the row's number.
        input_ids: Token ids.
        maskable: True where a token may be selected: never padding, and (unless the recipe says
            so, `maskable_tokens`) never a special token.
        masking: The policy.
        special: Special ids of the vocabulary.
        vocab_size: Real vocabulary entries; random replacements stay below.
        word_ids: A number that changes at every word start, -1 outside words; for all units but
            single tokens.
        selection_weights: Relative chances of selection, for budgets of single tokens (sampling
            without replacement, or with it where the policy says so); uniform by default. The
            function of that name looks them up.
        rate: Rate of this step, where it changes over the run (`Masking.rate_at`); may be traced.
            Counts are computed in float32 then, and never exceed the policy's slots. None:
            ``masking.rate``.

    Returns:
        The corrupted rows and their predictions.

    Raises:
        ValueError: For arguments that contradict the policy.
    """
    _check(masking, vocab_size, word_ids, selection_weights, rate)
    if key.ndim == 0:
        key = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(input_ids.shape[0]))
    chances = maskable.astype(jnp.float32) if selection_weights is None else selection_weights
    words = jnp.zeros_like(input_ids) if word_ids is None else word_ids
    now = None if rate is None else jnp.asarray(rate, jnp.float32)

    def one(key, ids, maskable, words, chances):
        return _mask_row(key, ids, maskable, words, chances, now, masking, special, vocab_size)

    return jax.vmap(one)(key, input_ids, maskable, words, chances)


def maskable_tokens(
    input_ids: Int[Array, "*batch length"],
    real: Bool[Array, "*batch length"],
    masking: Masking,
    special: SpecialIds,
) -> Bool[Array, "*batch length"]:
    """Which tokens the policy may select: real ones, without the special ones if it says so."""
    if masking.candidates == "all":
        return real
    unknown = (special.unk,) if masking.candidates == "text_and_unk" else ()
    for low, high in _ranges(tuple(i for i in special.ids if i not in unknown)):
        real = real & ~((input_ids >= low) & (input_ids < high))
    return real


def selection_table(
    counts: Integer[np.ndarray, " vocab"], power: float, special: SpecialIds
) -> Float32[np.ndarray, " vocab"]:
    """Relative chance of every token of the vocabulary to be selected.

    ``max(count, 1) ** -power``, and 0 for special tokens, the unknown one among them (XLM,
    src/data; DistilBERT, distillation/train.py, with power 0.7).

    Args:
        counts: How often each id stands in the training data.
        power: `Masking.frequency_power`.
        special: Special ids of the vocabulary.

    Raises:
        ValueError: A count is negative, or the power is negative or infinite.
    """
    if not 0 <= power < math.inf:
        raise ValueError(f"power is {power}; it must be 0 or positive.")
    if len(counts) and counts.min() < 0:
        raise ValueError(f"counts has {counts.min()} at id {counts.argmin()}; none is negative.")
    table = np.maximum(counts, 1).astype(np.float64) ** -power
    table[[i for i in special.ids if i < len(table)]] = 0.0
    return table.astype(np.float32)


def selection_weights(
    table: Float[Array, "vocab"] | Float[np.ndarray, "vocab"], input_ids: Int[Array, "batch length"]
) -> Float[Array, "batch length"]:
    """The chances of a batch's tokens, out of a `selection_table` that every device has whole."""
    # Under a mesh a lookup says how its result is laid out; elsewhere it must not.
    layout = jax.typeof(input_ids).sharding.spec
    laid_out = any(axis is not None for axis in layout)
    return jnp.asarray(table).at[input_ids].get(out_sharding=layout if laid_out else None)


def _mask_row(key, ids, maskable, words, chances, rate, masking, special, vocab_size) -> Masked:
    slots = masking.slots(ids.shape[0])
    select_key, count_key, kind_key, random_key = jax.random.split(key, 4)
    base = maskable if masking.count_base == "maskable" else ids != special.pad
    chosen = select(select_key, count_key, maskable, base, words, chances, masking, rate)
    targets = ids.at[chosen.positions].get()
    if masking.unit == "span":
        kind = _kinds_of_runs(kind_key, chosen, ids.shape[0])
    else:
        kind = jax.random.uniform(kind_key, (slots,))
    if masking.with_replacement:
        # Draws of one position may differ: it is masked if any says so.
        said = chosen.valid & (kind < masking.mask_prob)
        hidden = jnp.zeros(ids.shape, bool).at[chosen.positions].max(said)
        corrupted = jnp.where(hidden, special.mask, ids).astype(ids.dtype)
    else:
        random = _random_ids(random_key, slots, masking, special, vocab_size)
        new = jnp.where(kind < masking.mask_prob + masking.random_prob, random, targets)
        new = jnp.where(kind < masking.mask_prob, special.mask, new)
        new = jnp.where(chosen.valid, new, targets).astype(ids.dtype)
        corrupted = ids.at[chosen.positions].set(new)
    weights = chosen.valid.astype(jnp.float32)
    return Masked(corrupted, chosen.positions, targets, weights, chosen.dropped)


def _kinds_of_runs(key, chosen: Selection, length: int):
    """One uniform number for each run of selected tokens (SpanBERT joins spans that meet)."""
    selected = jnp.zeros((length,), bool).at[chosen.positions].max(chosen.valid)
    begins = selected & ~jnp.pad(selected[:-1], (1, 0))
    first = jax.lax.cummax(jnp.where(begins, jnp.arange(length), 0))
    uniform = jax.random.uniform(key, (length,))
    return uniform.at[first.at[chosen.positions].get()].get()


def _random_ids(key, slots: int, masking: Masking, special: SpecialIds, vocab_size: int):
    """Uniform replacements: of ``random_ids``, or of all ids that are not special."""
    if masking.random_ids is not None:
        return jax.random.randint(key, (slots,), *masking.random_ids)
    ranges = _ranges(tuple(i for i in special.ids if i < vocab_size))
    ordinary = vocab_size - sum(high - low for low, high in ranges)
    drawn = jax.random.randint(key, (slots,), 0, ordinary)
    for low, high in ranges:  # in rising order: step over each run of special ids
        drawn = drawn + jnp.where(drawn >= low, high - low, 0)
    return drawn


def _ranges(ids: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of consecutive ids as half-open ranges."""
    runs: list[tuple[int, int]] = []
    for i in sorted(set(ids)):
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def _check(masking: Masking, vocab_size: int, word_ids, selection_weights, rate) -> None:
    if masking.random_ids is not None and masking.random_ids[1] > vocab_size:
        raise ValueError(
            f"masking.random_ids {masking.random_ids} reaches past the vocabulary of "
            f"{vocab_size} entries."
        )
    if masking.needs_words and word_ids is None:
        raise ValueError(
            f"masking.unit {masking.unit!r} needs word_ids; pass them or use unit 'token'."
        )
    if selection_weights is None:
        if masking.frequency_power > 0:
            raise ValueError(
                f"masking.frequency_power {masking.frequency_power} needs selection_weights; look "
                "them up in the selection_table of the training data, or set it to 0."
            )
    elif masking.count == "bernoulli" or masking.unit != "token" or masking.windowed:
        raise ValueError(
            "selection_weights go with unit 'token', not windowed, and a count other than "
            f"'bernoulli'; the policy has unit {masking.unit!r} and count {masking.count!r}"
            f"{' and is windowed' if masking.windowed else ''}."
        )
    if rate is not None and masking.windowed:
        raise ValueError(
            "rate is given, but a windowed policy has windows of one length; pass None."
        )
