"""Batch sizes against a slow count, step by step, and ModernBERT's published switches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.batch_size import BatchSizes, BatchWarmup

BASE = BatchSizes(4608, 1024, BatchWarmup(768, 768, 50_000_000_000))
LARGE = BatchSizes(4928, 1024, BatchWarmup(448, 448, 10_000_000_000))


def released_rule(sizes: BatchSizes, steps: int) -> list[int]:
    """Sizes as ModernBERT's packer finds them, from a count of the tokens so far."""
    warmup = sizes.warmup
    if warmup is None:
        return [sizes.batch_size] * steps
    growing = list(range(warmup.start, sizes.batch_size, warmup.increment))
    rows, tokens = [], 0
    for _ in range(steps):
        size = sizes.batch_size
        for index, smaller in enumerate(growing):
            # Exact: tokens < ceil(W c / S) where it is an integer is tokens S < W c, rounded up.
            if tokens * sum(growing) < warmup.tokens * sum(growing[: index + 1]):
                size = smaller
                break
        rows.append(size)
        tokens += size * sizes.seq_length
    return rows


warmups = st.builds(
    BatchWarmup, start=st.integers(1, 9), increment=st.integers(1, 7), tokens=st.integers(1, 3000)
)
any_sizes = st.builds(
    BatchSizes,
    batch_size=st.integers(9, 40),
    seq_length=st.integers(1, 9),
    warmup=st.none() | warmups,
)


@settings(max_examples=40, deadline=None)
@given(any_sizes)
def test_equal_to_a_count_step_by_step(sizes):
    count = 200
    rows = np.asarray(released_rule(sizes, count))
    before = np.cumsum([0, *rows])
    steps = np.arange(count)
    np.testing.assert_array_equal(sizes.batch_size_at(steps), rows)
    np.testing.assert_array_equal(sizes.first_example(steps), before[:-1])
    np.testing.assert_array_equal(sizes.tokens_before(steps), before[:-1] * sizes.seq_length)
    owners = np.repeat(steps, rows)
    np.testing.assert_array_equal(sizes.step_of_example(np.arange(len(owners))), owners)
    totals = np.arange(0, before[-1] * sizes.seq_length, 7)
    needed = np.searchsorted(before * sizes.seq_length, totals)
    np.testing.assert_array_equal(sizes.steps_for_tokens(totals), needed)


@settings(max_examples=20, deadline=None)
@given(any_sizes)
def test_arrays_give_what_integers_give(sizes):
    steps = np.arange(50, dtype=np.int64)
    for method in ("batch_size_at", "first_example", "tokens_before", "step_of_example",
                   "steps_for_tokens"):  # fmt: skip
        found = getattr(sizes, method)(steps)
        assert found.dtype == np.int64
        assert found.tolist() == [getattr(sizes, method)(int(step)) for step in steps]
        assert type(getattr(sizes, method)(3)) is int


@pytest.mark.parametrize(
    ("sizes", "switches"),
    [
        (BASE, [3.333e9, 10e9, 20e9, 33.33e9, 50e9]),
        (LARGE, [10e9 * n * (n + 1) / 110 for n in range(1, 11)]),
    ],
    ids=["base", "large"],
)
def test_modernberts_switches(sizes, switches):
    """Tokens at which the size changes; every size has the same number of steps, up to one."""
    sizes_in_order = sizes.sizes
    assert sizes_in_order == tuple(sizes.warmup.start * n for n in range(1, len(switches) + 2))
    end = sizes.steps_for_tokens(sizes.warmup.tokens)
    found = sizes.batch_size_at(np.arange(end + 10))
    changes = np.flatnonzero(np.diff(found)) + 1
    seen = sizes.tokens_before(changes)
    # A switch comes at the first step at or after its threshold: one batch late at most.
    late = seen - np.asarray(switches)
    assert (np.abs(late) <= sizes_in_order[-1] * sizes.seq_length + 1e7).all()
    lengths = np.diff([0, *changes.tolist()])
    assert lengths.max() - lengths.min() <= 1
    assert int(changes[-1]) == end


def test_without_a_warm_up_every_step_is_full():
    sizes = BatchSizes(256, 128)
    assert sizes.sizes == (256,)
    assert sizes.first_example(10**9) == 256 * 10**9
    assert sizes.tokens_before(1_000_000) == 256 * 128 * 1_000_000
    assert sizes.steps_for_tokens(0) == 0
    assert sizes.steps_for_tokens(1) == sizes.steps_for_tokens(256 * 128) == 1
    assert sizes.steps_for_tokens(256 * 128 + 1) == 2


def test_a_start_at_the_full_size_warms_nothing_up():
    assert BatchSizes(8, 4, BatchWarmup(8, 2, 100)).sizes == (8,)


def test_a_size_whose_threshold_is_passed_already_is_left_out():
    """Thresholds 2, 5, 9, 14 of 14 tokens: the first batch of 2 rows of 4 passes two of them."""
    sizes = BatchSizes(6, 4, BatchWarmup(2, 1, 14))
    assert sizes.sizes == (2, 4, 6)
    assert [sizes.batch_size_at(step) for step in range(4)] == released_rule(sizes, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchWarmup(0, 1, 1), "batch_warmup.start is 0; at least 1."),
        (lambda: BatchWarmup(1, 0, 1), "batch_warmup.increment is 0; at least 1."),
        (lambda: BatchWarmup(1, 1, 0), "batch_warmup.tokens is 0; at least 1."),
        (lambda: BatchSizes(0, 4), "batch_size is 0; at least 1."),
        (lambda: BatchSizes(4, 0), "seq_length is 0; at least 1."),
        (
            lambda: BatchSizes(4, 4, BatchWarmup(5, 1, 9)),
            "batch_warmup.start 5 exceeds batch_size 4; start with smaller batches.",
        ),
    ],
)
def test_errors_name_the_value_and_its_limit(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message
