"""N-grams, spans, windows and draws with replacement, against the released algorithms in numpy.

The slow versions follow the published code step by step. Given the same draws the outcome must be
the same; over many draws, shares must agree within 4.5 standard deviations, where both sides are
samples of one size: sqrt(2 p (1 - p) / rows), at most sqrt(0.5 / rows).
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.objectives import selection
from bert_jax.objectives.masking import Masked, Masking, mask_tokens, maskable_tokens
from bert_jax.objectives.policy import ngram_shares, span_shares

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB = 200
KEY = jax.random.key(0, impl="threefry2x32")
ROWS = 6000


FAST_COMPILE = {"xla_backend_optimization_level": 0}


@functools.partial(jax.jit, static_argnames=("masking",), compiler_options=FAST_COMPILE)
def run(ids, masking, words=None, weights=None, key=KEY, rate=None) -> Masked:
    return mask_tokens(
        key,
        ids,
        maskable_tokens(ids, ids != SPECIAL.pad, masking, SPECIAL),
        masking,
        special=SPECIAL,
        vocab_size=VOCAB,
        word_ids=words,
        selection_weights=weights,
        rate=rate,
    )


def frame(*segments: int) -> np.ndarray:
    """One row: [CLS] and segments of so many tokens, each ended by [SEP]."""
    row = [SPECIAL.cls]
    for number, tokens in enumerate(segments):
        row += [20 + number] * tokens + [SPECIAL.sep]
    return np.asarray(row, np.int32)


def number(sizes, row) -> np.ndarray:
    """Word numbers of a row whose ordinary tokens are words of the given sizes."""
    words = np.full(len(row), -1, np.int32)
    words[row >= 20] = np.repeat(np.arange(len(sizes)), sizes)
    return words


def chosen(masked: Masked, shape) -> np.ndarray:
    rows, slots = np.nonzero(np.asarray(masked.weights))
    selected = np.zeros(shape, bool)
    selected[rows, np.asarray(masked.positions)[rows, slots]] = True
    return selected


def many(masking, row, sizes=None, rows=ROWS) -> tuple[Masked, np.ndarray]:
    """A policy on many copies of a row: what it returns, and which tokens it selects."""
    ids = np.tile(row, (rows, 1))
    words = None if sizes is None else np.tile(number(sizes, row), (rows, 1))
    masked = run(ids, masking, words)
    return masked, chosen(masked, ids.shape)


def random_rows(seed, rows, length):
    """(words, usable): word numbers of 1 to 4 tokens, some tokens outside words, some unusable."""
    rng = np.random.default_rng(seed)
    words = np.cumsum(rng.random((rows, length)) < 0.5, axis=1).astype(np.int32)
    words[rng.random((rows, length)) < 0.1] = -1
    usable = rng.random((rows, length)) > 0.15
    usable[0], usable[1] = False, True
    return words, usable


def groups_of(words, usable) -> list[list[int]]:
    """Words as lists of their usable tokens."""
    groups: list[list[int]] = []
    for i, word in enumerate(words):
        if i and word >= 0 and word == words[i - 1]:
            groups[-1].append(i)
        else:
            groups.append([i])
    groups = [[i for i in group if usable[i]] for group in groups]
    return [group for group in groups if group]


def numbered(words, usable):
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(selection._numbered))(words, usable))


def test_words_are_numbered_by_their_usable_tokens():
    words, usable = random_rows(0, 300, 24)
    each = numbered(words, usable)
    for row in range(len(words)):
        groups = groups_of(words[row], usable[row])
        assert each.count[row] == len(groups)
        assert each.sizes[row].tolist()[: len(groups)] == [len(group) for group in groups]
        assert not np.any(each.sizes[row][len(groups) :])
        for k, group in enumerate(groups):
            assert set(np.asarray(each.number[row])[group]) == {k}


# ----------------------------------------------------------------------------------- n-grams


def test_shares_of_ngrams():
    """1, 1/2, 1/3 over their sum 11/6."""
    np.testing.assert_allclose(ngram_shares(3), [6 / 11, 3 / 11, 2 / 11], rtol=1e-12)
    np.testing.assert_array_equal(ngram_shares(1), [1.0])


def slow_ngrams(groups, budget, order, drawn, most) -> set[int]:
    """google-research/albert, create_pretraining_data.py: create_masked_lm_predictions."""
    ngram_indexes = [[groups[i : i + n] for n in range(1, most + 1)] for i in range(len(groups))]
    covered: set[int] = set()
    for i in order:
        if len(covered) >= budget:
            break
        n = drawn[i]
        index_set = [t for group in ngram_indexes[i][n - 1] for t in group]
        n -= 1
        while len(covered) + len(index_set) > budget:
            if n == 0:
                break
            index_set = [t for group in ngram_indexes[i][n - 1] for t in group]
            n -= 1
        if len(covered) + len(index_set) > budget:
            continue
        if any(index in covered for index in index_set):
            continue
        covered.update(index_set)
    return covered


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_ngrams_of_given_draws(most):
    rng = np.random.default_rng(most)
    rows, length = 400, 24
    words, usable = random_rows(most, rows, length)
    budgets = rng.integers(0, 14, rows).astype(np.int32)
    drawn = rng.integers(1, most + 1, (rows, length)).astype(np.int32)
    order = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    each = numbered(words, usable)
    for row in range(rows):
        order[row, : each.count[row]] = rng.permutation(each.count[row])
    take = functools.partial(selection._take_ngrams, most=most)
    taken = np.asarray(jax.jit(jax.vmap(take))(order, drawn, each, budgets))
    filled = 0
    for row in range(rows):
        groups = groups_of(words[row], usable[row])
        right = slow_ngrams(
            groups, budgets[row], order[row, : len(groups)], drawn[row].tolist(), most
        )
        got = {t for k, group in enumerate(groups) if taken[row, k] for t in group}
        assert got == right, row
        assert len(got) <= budgets[row]
        filled += len(got)
    assert filled > 0.8 * budgets[1:].sum()


SIZES = [1, 2, 1, 3, 1, 1, 4, 1, 2, 1, 1, 1, 2, 1, 1, 3, 1, 1, 1, 2]  # 31 tokens in 20 words


def test_ngrams_have_the_chances_of_the_released_code():
    """Shares of tokens, and of pairs of neighbouring words, which only n-grams join."""
    row = frame(16, 15)
    masking = Masking(0.3, unit="ngram", count_base="tokens")
    _, selected = many(masking, row, SIZES)
    budget = round(0.3 * len(row))
    groups = groups_of(number(SIZES, row), row >= 20)
    rng = np.random.default_rng(0)
    slow = np.zeros((ROWS, len(row)), bool)
    for one in slow:
        drawn = rng.choice([1, 2, 3], len(groups), p=np.array([6, 3, 2]) / 11)
        one[list(slow_ngrams(groups, budget, rng.permutation(len(groups)), drawn, 3))] = True
    bound = 4.5 * np.sqrt(0.5 / ROWS)
    assert selected.sum(axis=1).max() <= budget
    assert np.abs(selected.mean(axis=0) - slow.mean(axis=0)).max() < bound
    first = [group[0] for group in groups]
    pairs = [(x[:, first[:-1]] & x[:, first[1:]]).mean(axis=0) for x in (selected, slow)]
    assert np.abs(pairs[0] - pairs[1]).max() < bound
    counts = [np.bincount(x.sum(axis=1), minlength=budget + 1) / ROWS for x in (selected, slow)]
    assert np.abs(counts[0] - counts[1]).max() < bound
    separator = 17  # between words 9 and 10, which are not single: n-grams run over it
    joined = (selected[:, separator - 1] & selected[:, separator + 1]).mean()
    alone = selected[:, separator - 1].mean() * selected[:, separator + 1].mean()
    assert joined > 1.3 * alone and not selected[:, separator].any()


# -------------------------------------------------------------------------------------- spans


def test_shares_of_spans():
    """SpanBERT: p = .2 cut at 10; the mean is 1/p - 10 q^10 / (1 - q^10) = 3.797 words."""
    shares = span_shares(5.0)
    assert len(shares) == 10
    np.testing.assert_allclose(shares[1:] / shares[:-1], 0.8, rtol=1e-12)
    mean = 5 - 10 * 0.8**10 / (1 - 0.8**10)
    assert abs(shares @ np.arange(1, 11) - mean) < 1e-12 and round(mean, 1) == 3.8
    np.testing.assert_array_equal(span_shares(1.0), [1] + [0] * 9)


def slow_spans(groups, budget, anchors, length_of) -> set[int]:
    """facebookresearch/SpanBERT, data/masking.py: PairWithSpanMaskingScheme.mask."""
    mask: set[int] = set()
    word_of = {t: k for k, group in enumerate(groups) for t in group}
    for anchor in anchors:
        if len(mask) >= budget:
            break
        if anchor in mask:
            continue
        first = word_of[anchor]
        for group in groups[first : first + length_of(anchor)]:
            for t in group:
                if len(mask) >= budget:
                    break
                mask.add(t)
    return mask


def test_spans_of_given_draws():
    rng = np.random.default_rng(2)
    rows, length = 400, 24
    words, usable = random_rows(9, rows, length)
    budgets = rng.integers(0, 14, rows).astype(np.int32)
    drawn = rng.integers(1, 11, (rows, length)).astype(np.int32)
    order = np.stack([rng.permutation(length) for _ in range(rows)])
    order = np.take_along_axis(order, np.argsort(~np.take_along_axis(usable, order, 1), 1), 1)
    take = jax.jit(jax.vmap(selection._take_spans))
    each = numbered(words, usable)
    taken = np.asarray(take(order.astype(np.int32), drawn, each, usable, budgets))
    for row in range(rows):
        anchors = [t for t in order[row] if usable[row, t]]
        right = slow_spans(
            groups_of(words[row], usable[row]), budgets[row], anchors, drawn[row].__getitem__
        )
        assert set(np.flatnonzero(taken[row])) == right, row
        assert len(right) == min(budgets[row], usable[row].sum())  # the budget is met exactly


def test_spans_have_the_chances_of_the_released_code():
    """Rejection of anchors already taken, as there; tokens, neighbours and ends of runs."""
    row = frame(31)
    _, selected = many(Masking(0.3, unit="span", count="ceil"), row, SIZES)
    budget = math.ceil(0.3 * 31)
    np.testing.assert_array_equal(selected.sum(axis=1), budget)
    groups = groups_of(number(SIZES, row), row >= 20)
    rng = np.random.default_rng(0)
    lengths = rng.choice(np.arange(1, 11), (ROWS, 400), p=span_shares(5.0))
    slow = np.zeros((ROWS, len(row)), bool)
    for one, few in zip(slow, lengths, strict=True):
        anchors, draws = rng.integers(1, 32, 400), iter(few.tolist())
        one[
            list(slow_spans(groups, budget, anchors.tolist(), lambda _, draws=draws: next(draws)))
        ] = True
    bound = 4.5 * np.sqrt(0.5 / ROWS)
    np.testing.assert_array_equal(slow.sum(axis=1), budget)
    assert np.abs(selected.mean(axis=0) - slow.mean(axis=0)).max() < bound
    for apart in (1, 4):
        both = [(x[:, apart:] & x[:, :-apart]).mean(axis=0) for x in (selected, slow)]
        assert np.abs(both[0] - both[1]).max() < bound


def test_a_run_is_replaced_alike():
    """SpanBERT --replacement-method span: one decision for tokens that touch."""
    row = frame(60)
    masked, selected = many(Masking(0.3, 0.5, 0.3, unit="span"), row, [1] * 60, rows=8000)
    new = np.asarray(masked.input_ids)
    kinds = np.where(new == SPECIAL.mask, 0, np.where(new == row, 2, 1))
    touch = selected[:, 1:] & selected[:, :-1]
    # A random id is the original once in 195: such a token looks as if kept.
    differ = (kinds[:, 1:] != kinds[:, :-1]) & touch
    assert not (differ & ((kinds[:, 1:] == 0) | (kinds[:, :-1] == 0))).any()
    assert 0 < differ.sum() / touch.sum() < 0.3 * 2 * 2 / 195
    begins = selected & ~np.pad(selected[:, :-1], ((0, 0), (1, 0)))
    shares = np.bincount(kinds[begins], minlength=3) / begins.sum()
    # Four standard deviations of a share, and a random id that is the original.
    bound = 4 * np.sqrt(0.25 / begins.sum())
    assert np.abs(shares - [0.5, 0.3 * 194 / 195, 0.2 + 0.3 / 195]).max() < bound
    random = new[(kinds == 1) & selected]
    assert len(set(random)) == VOCAB - len(SPECIAL.ids) - 1  # all but the row's own id


# ------------------------------------------------------------------------------------ windows


def slow_windows(groups, budget, drawn, where, window) -> tuple[np.ndarray, list[int]]:
    """microsoft/DeBERTa, apps/tasks/mlm_task.py: NGramMaskGenerator.mask_tokens.

    Returns: the words of all windows, and the tokens that the budget leaves.
    """
    offset, turn = 0, 0
    grams = np.zeros(len(groups), bool)
    while offset < len(groups):
        n = int(drawn[turn])
        size = min(n * window, len(groups) - offset)
        m = int(where[turn] * size)
        begin, end = offset + m, min(offset + m + n, len(groups))
        offset = max(offset + size, end)
        grams[begin:end] = True
        turn += 1
    tokens: list[int] = []
    for marked, word in zip(grams, groups, strict=True):
        if marked:
            tokens += word
            if len(tokens) >= budget:
                break
    return grams, tokens


@pytest.mark.parametrize("window", [2, 6])
def test_windows_of_given_draws(window):
    rng = np.random.default_rng(window)
    rows, length = 400, 40
    words, usable = random_rows(window, rows, length)
    budgets = rng.integers(1, 12, rows).astype(np.int32)
    turns = math.ceil(length / window)
    drawn = rng.integers(1, 4, (rows, turns)).astype(np.int32)
    where = rng.random((rows, turns)).astype(np.float32)
    each = numbered(words, usable)
    for slots in (40, 12):
        take = functools.partial(selection._take_windows, window=window, slots=slots)
        take = jax.vmap(lambda d, w, e, b, take=take: take(d, w, e, count=b))
        placed, dropped = map(np.asarray, jax.jit(take)(drawn, where, each, budgets))
        for row in range(rows):
            groups = groups_of(words[row], usable[row])
            _, right = slow_windows(groups, budgets[row], drawn[row], where[row], window)
            got = [t for k, group in enumerate(groups) if placed[row, k] for t in group]
            assert got == right[: len(got)], row
            assert dropped[row] == len(right) - len(got)
            assert len(right) <= slots or len(got) <= slots
            if len(right) <= slots:
                assert dropped[row] == 0


def test_deberta_v3_at_512():
    """77 of 85 windows of 6: each of the first 462 candidates once in 6, the last 48 never."""
    masking = Masking(windowed=True, count_base="tokens", mask_prob=1.0, random_prob=0.0)
    row = frame(510)
    masked, selected = many(masking, row, rows=ROWS)
    assert masked.positions.shape[1] == masking.slots(512) == 77
    np.testing.assert_array_equal(masked.weights, 1)
    np.testing.assert_array_equal(masked.dropped, 0)
    windows = selected[:, 1 : 1 + 462].reshape(ROWS, 77, 6)
    np.testing.assert_array_equal(windows.sum(axis=2), 1)
    share = windows.mean(axis=0)
    assert np.abs(share - 1 / 6).max() < 4.5 * np.sqrt(1 / 6 * 5 / 6 / ROWS)
    assert not selected[:, 463:].any() and not selected[:, 0].any()
    assert (np.asarray(masked.input_ids)[selected] == SPECIAL.mask).all()


@pytest.mark.parametrize("most", [1, 3])
def test_windows_have_the_chances_of_the_released_code(most):
    """Before the budget (a sixth of the words) and after it (the end of the row is left out)."""
    sizes = SIZES * 5
    row = frame(sum(sizes))
    words, usable = number(sizes, row), row >= 20
    masking = Masking(unit="ngram", windowed=True, count_base="tokens", max_ngram=most)
    everything = jax.jit(
        jax.vmap(
            lambda key: selection.windowed(
                key, jnp.asarray(usable), jnp.asarray(words), jnp.asarray(999), 999, masking
            )[0]
        )
    )(jax.random.split(KEY, ROWS))
    _, selected = many(masking, row, sizes)
    groups = groups_of(words, usable)
    budget = round(0.15 * len(row))
    rng = np.random.default_rng(1)
    slow_all, slow = np.zeros((2, ROWS, len(row)), bool)
    for one, cut in zip(slow_all, slow, strict=True):
        drawn = rng.choice(np.arange(1, most + 1), 99, p=ngram_shares(most))
        grams, tokens = slow_windows(groups, budget, drawn, rng.random(99), 6)
        one[[t for k in np.flatnonzero(grams) for t in groups[k]]] = True
        cut[tokens] = True
    bound = 4.5 * np.sqrt(0.5 / ROWS)
    first = [group[0] for group in groups]
    # 16 windows of 6 words, and one of 4 that has an n-gram as well.
    assert abs(np.asarray(everything)[:, first].mean() - 17 / 100) < 0.003 * most
    assert np.abs(np.mean(everything, axis=0) - slow_all.mean(axis=0)).max() < bound
    assert np.abs(selected.mean(axis=0) - slow.mean(axis=0)).max() < bound
    counts = selected.sum(axis=1)
    assert counts.min() >= min(slow.sum(axis=1)) and counts.max() == slow.sum(axis=1).max()
    assert budget < counts.max() <= budget + 3  # the last word, of 4 tokens at most, goes whole
    same = (words[1:] == words[:-1]) & (words[1:] >= 0)
    np.testing.assert_array_equal(selected[:, 1:][:, same], selected[:, :-1][:, same])


def test_a_last_word_without_slots_is_dropped():
    """Of 60 tokens, for a budget of 9 and 8 slots more: whole, counted, unchanged."""
    row = frame(60)
    masked, selected = many(Masking(0.15, 1.0, 0.0, "word", windowed=True), row, [60], rows=4)
    assert masked.positions.shape[1] == 9 + 8
    assert not selected.any()
    np.testing.assert_array_equal(masked.dropped, 60)
    np.testing.assert_array_equal(masked.input_ids, np.tile(row, (4, 1)))


# --------------------------------------------------------------------------- with replacement

ELECTRA = Masking(0.15, 0.85, 0.0, count_base="tokens", with_replacement=True)


@pytest.mark.parametrize(
    "segments, rate, draws",
    [((126,), 0.15, 19), ((60, 65), 0.15, 19), ((510,), 0.15, 77), ((509 - 200, 200), 0.25, 128)],
)
def test_effective_rate_with_replacement(segments, rate, draws):
    """c candidates, k draws: 1 - (1 - 1/c)^k of them, for .15 14.0 to 14.2 % at 128 and 512."""
    row = frame(*segments)
    candidates = sum(segments)
    rows = 2000
    masked, selected = many(dataclasses.replace(ELECTRA, rate=rate), row, rows=rows)
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), draws)
    effective = selected.sum() / (rows * candidates)
    expected = 1 - (1 - 1 / candidates) ** draws
    # Distinct positions of a row: variance at most that of independent choices.
    assert abs(effective - expected) < 4.5 * np.sqrt(expected / (rows * candidates))
    share = selected[:, row >= 20].mean(axis=0)
    assert np.abs(share - expected).max() < 4.5 * np.sqrt(expected * (1 - expected) / rows)
    assert not selected[:, row < 20].any()


def test_a_position_drawn_twice():
    """It counts twice, and is masked if either draw says so: .85, 1 - .15^2, 1 - .15^3."""
    row = frame(126)
    masked, selected = many(ELECTRA, row)
    positions, new = np.asarray(masked.positions), np.asarray(masked.input_ids)
    times = np.zeros(new.shape, int)
    np.add.at(times, (np.arange(ROWS)[:, None], positions), np.asarray(masked.weights) > 0)
    np.testing.assert_array_equal(times > 0, selected)
    np.testing.assert_array_equal(times.sum(axis=1), 19)
    np.testing.assert_array_equal(masked.targets, row[positions])
    for k in (1, 2, 3):
        hidden = (new[times == k] == SPECIAL.mask).mean()
        assert abs(hidden - (1 - 0.15**k)) < 4.5 * np.sqrt(0.15 * 0.85 / (times == k).sum())
    assert set(np.unique(new[selected])) == {SPECIAL.mask, 20}  # no random token
    np.testing.assert_array_equal(new[~selected], np.tile(row, (ROWS, 1))[~selected])
    drawn = np.bincount(times[:, 1:127].ravel(), minlength=5)[:5] / (ROWS * 126)
    binomial = [math.comb(19, k) * (1 / 126) ** k * (125 / 126) ** (19 - k) for k in range(5)]
    assert np.abs(drawn - binomial).max() < 4.5 * np.sqrt(0.25 / (ROWS * 126))


def test_chances_with_replacement():
    row = frame(6)
    chances = np.array([0, 0, 1, 2, 3, 4, 0, 9], np.float32) / 7  # not of [SEP]
    ids = np.tile(row, (40_000, 1))
    masked = run(ids, ELECTRA, weights=np.tile(chances, (40_000, 1)))
    drawn = np.bincount(np.asarray(masked.positions)[:, 0], minlength=8) / 40_000
    assert np.abs(drawn - [0, 0, 0.1, 0.2, 0.3, 0.4, 0, 0]).max() < 4 * np.sqrt(0.25 / 40_000)


def test_nothing_to_draw():
    masked = run(np.full((3, 12), SPECIAL.pad, np.int32), ELECTRA)
    np.testing.assert_array_equal(masked.weights, 0)
    np.testing.assert_array_equal(masked.input_ids, SPECIAL.pad)
    assert np.max(masked.positions) < 12
