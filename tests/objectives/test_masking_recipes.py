"""The policies of published recipes: candidates, replacements, frequencies, rates that change."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.objectives.masking import (
    Masked,
    Masking,
    mask_tokens,
    maskable_tokens,
    selection_table,
    selection_weights,
)
from bert_jax.objectives.policy import count_table

pytestmark = pytest.mark.sweep

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
KEY = jax.random.key(0, impl="threefry2x32")


@functools.partial(
    jax.jit,
    static_argnames=("masking", "special", "vocab_size"),
    compiler_options={"xla_backend_optimization_level": 0},
)
def run(ids, masking, weights=None, rate=None, special=SPECIAL, vocab_size=1000) -> Masked:
    return mask_tokens(
        KEY,
        ids,
        maskable_tokens(ids, ids != special.pad, masking, special),
        masking,
        special=special,
        vocab_size=vocab_size,
        selection_weights=weights,
        rate=rate,
    )


def text(rows: int, length: int, tokens: int | None = None) -> np.ndarray:
    """Rows of [CLS], so many tokens, [SEP] and padding."""
    tokens = length - 2 if tokens is None else tokens
    ids = np.random.default_rng(0).integers(10, 1000, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, tokens + 1], ids[:, tokens + 2 :] = SPECIAL.cls, SPECIAL.sep, SPECIAL.pad
    return ids


def selected(masked: Masked, shape) -> np.ndarray:
    rows, slots = np.nonzero(np.asarray(masked.weights))
    chosen = np.zeros(shape, bool)
    chosen[rows, np.asarray(masked.positions)[rows, slots]] = True
    return chosen


# --------------------------------------------------------------------------------- candidates


@pytest.mark.parametrize(
    "candidates, may",
    [("text", {10}), ("text_and_unk", {10, 5}), ("all", {10, 5, 7, 3, 0})],
)
def test_candidates(candidates, may):
    """Google BERT and ELECTRA select unknown tokens, DeBERTa and DistilBERT do not (P02)."""
    ids = np.tile(np.asarray([[7, 10, 5, 10, 0, 10, 3, 9]], np.int32), (2000, 1))
    chosen = selected(run(ids, Masking(0.5, candidates=candidates)), ids.shape)
    assert set(ids[chosen]) == may
    share = chosen.mean(axis=0)[np.isin(ids[0], list(may))]  # each as often
    # Of a fixed number without replacement: variance at most a quarter.
    assert np.abs(share - share.mean()).max() < 4.5 * np.sqrt(0.25 / 2000)


# ------------------------------------------------------------------------------- replacements


def replaced(masking, vocab_size, special=SPECIAL) -> np.ndarray:
    """What stands where a random token was drawn: counts by id."""
    ids = np.full((2048, 64), 11, np.int32)
    masked = run(
        ids,
        dataclasses.replace(masking, rate=0.9, mask_prob=0.0, random_prob=1.0),
        special=special,
        vocab_size=vocab_size,
    )
    drawn = np.asarray(masked.input_ids)[selected(masked, ids.shape)]
    return np.bincount(drawn, minlength=vocab_size)


@pytest.mark.parametrize(
    "random_ids, low, high",
    [
        ((0, 300), 0, 300),  # Google BERT, ALBERT, DistilBERT, MLM of DeBERTa, Hugging Face
        ((4, 300), 4, 300),  # RoBERTa: not fairseq's first four symbols, but <mask>
        ((0, 285), 0, 285),  # ModernBERT: up to its mask token, not the unused ids behind
    ],
)
def test_random_ids_of_a_range(random_ids, low, high):
    """Each of the range, special or not, as often as any other; none beside."""
    counts = replaced(Masking(random_ids=random_ids), 300)
    assert counts[:low].sum() == counts[high:].sum() == 0
    inside = counts[low:high]
    chi_square = ((inside - inside.mean()) ** 2).sum() / inside.mean()
    assert abs(chi_square - (high - low)) < 4.5 * np.sqrt(2 * (high - low))


def test_random_ids_of_modernbert():
    special = SpecialTokens(pad=50283, cls=50281, sep=50282, mask=50284, unk=50280)
    counts = replaced(Masking(random_ids=(0, 50285)), 50368, special)
    drawn = np.flatnonzero(counts)
    assert drawn.min() < 10 and 50275 <= drawn.max() < 50285  # of 120,000 draws


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.5])
def test_all_mask_tokens(rate):
    """NeoBERT, Wettig et al., EuroBERT: no 80/10/10, every selected token is the mask token."""
    ids = text(500, 64)
    masked = run(ids, Masking(rate, 1.0, 0.0))
    chosen = selected(masked, ids.shape)
    assert (np.asarray(masked.input_ids)[chosen] == SPECIAL.mask).all()
    np.testing.assert_array_equal(np.asarray(masked.input_ids)[~chosen], ids[~chosen])
    np.testing.assert_array_equal(chosen.sum(axis=1), round(rate * 62))


# ---------------------------------------------------------------------------------- frequency


def test_the_selection_table():
    """XLM and DistilBERT: max(count, 1) ** -0.7, and 0 for special tokens."""
    counts = np.asarray([10**9, 0, 1, 100, 7, 40, 2, 3, 4, 5, 6])
    table = selection_table(counts, 0.7, SPECIAL)
    assert table.dtype == np.float32
    expected = np.maximum(counts, 1) ** -0.7
    expected[[0, 3, 5, 7, 9]] = 0
    np.testing.assert_allclose(table, expected, rtol=1e-7)  # rounding to float32
    np.testing.assert_array_equal(selection_table(counts, 0.0, SPECIAL), expected > 0)
    few = selection_table(np.asarray([5, 5]), 1.0, SPECIAL)  # special ids beyond the vocabulary
    np.testing.assert_allclose(few, [0, 0.2])


@pytest.mark.parametrize(
    "counts, power, message",
    [
        ([3, -1], 0.7, "counts has -1 at id 1; none is negative."),
        ([3, 1], -0.7, "power is -0.7; it must be 0 or positive."),
        ([3, 1], float("nan"), "power is nan; it must be 0 or positive."),
    ],
)
def test_a_bad_table_is_refused(counts, power, message):
    with pytest.raises(ValueError) as caught:
        selection_table(np.asarray(counts), power, SPECIAL)
    assert str(caught.value) == message


@pytest.mark.parametrize("replacement", [False, True])
def test_frequent_tokens_are_selected_less(replacement):
    """One of six tokens, with counts 1, 10, ..., 10^5: chances in closed form."""
    ids = np.tile(np.arange(10, 16, dtype=np.int32), (40_000, 1))
    counts = np.zeros(20, int)
    counts[10:16] = 10 ** np.arange(6)
    table = selection_table(counts, 0.7, SPECIAL)
    masking = Masking(0.1, 1.0, 0.0, with_replacement=replacement, frequency_power=0.7)
    masked = run(ids, masking, weights=selection_weights(table, jnp.asarray(ids)))
    chances = 10.0 ** (-0.7 * np.arange(6))
    chances /= chances.sum()
    share = selected(masked, ids.shape).mean(axis=0)
    assert (np.abs(share - chances) < 4.5 * np.sqrt(chances / 40_000)).all()


def test_special_tokens_have_no_chance():
    """Even where all real tokens are candidates: the table's zeros decide."""
    ids = text(200, 16)
    table = selection_table(np.ones(1000, int), 0.7, SPECIAL)
    masking = Masking(0.9, candidates="all", frequency_power=0.7)
    chosen = selected(
        run(ids, masking, weights=selection_weights(table, jnp.asarray(ids))), ids.shape
    )
    np.testing.assert_array_equal(chosen.sum(axis=1), 14)
    assert not np.isin(ids[chosen], SPECIAL.ids).any()


# --------------------------------------------------------------------------------------- rates


def test_the_rate_of_a_step():
    masking = Masking(0.3, final_rate=0.15)
    rates = [masking.rate_at(step, 1000) for step in (0, 1, 500, 1000, 2000)]
    np.testing.assert_allclose(
        np.asarray(rates), [0.3, 0.29985, 0.225, 0.15, 0.15], rtol=1e-6
    )  # float32
    halves = [Masking(0.5, final_rate=0.1).rate_at(step, 100) for step in (0, 25, 50, 99, 100)]
    np.testing.assert_allclose(np.asarray(halves), [0.5, 0.4, 0.3, 0.104, 0.1], rtol=1e-6)
    traced = jax.jit(lambda step: masking.rate_at(step, 1000))(jnp.asarray(500))
    assert traced.dtype == jnp.float32 and abs(float(traced) - 0.225) < 1e-7
    rising = Masking(0.15, final_rate=0.4)
    np.testing.assert_allclose(np.asarray(rising.rate_at(750, 1000)), 0.3375, rtol=1e-6)
    assert Masking().rate_at(3, 10) is None
    with pytest.raises(ValueError, match=r"total_steps is 0; it must be at least 1\."):
        masking.rate_at(0, 0)


@pytest.mark.parametrize("count", ["fixed", "ceil"])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5])
def test_counts_of_a_traced_rate(count, rate):
    """Those of a constant rate, for rows of 0 to 126 tokens; ties are Python's too."""
    length = 128
    ids = np.tile(text(1, length), (length - 1, 1))
    for n, row in enumerate(ids):
        row[n + 1], row[n + 2 :] = SPECIAL.sep, SPECIAL.pad
    masking = Masking(0.5, count=count, final_rate=0.05)
    masked = run(ids, masking, rate=np.float32(rate))
    assert masked.positions.shape[1] == masking.slots(length) == 64
    expected = count_table(count, rate, length - 2)
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), expected)


@pytest.mark.parametrize("count", ["stochastic", "bernoulli"])
def test_mean_of_a_traced_rate(count):
    ids = text(4000, 64)
    for rate in (0.1, 0.2371, 0.3):
        masked = run(ids, Masking(0.1, count=count, final_rate=0.3), rate=np.float32(rate))
        mean = np.asarray(masked.weights).sum() / (4000 * 62)
        assert abs(mean - rate) < 4.5 * np.sqrt(rate * (1 - rate) / (4000 * 62))
        if count == "stochastic":  # never fewer than the whole part of rate * 62
            assert np.sum(masked.weights, axis=1).min() >= int(rate * 62)


def test_the_first_tokens_of_a_higher_rate_stay_those_of_a_lower():
    """One key: as the rate falls, selections shrink; slots stay."""
    ids = text(64, 64)
    masking = Masking(0.4, final_rate=0.1)
    high, low = (run(ids, masking, rate=np.float32(rate)) for rate in (0.4, 0.1))
    assert high.positions.shape == low.positions.shape
    many, few = (selected(masked, ids.shape) for masked in (high, low))
    assert not (few & ~many).any()
    np.testing.assert_array_equal(few.sum(axis=1), 6)
    np.testing.assert_array_equal(many.sum(axis=1), 25)


def test_a_rate_above_the_slots_is_cut():
    ids = text(8, 64)
    masked = run(ids, Masking(0.1), rate=np.float32(0.9))
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), Masking(0.1).slots(64))


def test_windows_have_no_traced_rate():
    with pytest.raises(ValueError, match="rate is given, but a windowed policy"):
        run(text(2, 16), Masking(windowed=True), rate=np.float32(0.1))
