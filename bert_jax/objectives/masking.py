"""Dynamic masking on the device: which tokens are predicted, and what stands in their place.

The number of predictions is static (slots), so that shapes never change; empty slots have weight
0. What happens to a row depends on its own key only, so it is the same on any mesh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_SLACK = 4.0  # standard deviations of room in the slots of a Bernoulli selection


@runtime_checkable
class SpecialIds(Protocol):
    """Ids that masking must know; `bert_jax.data.tokenizer.SpecialTokens` has them."""

    @property
    def pad(self) -> int:
        """Padding."""
        ...

    @property
    def mask(self) -> int:
        """The mask token."""
        ...

    @property
    def ids(self) -> tuple[int, ...]:
        """Every special id, sorted."""
        ...


@dataclass(frozen=True)
class Masking:
    """Masking policy. The defaults are BERT's rates with an exact count.

    Attributes:
        rate: Share of tokens selected for prediction.
        mask_prob: Of the selected, the share replaced by the mask token.
        random_prob: Of the selected, the share replaced by a random token; the rest,
            ``1 - mask_prob - random_prob``, stays as it is (and is predicted all the same).
        unit: What is selected: single tokens, or whole words (``word_ids`` needed).
        count: ``fixed``: ``round(rate * base)`` a row, at least 1 (Google BERT); ``stochastic``:
            ``floor(rate * base + u)`` with u uniform in [0, 1) (fairseq); ``bernoulli``: each unit
            by itself.
        count_base: What the count is taken of: the maskable tokens, or all real ones (Google BERT
            counts [CLS] and [SEP], though it never masks them).
        candidates: ``text``: special tokens are never selected; ``all``: every real token may be
            (fairseq's RoBERTa masks <s> and </s>; ModernBERT masks [CLS] and [SEP]).
        max_predictions: Most predictions a row; None leaves room for what the policy can ask.
        random_ids: Range ``(low, high)``, high excluded, of random replacements; None means every
            id of the vocabulary that is not special.
    """

    rate: float = 0.15
    mask_prob: float = 0.8
    random_prob: float = 0.1
    unit: Literal["token", "word"] = "token"
    count: Literal["fixed", "stochastic", "bernoulli"] = "fixed"
    count_base: Literal["maskable", "tokens"] = "maskable"
    candidates: Literal["text", "all"] = "text"
    max_predictions: int | None = None
    random_ids: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"masking.rate is {self.rate}; it must lie between 0 and 1.")
        for name in ("mask_prob", "random_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"masking.{name} is {getattr(self, name)}; it is a probability.")
        if self.mask_prob + self.random_prob > 1 + 1e-9:
            raise ValueError(
                f"masking.mask_prob {self.mask_prob} + random_prob {self.random_prob} exceeds 1; "
                f"the rest is the share left unchanged."
            )
        if self.max_predictions is not None and self.max_predictions < 1:
            raise ValueError(
                f"masking.max_predictions is {self.max_predictions}; it must be at least 1."
            )
        if self.random_ids is not None and not 0 <= self.random_ids[0] < self.random_ids[1]:
            raise ValueError(
                f"masking.random_ids is {self.random_ids}; it must be (low, high) with "
                f"0 <= low < high."
            )
        if self.count_base == "tokens" and self.count == "bernoulli":
            raise ValueError(
                "masking.count_base 'tokens' has no meaning with count 'bernoulli', which decides "
                "token by token; use 'fixed' or 'stochastic'."
            )

    def slots(self, length: int) -> int:
        """Predictions a row of ``length`` tokens has room for."""
        if self.count == "fixed":
            room = int(_fixed_counts(self.rate, length)[-1])
        elif self.count == "stochastic":
            room = math.floor(self.rate * length) + 1
        else:
            mean = self.rate * length
            room = math.ceil(mean + _SLACK * math.sqrt(mean * (1 - self.rate)))
        if self.max_predictions is not None:
            room = min(room, self.max_predictions)
        return min(room, length)


class Masked(NamedTuple):
    """A corrupted batch.

    Attributes:
        input_ids: (batch, length), some tokens replaced.
        positions: (batch, slots): where predictions are made.
        targets: (batch, slots): the original ids there.
        weights: (batch, slots): 1 where a prediction counts, 0 in an empty slot; float32.
        dropped: (batch,): tokens selected for which there was no slot; they stand in
            ``input_ids`` unchanged, chosen at random, so the loss is not biased.
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
    masking: Masking = Masking(),
    *,
    special: SpecialIds,
    vocab_size: int,
    word_ids: Int[Array, "batch length"] | None = None,
    selection_weights: Float[Array, "batch length"] | None = None,
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
        word_ids: A number that changes at every word start, -1 outside words; for ``unit="word"``.
        selection_weights: Relative chances of selection, for ``fixed`` and ``stochastic`` counts
            of tokens (sampling without replacement); uniform by default.

    Returns:
        The corrupted rows and their predictions.

    Raises:
        ValueError: For arguments that contradict the policy.
    """
    _check(masking, vocab_size, word_ids, selection_weights)
    if key.ndim == 0:
        key = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(input_ids.shape[0]))
    chances = maskable.astype(jnp.float32) if selection_weights is None else selection_weights
    words = jnp.zeros_like(input_ids) if word_ids is None else word_ids

    def one(key, ids, maskable, words, chances):
        return _mask_row(key, ids, maskable, words, chances, masking, special, vocab_size)

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
    for low, high in _ranges(special.ids):
        real = real & ~((input_ids >= low) & (input_ids < high))
    return real


def _mask_row(key, ids, maskable, words, chances, masking, special, vocab_size) -> Masked:
    length = ids.shape[0]
    slots = masking.slots(length)
    select_key, count_key, kind_key, random_key = jax.random.split(key, 4)
    scores = jax.random.uniform(select_key, (length,))
    if masking.unit == "word":
        scores = scores.at[_word_starts(words)].get()
    base = maskable if masking.count_base == "maskable" else ids != special.pad
    if masking.count == "bernoulli":
        scores = jnp.where(maskable, scores, 2.0)
        positions, chosen = _lowest(scores, slots)
        # Tokens of equal score are one word: it goes whole when its end finds no slot.
        whole = jnp.sum(scores == chosen[-1]) == jnp.sum(chosen == chosen[-1])
        valid = (chosen < masking.rate) & ((chosen < chosen[-1]) | whole)
        dropped = jnp.sum(scores < masking.rate) - jnp.sum(valid)
    else:
        # An exponential race: the k smallest of Exp(1) / chance are a weighted sample without
        # replacement (Efraimidis & Spirakis 2006); with equal chances, a uniform one.
        race = jnp.where(maskable & (chances > 0), -jnp.log1p(-scores) / chances, jnp.inf)
        count = _count(count_key, base, masking, slots)
        if masking.unit == "word":
            race = _whole_words(race, words, count)
        positions, chosen = _lowest(race, slots)
        valid = (jnp.arange(slots) < count) & jnp.isfinite(chosen)
        dropped = jnp.zeros((), jnp.int32)
    targets = ids.at[positions].get()
    kind = jax.random.uniform(kind_key, (slots,))
    random = _random_ids(random_key, slots, masking, special, vocab_size)
    new = jnp.where(kind < masking.mask_prob + masking.random_prob, random, targets)
    new = jnp.where(kind < masking.mask_prob, special.mask, new)
    new = jnp.where(valid, new, targets).astype(ids.dtype)
    return Masked(
        ids.at[positions].set(new), positions, targets, valid.astype(jnp.float32), dropped
    )


def _lowest(scores, slots):
    """Positions and values of the ``slots`` lowest scores, lowest first."""
    values, positions = jax.lax.top_k(-scores, slots)
    return positions, -values


def _count(key, base, masking: Masking, slots: int):
    """Predictions of a row, at most ``slots``."""
    size = jnp.sum(base)
    if masking.count == "fixed":
        table = jnp.asarray(_fixed_counts(masking.rate, base.shape[0]))
        # Picked by comparison: a lookup would need a layout under a mesh.
        count = jnp.sum(jnp.where(jnp.arange(table.shape[0]) == size, table, 0))
    else:
        count = jnp.floor(masking.rate * size + jax.random.uniform(key)).astype(jnp.int32)
    return jnp.minimum(count, slots)


def _fixed_counts(rate: float, length: int) -> np.ndarray:
    """``max(1, round(rate * n))`` for n = 0..length, with Python's rounding; 0 for n = 0."""
    counts = [max(1, round(rate * n)) if n else 0 for n in range(length + 1)]
    return np.asarray(counts, np.int32)


def _word_starts(words):
    """Index of the first token of each token's word; tokens outside words stand alone."""
    index = jnp.arange(words.shape[0])
    same = (words[1:] == words[:-1]) & (words[1:] >= 0)
    begins = jnp.pad(~same, (1, 0), constant_values=True)
    return jax.lax.cummax(jnp.where(begins, index, 0))


def _whole_words(race, words, count):
    """Scores that are finite only for words which fit the budget, taken greedily.

    Words are visited in the order of their scores; one that does not fit any more is passed over
    (Google BERT's whole-word masking), so the count is never exceeded.
    """
    starts = _word_starts(words)
    length = race.shape[0]
    usable = jnp.isfinite(race)
    # A word's score is its first usable token's: a special inside a word never hides the word.
    size = jnp.zeros_like(starts).at[starts].add(usable.astype(starts.dtype))
    score = jnp.full_like(race, jnp.inf).at[starts].min(race)
    order = jnp.argsort(jnp.where(size > 0, score, jnp.inf))

    def visit(left, word):
        fits = (size.at[word].get() <= left) & (size.at[word].get() > 0)
        return left - jnp.where(fits, size.at[word].get(), 0), fits

    _, fits = jax.lax.scan(visit, count, order)
    taken = jnp.zeros((length,), bool).at[order].set(fits)
    return jnp.where(usable & taken.at[starts].get(), race, jnp.inf)


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


def _check(masking: Masking, vocab_size: int, word_ids, selection_weights) -> None:
    if masking.random_ids is not None and masking.random_ids[1] > vocab_size:
        raise ValueError(
            f"masking.random_ids {masking.random_ids} reaches past the vocabulary of "
            f"{vocab_size} entries."
        )
    if masking.unit == "word" and word_ids is None:
        raise ValueError("masking.unit 'word' needs word_ids; pass them or use unit 'token'.")
    if selection_weights is not None and (masking.count == "bernoulli" or masking.unit == "word"):
        raise ValueError(
            "selection_weights go with unit 'token' and count 'fixed' or 'stochastic'; "
            f"the policy has unit {masking.unit!r} and count {masking.count!r}."
        )
