"""dropout: random bits that are uniform, independent, and the same however the batch is split."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.dropout import DropoutSeed, dropout, random_bits
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

KEY = jax.random.key(3, impl="threefry2x32")
# A test of n standard normal draws fails by chance with 6e-5 (4 sigma) or 6e-7 (5 sigma) each.


def seed_of(step=0, examples=(0,), layer=0, key=KEY) -> DropoutSeed:
    ids = jnp.asarray(examples, jnp.uint32)
    return DropoutSeed.from_key(jax.random.fold_in(key, step), ids).at_layer(layer)


@functools.partial(jax.jit, static_argnums=(0, 1))
def draw(shape, site, seed):
    return random_bits(seed, site, jnp.zeros(shape))


def bits_of(shape, site=0, **seed) -> np.ndarray:
    return np.asarray(draw(shape, site, seed_of(**seed)))


def signs(bits: np.ndarray) -> np.ndarray:
    """The most significant bit, which decides dropout at rate .5, as -1 and 1."""
    return (bits >> 31).astype(np.float64) * 2 - 1


@pytest.fixture(scope="module")
def many_bits() -> np.ndarray:
    """As attention uses them: (examples, heads, queries, keys), two million words."""
    return bits_of((8, 4, 256, 256), examples=range(8))


# ------------------------------------------------------------------------------- uniformity


def test_every_bit_is_fair(many_bits):
    flat = many_bits.reshape(-1)
    for bit in range(32):
        share = ((flat >> bit) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(flat.size), bit


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(many_bits, shift):
    counts = np.bincount((many_bits.reshape(-1) >> shift) & 255, minlength=256)
    assert chi_square_sigmas(counts) < 4


def test_bytes_are_uniform_within_each_example(many_bits):
    for example in many_bits:
        assert chi_square_sigmas(np.bincount(example.reshape(-1) >> 24, minlength=256)) < 4.5


def test_pairs_of_neighbours_are_uniform(many_bits):
    """The top four bits of an element and of the next along each axis: 256 equal cells."""
    top = many_bits >> 28
    for axis in range(4):
        first = np.take(top, range(top.shape[axis] - 1), axis).reshape(-1)
        second = np.take(top, range(1, top.shape[axis]), axis).reshape(-1)
        counts = np.bincount(first * 16 + second, minlength=256)
        assert abs(chi_square_sigmas(counts)) < 4.5, axis


def chi_square_sigmas(counts: np.ndarray) -> float:
    """Pearson's statistic against equal cells, in standard deviations of its distribution."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2).sum() / expected
    return (statistic - freedom) / np.sqrt(2 * freedom)


# ------------------------------------------------------------------------------------- rate


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    x = jnp.ones((4, 512, 256))
    y = np.asarray(dropout(x, rate, seed_of(examples=range(4)), site=1))
    kept = y != 0
    assert abs((1 - kept.mean()) - rate) < 4 * np.sqrt(rate * (1 - rate) / y.size)
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)


def test_each_row_and_column_has_the_rate():
    """No row, column or example gets less dropout than its neighbours."""
    dropped = bits_of((16, 256, 256), examples=range(16)) < round(0.1 * 2**32)
    for axes in ((0, 1), (0, 2), (1, 2)):
        mean = dropped.mean(axis=axes)
        sigma = np.sqrt(0.09 * mean.size / dropped.size)
        assert np.abs(mean - 0.1).max() < 4.5 * sigma


def test_nothing_happens_at_evaluation_or_rate_zero():
    x = jax.random.normal(KEY, (2, 8))
    assert dropout(x, 0.5, None, 0) is x
    assert dropout(x, 0.0, seed_of(examples=range(2)), 0) is x


def test_gradient_is_the_mask():
    x = jnp.full((2, 64, 32), 3.0)
    seed = seed_of(examples=(5, 9))
    gradient = jax.jit(jax.grad(lambda x: dropout(x, 0.3, seed, 2).sum()))(x)
    np.testing.assert_array_equal(gradient != 0, dropout(x, 0.3, seed, 2) != 0)
    np.testing.assert_allclose(gradient[gradient != 0], 1 / 0.7, rtol=1e-6)


def test_compute_type_stays_and_changes_no_mask():
    seed = seed_of(examples=(1, 2))
    wide = dropout(jnp.ones((2, 64, 64)), 0.1, seed, 0)
    narrow = dropout(jnp.ones((2, 64, 64), jnp.bfloat16), 0.1, seed, 0)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(wide != 0, narrow != 0)


# ----------------------------------------------------------------------------- independence


def test_streams_are_independent():
    """Sites, layers, examples, steps and seeds: every two of 200 streams, bit by bit."""
    shape = (1, 64, 64)
    streams = [bits_of(shape, site=s, layer=n) for s in range(5) for n in range(25)]
    streams += [bits_of(shape, examples=(e,)) for e in range(1, 26)]
    streams += [bits_of(shape, examples=(2**32 - e,)) for e in range(1, 6)]
    streams += [bits_of(shape, step=s) for s in range(1, 26)]
    seeds = (jax.random.key(s, impl="threefry2x32") for s in range(20))
    streams += [bits_of(shape, key=k) for k in seeds if k != KEY]
    flat = np.stack(streams).reshape(len(streams), -1)
    assert len(flat) == 199
    for bit in (31, 30, 16, 0):
        x = ((flat >> bit) & 1) * 2.0 - 1
        correlation = x @ x.T / x.shape[1]
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() * np.sqrt(x.shape[1]) < 5.5, bit


@pytest.mark.parametrize("vary", ["examples", "layers", "sites", "steps"])
def test_no_stream_is_a_shift_of_another(vary):
    """All circular lags of (stream, element) planes, by the autocorrelation theorem.

    131072 lags of independent signs have a greatest correlation near 4.8 sigma.
    """
    n = (1, 2048)
    if vary == "examples":
        bits = bits_of((64, 2048), examples=range(1000, 1064))
    elif vary == "layers":
        bits = np.concatenate([bits_of(n, layer=i) for i in range(64)])
    elif vary == "sites":
        bits = np.concatenate([bits_of((1, 16384), site=i) for i in range(8)])
    else:
        bits = np.concatenate([bits_of(n, step=i) for i in range(64)])
    assert max_lag_sigmas(signs(bits)) < 6


def test_neighbouring_elements_are_independent():
    """All two-dimensional lags of one head's (query, key) plane, and of (token, feature)."""
    assert max_lag_sigmas(signs(bits_of((1, 1, 512, 512))[0, 0])) < 6
    assert max_lag_sigmas(signs(bits_of((1, 128, 768))[0])) < 6
    rate = 0.1
    kept = bits_of((1, 512, 512))[0] >= round(rate * 2**32)
    assert max_lag_sigmas((kept - (1 - rate)) / np.sqrt(rate * (1 - rate))) < 6.5


def max_lag_sigmas(x: np.ndarray) -> float:
    """Greatest circular autocorrelation off the origin, times sqrt(n) (x has variance 1)."""
    power = np.abs(np.fft.fft2(x)) ** 2
    correlation = np.fft.ifft2(power).real / x.size
    correlation[0, 0] = 0
    return float(np.abs(correlation).max() * np.sqrt(x.size))


def test_an_example_never_sees_a_mask_twice():
    """300 steps of one example: two masks agree on a share 1 - 2 p q, as chance does."""
    rate, n = 0.1, 4096
    masks = np.stack([bits_of((1, n), step=s)[0] for s in range(300)]) < round(rate * 2**32)
    agree = 1 - 2 * rate * (1 - rate)
    x = masks - rate
    pairs = (x @ x.T / n)[np.triu_indices(len(masks), 1)]
    assert np.abs(pairs).max() < 6 * rate * (1 - rate) / np.sqrt(n)
    shares = [(masks[0] == other).mean() for other in masks[1:]]
    assert max(shares) < agree + 6 * np.sqrt(agree * (1 - agree) / n) < 0.9


def test_examples_are_told_apart_by_their_full_index():
    """Indices that agree in their low or high 16 bits give different masks."""
    ids = [0, 1, 2**16, 2**16 + 1, 2**31, 2**32 - 1]
    bits = bits_of((len(ids), 256), examples=ids)
    assert len({row.tobytes() for row in bits}) == len(ids)


# --------------------------------------------------------------------------- same everywhere


@pytest.mark.parametrize(
    "shape", [MeshShape(1), MeshShape(2), MeshShape(8), MeshShape(2, 4), MeshShape(1, 4, 2)]
)
def test_masks_do_not_depend_on_the_mesh(shape):
    x = np.ones((8, 4, 6, 5), np.float32)
    ids = np.arange(100, 108, dtype=np.uint32)
    alone = random_bits(seed_of(examples=ids, layer=3), 1, jnp.asarray(x))
    count = abs(shape.data * shape.fsdp * shape.tensor)
    with jax.set_mesh(make_mesh(shape, jax.devices()[:count])):
        placed = jax.device_put(x, specs.spec(*specs.HEADS))
        ids = jax.device_put(ids, specs.spec(specs.BATCH))
        bits = jax.jit(lambda x, i: random_bits(seed_of(examples=i, layer=3), 1, x))
        under_mesh = bits(placed, ids)
        assert jax.typeof(under_mesh).sharding.spec == jax.typeof(placed).sharding.spec
        local = jax.shard_map(
            lambda x, i: random_bits(seed_of(examples=i, layer=3), 1, x),
            in_specs=jax.P(specs.BATCH),
            out_specs=jax.P(specs.BATCH),
            axis_names=set(specs.BATCH),
        )
        in_region = jax.jit(local)(placed, ids)
    np.testing.assert_array_equal(under_mesh, alone)
    np.testing.assert_array_equal(in_region, alone)


def test_masks_do_not_depend_on_the_split_into_microbatches():
    whole = bits_of((8, 16, 4), examples=range(8))
    parts = [bits_of((2, 16, 4), examples=range(i, i + 2)) for i in range(0, 8, 2)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    shuffled = bits_of((8, 16, 4), examples=[5, 2, 7, 0, 1, 6, 3, 4])
    np.testing.assert_array_equal(whole[[5, 2, 7, 0, 1, 6, 3, 4]], shuffled)


def test_a_traced_layer_gives_the_bits_of_its_number():
    x = jnp.zeros((2, 32))
    seed = seed_of(examples=(0, 1))

    def one(_, layer):
        return None, random_bits(seed.at_layer(layer), 2, x)

    scanned = jax.lax.scan(one, None, jnp.arange(4))[1]
    for layer in range(4):
        np.testing.assert_array_equal(scanned[layer], random_bits(seed.at_layer(layer), 2, x))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_any_key_makes_a_seed(impl):
    seeds = [DropoutSeed.from_key(jax.random.key(s, impl=impl), jnp.arange(2)) for s in (0, 1)]
    assert seeds[0].words.shape == (2,)
    assert (seeds[0].words != seeds[1].words).any()


# ------------------------------------------------------------------------------------- shared


def test_what_a_batch_shares_does_not_depend_on_its_examples():
    """One row, whatever examples there are and however many; but on the step and the layer."""
    shape = (1, 6, 5)
    one, other = (seed_of(examples=e, layer=2).shared() for e in ([4, 9, 1], [7, 123456]))
    np.testing.assert_array_equal(draw(shape, 5, one), draw(shape, 5, other))
    np.testing.assert_array_equal(one.example_ids, [0])
    assert one.example_ids.dtype == jnp.uint32
    for changed in (seed_of(step=1, layer=2).shared(), seed_of(layer=3).shared()):
        assert np.any(draw(shape, 5, one) != draw(shape, 5, changed))
