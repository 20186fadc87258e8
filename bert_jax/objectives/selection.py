"""Which positions of a row are predicted. Every function works on one row; `jax.vmap` does more.

Word numbers count up in a row and are -1 outside words. *Usable* tokens are those that may be
selected; a word here is its usable tokens, and a token outside words is a word of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bert_jax.objectives.policy import Masking, count_table, ngram_shares, span_shares


class Selection(NamedTuple):
    """The predictions of a row.

    Attributes:
        positions: Where; anything where not valid.
        valid: Which slots hold a prediction.
        dropped: Tokens selected for which there was no slot.
    """

    positions: Int[Array, " slots"]
    valid: Bool[Array, " slots"]
    dropped: Int[Array, ""]


def select(
    key: jax.Array,
    count_key: jax.Array,
    usable: Bool[Array, " length"],
    base: Bool[Array, " length"],
    words: Int[Array, " length"],
    chances: Float[Array, " length"],
    masking: Masking,
    rate: Float[Array, ""] | None,
) -> Selection:
    """Selects the positions of a row.

    Args:
        key: Of the choice.
        count_key: Of the number of predictions.
        usable: Tokens that may be selected.
        base: Tokens the number is taken of.
        words: Word numbers.
        chances: Relative chances of usable tokens.
        masking: The policy.
        rate: Instead of the policy's, where it changes over the run.
    """
    slots = masking.slots(usable.shape[0])
    if masking.count == "bernoulli":
        return _bernoulli(key, usable, words, slots, masking, rate)
    count = _count(count_key, base, masking, slots, rate)
    if masking.with_replacement:
        return _with_replacement(key, jnp.where(usable, chances, 0.0), count, slots)
    if masking.windowed:
        chosen, dropped = windowed(key, usable, words, count, slots, masking)
    elif masking.unit == "ngram":
        chosen, dropped = ngrams(key, usable, words, count, masking), None
    elif masking.unit == "span":
        chosen, dropped = spans(key, usable, words, count, masking), None
    else:
        return _smallest(key, usable, words, chances, count, slots, masking)
    index = jnp.arange(usable.shape[0])
    positions, found = _lowest(jnp.where(chosen, index, usable.shape[0]), slots)
    none = jnp.zeros((), jnp.int32)
    return Selection(positions, found < usable.shape[0], none if dropped is None else dropped)


# --- tokens and words ----------------------------------------------------------------------------


def _bernoulli(key, usable, words, slots, masking: Masking, rate) -> Selection:
    rate = masking.rate if rate is None else rate
    scores = jnp.where(usable, _scores(key, words, masking), 2.0)
    positions, chosen = _lowest(scores, slots)
    # Tokens of equal score are one word: it goes whole when its end finds no slot.
    whole = jnp.sum(scores == chosen[-1]) == jnp.sum(chosen == chosen[-1])
    valid = (chosen < rate) & ((chosen < chosen[-1]) | whole)
    return Selection(positions, valid, jnp.sum(scores < rate) - jnp.sum(valid))


def _smallest(key, usable, words, chances, count, slots, masking: Masking) -> Selection:
    # An exponential race: the k smallest of Exp(1) / chance are a weighted sample without
    # replacement (Efraimidis & Spirakis 2006); with equal chances, a uniform one.
    scores = _scores(key, words, masking)
    race = jnp.where(usable & (chances > 0), -jnp.log1p(-scores) / chances, jnp.inf)
    if masking.unit == "word":
        race = whole_words(race, words, count)
    positions, chosen = _lowest(race, slots)
    valid = (jnp.arange(slots) < count) & jnp.isfinite(chosen)
    return Selection(positions, valid, jnp.zeros((), jnp.int32))


def _scores(key, words, masking: Masking):
    """Uniform numbers, the same for all tokens of a word where words are selected."""
    scores = jax.random.uniform(key, words.shape)
    return scores.at[word_starts(words)].get() if masking.unit == "word" else scores


def _lowest(scores, slots: int):
    """Positions and values of the ``slots`` lowest scores, lowest first."""
    values, positions = jax.lax.top_k(-scores, slots)
    return positions, -values


def _count(key, base, masking: Masking, slots: int, rate):
    """Predictions of a row, at most ``slots``."""
    size = jnp.sum(base)
    if masking.count == "stochastic":
        mean = (masking.rate if rate is None else rate) * size
        count = jnp.floor(mean + jax.random.uniform(key)).astype(jnp.int32)
    elif rate is None:
        table = jnp.asarray(count_table(masking.count, masking.rate, base.shape[0]))
        # Picked by comparison: a lookup would need a layout under a mesh.
        count = jnp.sum(jnp.where(jnp.arange(table.shape[0]) == size, table, 0))
    else:
        mean = rate * size
        if masking.count == "ceil":
            # float32 may lie a little above a whole number that is meant.
            exact = jnp.ceil(mean * (1 - 4 * jnp.finfo(jnp.float32).eps))
        else:
            # As is what is meant to lie half-way, which is rounded to even as Python does.
            half = jnp.round(2 * mean) / 2
            near = jnp.abs(mean - half) < 4 * jnp.finfo(jnp.float32).eps * mean
            exact = jnp.maximum(1.0, jnp.round(jnp.where(near, half, mean)))
        count = jnp.where(size > 0, exact, 0.0).astype(jnp.int32)
    return jnp.minimum(count, slots)


def _with_replacement(key, chances, count, slots: int) -> Selection:
    """Independent draws of positions (google-research/electra, pretrain_helpers.py `mask`)."""
    total = jnp.cumsum(chances)
    drawn = jax.random.uniform(key, (slots,)) * total[-1]
    positions = jnp.sum(total[None, :] <= drawn[:, None], axis=1)
    valid = (jnp.arange(slots) < count) & (total[-1] > 0)
    positions = jnp.minimum(positions, chances.shape[0] - 1)  # where nothing can be drawn
    return Selection(positions, valid, jnp.zeros((), jnp.int32))


# --- words ---------------------------------------------------------------------------------------


def word_starts(words: Int[Array, " length"]) -> Int[Array, " length"]:
    """Index of the first token of each token's word; tokens outside words stand alone."""
    index = jnp.arange(words.shape[0])
    same = (words[1:] == words[:-1]) & (words[1:] >= 0)
    begins = jnp.pad(~same, (1, 0), constant_values=True)
    return jax.lax.cummax(jnp.where(begins, index, 0))


class _Words(NamedTuple):
    """The words with a usable token, in a row of ``length`` tokens, numbered from 0.

    Attributes:
        number: (length,): the word of a usable token; anything for others.
        sizes: (length,): usable tokens of each word; 0 from ``count`` on.
        count: Number of words.
    """

    number: Int[Array, " length"]
    sizes: Int[Array, " length"]
    count: Int[Array, ""]


def _numbered(words, usable) -> _Words:
    before = jnp.cumsum(usable) - usable
    first = usable & (before == before.at[word_starts(words)].get())
    number = jnp.cumsum(first) - 1
    sizes = jnp.zeros_like(number).at[number].add(usable.astype(number.dtype))
    return _Words(number, sizes, jnp.sum(first))


def whole_words(
    race: Float[Array, " length"], words: Int[Array, " length"], count: Int[Array, ""]
) -> Float[Array, " length"]:
    """Scores that are finite only for words which fit the budget, taken greedily.

    Words are visited in the order of their scores; one that does not fit any more is passed over
    (Google BERT's whole-word masking), so the count is never exceeded.
    """
    starts = word_starts(words)
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


# --- n-grams, spans, windows ---------------------------------------------------------------------


def ngrams(
    key: jax.Array,
    usable: Bool[Array, " length"],
    words: Int[Array, " length"],
    count: Int[Array, ""],
    masking: Masking,
) -> Bool[Array, " length"]:
    """Tokens of n-grams of words that fit the budget (google-research/albert).

    First words are visited in random order. The n-gram drawn for one is shortened until it fits
    the budget; it is passed over where not even one word fits, or one of its words is taken. It
    runs on over separators (create_pretraining_data.py, `create_masked_lm_predictions`).
    """
    length, most = usable.shape[0], masking.max_ngram
    each = _numbered(words, usable)
    scores = jax.random.uniform(key, (length,))
    order = jnp.argsort(jnp.where(jnp.arange(length) < each.count, scores, jnp.inf))
    drawn = _draw(jax.random.fold_in(key, 1), ngram_shares(most), length)
    return _take_ngrams(order, drawn, each, count, most).at[each.number].get() & usable


def _take_ngrams(order, drawn, each: _Words, count, most: int):
    """Words taken, for a given order of first words and a given n for each first word."""
    length = order.shape[0]
    ends = jnp.pad(jnp.pad(jnp.cumsum(each.sizes), (1, 0)), (0, most), mode="edge")
    within = jnp.arange(most)

    def visit(state, word):
        left, taken = state
        tokens = ends.at[word + within + 1].get() - ends.at[word].get()  # of 1, 2, ... words
        n = jnp.sum((tokens <= left) & (within < drawn.at[word].get()))
        inside = within < n
        free = ~jnp.any(taken.at[word + within].get() & inside)
        goes = (n > 0) & free & (word < each.count)
        taken = taken.at[word + within].max(inside & goes)
        cost = tokens.at[jnp.maximum(n - 1, 0)].get()
        return (left - jnp.where(goes, cost, 0), taken), None

    # Made of the row's data: a constant would not be laid out like it under a mesh.
    nothing = jnp.pad(each.sizes < 0, (0, most))
    (_, taken), _ = jax.lax.scan(visit, (count, nothing), order)
    return taken[:length]


def spans(
    key: jax.Array,
    usable: Bool[Array, " length"],
    words: Int[Array, " length"],
    count: Int[Array, ""],
    masking: Masking,
) -> Bool[Array, " length"]:
    """Tokens of spans of words (facebookresearch/SpanBERT, data/masking.py).

    A span starts with the word of a token drawn from those not yet taken. Spans may meet and
    overlap. The budget is met exactly: the last span ends where it does, inside a word if need be.
    """
    length = usable.shape[0]
    each = _numbered(words, usable)
    order = jnp.argsort(jnp.where(usable, jax.random.uniform(key, (length,)), jnp.inf))
    drawn = _draw(jax.random.fold_in(key, 1), span_shares(masking.span_mean), length)
    return _take_spans(order, drawn, each, usable, count)


def _take_spans(order, drawn, each: _Words, usable, count):
    """Tokens taken, for a given order of anchors and a given length for each anchor."""
    length = order.shape[0]
    rank = jnp.cumsum(usable) - 1
    stops = jnp.cumsum(each.sizes)
    anchors = jnp.sum(usable)

    def more(state):
        visited, left, _ = state
        return (left > 0) & (visited < anchors)

    def visit(state):
        visited, left, taken = state
        anchor = order.at[visited].get()
        word = each.number.at[anchor].get()
        last = jnp.minimum(word + drawn.at[anchor].get() - 1, length - 1)
        begin = stops.at[word].get() - each.sizes.at[word].get()
        inside = usable & ~taken & (rank >= begin) & (rank < stops.at[last].get())
        goes = inside & (jnp.cumsum(inside) <= left) & ~taken.at[anchor].get()
        return visited + 1, left - jnp.sum(goes), taken | goes

    # Far fewer turns than a scan over all tokens: about one for each span.
    start = (jnp.zeros_like(count), count, usable & (rank < 0))
    return jax.lax.while_loop(more, visit, start)[2]


def windowed(
    key: jax.Array,
    usable: Bool[Array, " length"],
    words: Int[Array, " length"],
    count: Int[Array, ""],
    slots: int,
    masking: Masking,
) -> tuple[Bool[Array, " length"], Int[Array, ""]]:
    """Tokens of one n-gram in each window of ``n * int(1 / rate)`` words, up to the budget.

    As microsoft/DeBERTa does (apps/tasks/mlm_task.py, `NGramMaskGenerator`): the n-gram may reach
    over its window's end, the next window starts behind both; selected words are kept from left to
    right until the budget is reached or, by the last word, exceeded.

    Returns:
        The tokens, and how many of a last word were left out for which there were no slots.
    """
    if masking.unit == "token":
        words = jnp.full_like(words, -1)
    each = _numbered(words, usable)
    window = int(1 / masking.rate)
    turns = math.ceil(usable.shape[0] / window)
    longest = masking.max_ngram if masking.unit == "ngram" else 1
    drawn = _draw(jax.random.fold_in(key, 1), ngram_shares(longest), turns)
    placed, dropped = _take_windows(
        drawn, jax.random.uniform(key, (turns,)), each, window, count, slots
    )
    return usable & placed.at[each.number].get(), dropped


def _take_windows(drawn, where, each: _Words, window: int, count, slots: int):
    """Words taken, for given lengths of the n-grams and places in their windows (in [0, 1))."""
    length = each.sizes.shape[0]

    def turn(offset, draw):
        n, u = draw
        size = jnp.minimum(n * window, each.count - offset)
        begin = offset + jnp.floor(u * size).astype(offset.dtype)
        end = jnp.minimum(begin + n, each.count)
        gram = jnp.where(offset < each.count, jnp.stack([begin, end]), length)
        return jnp.maximum(offset + size, end), gram

    _, grams = jax.lax.scan(turn, 0 * each.count, (drawn, where))
    edges = jnp.zeros((length + 1,), jnp.int32).at[grams[:, 0]].add(1).at[grams[:, 1]].add(-1)
    sizes = jnp.where(jnp.cumsum(edges)[:length] > 0, each.sizes, 0)
    before = jnp.cumsum(sizes) - sizes
    kept = (sizes > 0) & (before < count)
    placed = kept & (before + sizes <= slots)
    return placed, jnp.sum(jnp.where(kept & ~placed, sizes, 0)).astype(jnp.int32)


def _draw(key, shares: np.ndarray, number: int):
    """``number`` lengths from 1 on, with the given chances."""
    bounds = jnp.asarray(np.cumsum(shares)[:-1], jnp.float32)
    uniform = jax.random.uniform(key, (number,))
    return 1 + jnp.sum(uniform[:, None] >= bounds[None, :], axis=1)
