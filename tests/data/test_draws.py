"""draws: uniform, unrelated, and the same whatever is asked for with them."""

import numpy as np
import pytest

from bert_jax.data.draws import Draws

N = 1 << 16
INDEX = np.arange(N)


def test_the_stream_is_splitmix64():
    """In Python's integers; the first output of seed 0 is known. Other values are other pairs."""
    mask = 2**64 - 1

    def finalise(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    step = 0x9E3779B97F4A7C15
    assert finalise(step) == 0xE220A8397B1DCDAF
    base = finalise(finalise(finalise(11 + step) + 0x7061697273 & mask) + 4)
    key = finalise(base + (1 + 5 + 64 * 3) * step & mask)
    expected = [finalise(key + i * step & mask) for i in range(20)]
    assert Draws(11, 4).bits(5, np.arange(20), word=3).tolist() == expected


def test_an_address_has_one_number():
    draws = Draws(1, 0)
    some = np.array([5, 77, 5, 10**11])
    assert np.array_equal(draws.bits(2, some)[:2], draws.bits(2, np.arange(100))[[5, 77]])
    assert draws.bits(2, some)[0] == draws.bits(2, some)[2]


def test_uniform():
    values = Draws(0, 0).uniform(0, INDEX)
    assert values.min() >= 0 and values.max() < 1
    counts = np.bincount((values * 64).astype(int), minlength=64)
    chi2 = ((counts - N / 64) ** 2 / (N / 64)).sum()
    assert chi2 < 63 + 5 * np.sqrt(2 * 63)  # mean 63, variance 126: five deviations


@pytest.mark.parametrize(
    "other",
    [
        lambda: Draws(1, 0).uniform(0, INDEX),
        lambda: Draws(0, 1).uniform(0, INDEX),
        lambda: Draws(0, 0).uniform(1, INDEX),
        lambda: Draws(0, 0).uniform(0, INDEX + 1),
    ],
    ids=["seed", "copy", "stream", "index"],
)
def test_addresses_are_unrelated(other):
    correlation = np.corrcoef(Draws(0, 0).uniform(0, INDEX), other())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(N)  # five deviations


def test_below_is_uniform_and_never_its_limit():
    limit = np.full(N, 6)
    values = Draws(3, 0).below(4, INDEX, limit)
    counts = np.bincount(values, minlength=6)
    assert len(counts) == 6
    assert np.all(np.abs(counts - N / 6) < 5 * np.sqrt(N * 5 / 36))  # five deviations
    assert np.array_equal(values, Draws(3, 0).below(4, INDEX, 6))
    assert not Draws(3, 0).below(4, INDEX, np.zeros(N, int)).any()
    assert not Draws(3, 0).below(4, INDEX, np.ones(N, int)).any()


def test_heads_are_the_bits_in_their_order():
    flips = np.array([0, 1, 5, 64, 65, 200])
    index = np.full(6, 9)
    draws = Draws(0, 3)
    tosses = "".join(f"{int(draws.bits(7, index[:1], word)[0]):064b}" for word in range(4))
    expected = [tosses[:n].count("1") for n in flips]
    assert draws.heads(7, index, flips).tolist() == expected


def test_heads_are_binomial():
    heads = Draws(2, 0).heads(0, INDEX, np.full(N, 100))
    assert abs(heads.mean() - 50) < 5 * 5 / np.sqrt(N)  # a deviation of 5 each, five of the mean
    assert heads.var() == pytest.approx(25, rel=5 * np.sqrt(2 / N))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_refuses_seeds(seed):
    with pytest.raises(ValueError, match=f"seed .* got {seed}"):
        Draws(seed, 0)
