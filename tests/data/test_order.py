"""order: a permutation for every size, a different one each epoch, and never another one."""

import numpy as np
import pytest

from bert_jax.data.order import order

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 32, 33, 97, 127, 128, 129, 1000, 1009, 4095, 4096, 4097]


@pytest.mark.parametrize("num_rows", [*SIZES, 65537, 2**17 - 1])
@pytest.mark.parametrize("seed, epoch", [(0, 0), (1, 0), (0, 1), (2**63 - 1, 10**9)])
def test_is_a_permutation(num_rows, seed, epoch):
    rows = order(seed, epoch, num_rows, np.arange(num_rows))
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


def test_values_never_change():
    """Golden: a change here silently reorders the data of every run that is resumed."""
    assert order(0, 0, 10, np.arange(10)).tolist() == GOLDEN_10
    assert order(7, 3, 10**6, np.arange(8)).tolist() == GOLDEN_MILLION
    assert order(2**63 - 1, 12, 10**12, np.array([0, 1, 10**12 - 1])).tolist() == GOLDEN_HUGE


GOLDEN_10 = [5, 2, 8, 6, 0, 4, 9, 7, 1, 3]
GOLDEN_MILLION = [651575, 621719, 974420, 832074, 643615, 935188, 353929, 171422]
GOLDEN_HUGE = [128792404124, 553174520129, 430639993261]


def test_each_position_alone_and_in_any_shape():
    whole = order(5, 2, 1000, np.arange(1000))
    assert order(5, 2, 1000, np.array(17)) == whole[17]
    assert np.array_equal(
        order(5, 2, 1000, np.arange(1000).reshape(10, 100)), whole.reshape(10, 100)
    )
    shuffled = np.random.default_rng(0).permutation(1000)
    assert np.array_equal(order(5, 2, 1000, shuffled), whole[shuffled])
    assert order(5, 2, 1000, np.zeros(0, np.int64)).shape == (0,)


def test_one_epoch_for_each_position_equals_one_at_a_time():
    epochs, positions = np.divmod(np.arange(500), 37)
    together = order(3, epochs, 37, positions)
    alone = [int(order(3, int(e), 37, np.array(p))) for e, p in zip(epochs, positions, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize("num_rows", [3000, 4096, 5000])
def test_positions_spread_evenly_over_rows(num_rows):
    """Where the first, middle and last positions go over many epochs is uniform (chi square)."""
    epochs = 4000
    cells = 20
    for position in (0, 1, num_rows // 2, num_rows - 1):
        rows = order(1, np.arange(epochs), num_rows, np.full(epochs, position))
        counts = np.bincount(rows * cells // num_rows, minlength=cells)
        widths = np.diff(-(-np.arange(cells + 1) * num_rows // cells))
        expected = epochs * widths / num_rows
        chi_square = np.sum((counts - expected) ** 2 / expected)
        assert chi_square < 43.8  # the 0.999 quantile for 19 degrees of freedom


@pytest.mark.parametrize("num_rows", [3000, 4096, 50021])
def test_neighbours_part(num_rows):
    """Rows at adjacent positions are as far apart as independent draws are: n/3 on average."""
    rows = order(2, 0, num_rows, np.arange(num_rows))
    gaps = np.abs(np.diff(rows))
    # The standard deviation of a gap is n/sqrt(18); four standard errors.
    assert abs(gaps.mean() - num_rows / 3) < 4 * num_rows / np.sqrt(18 * num_rows)
    assert np.mean(gaps == 1) < 12 / num_rows  # expected 2/n, Poisson
    # ... and so are rows a power of two of positions apart, where a weak cipher shows itself.
    for stride in (2, 16, 256):
        gaps = np.abs(rows[stride:] - rows[:-stride])
        assert abs(gaps.mean() - num_rows / 3) < 4 * num_rows / np.sqrt(18 * num_rows)


def test_every_order_of_three_rows_is_equally_likely():
    epochs = 6000
    rows = order(0, np.repeat(np.arange(epochs), 3), 3, np.tile(np.arange(3), epochs))
    _, counts = np.unique(rows.reshape(epochs, 3), axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.sum((counts - 1000.0) ** 2 / 1000) < 20.5  # 0.999 quantile, 5 degrees of freedom


@pytest.mark.parametrize("other", [(1, 0), (0, 1), (2**62, 0), (0, 2**40)])
def test_another_seed_or_epoch_is_another_order(other):
    first, second = (order(*k, 4096, np.arange(4096)) for k in ((0, 0), other))
    assert np.sum(first == second) < 10  # unrelated permutations agree in one place on average
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(4096)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((-1, 0, 10, [0]), r"data seed .* got -1"),
        ((2**63, 0, 10, [0]), "data seed"),
        ((0, -2, 10, [0]), "Epochs count from 0; got -2"),
        ((0, 0, 0, []), "between 1 and 2\\*\\*62 rows; got 0"),
        ((0, 0, 10, [3, 10]), r"\[0, 10\).* got 3 to 10"),
        ((0, 0, 10, [-1]), "got -1 to -1"),
        ((0, np.arange(2), 10, [0, 1, 2]), r"epochs of shape \(2,\) for positions of shape \(3,\)"),
    ],
)
def test_refuses(arguments, words):
    seed, epoch, num_rows, positions = arguments
    with pytest.raises(ValueError, match=words):
        order(seed, epoch, num_rows, np.array(positions, np.int64))
