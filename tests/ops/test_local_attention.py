"""local_attention: the same numbers as dense attention with a window, in linear memory and time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.attention import attention, local_mask
from bert_jax.ops.dropout import DropoutSeed, random_bits
from bert_jax.ops.local_attention import block_length, local_attention
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

BATCH, HEADS, WIDTH = 2, 2, 4
QUICK = {"xla_backend_optimization_level": 0}
# (radius, length): a block more or less than whole, a window as wide as its block and narrower, a
# halo that meets both ends at once, no halo.
SIZES = [(64, 300), (64, 129), (64, 384), (40, 257), (3, 130), (1, 65), (0, 70), (32, 128)]


def inputs(length: int, dtype=jnp.float32, batch: int = BATCH):
    """query, key, value, segments: documents of uneven length, one that comes back, padding."""
    rng = np.random.default_rng(length)
    arrays = [jnp.asarray(rng.normal(0, 1, (batch, HEADS, length, WIDTH)), dtype) for _ in range(3)]
    places = np.arange(length)
    segments = np.stack([1 + (places * (b + 3) // 97) % 3 for b in range(batch)])
    segments[0, length - length // 5 :] = 0
    segments[-1, 20:23] = 0
    return [*arrays, jnp.asarray(segments, jnp.int32)]


def dense(query, key, value, segments, *, radius, direction="both", **kwargs):
    return attention(query, key, value, local_mask(segments, radius, direction), **kwargs)


def value_and_gradients(form, **kwargs):
    def loss(query, key, value, segments):
        out = form(query, key, value, segments, **kwargs)
        weights = jnp.cos(jnp.arange(out.shape[2], dtype=jnp.float32))[:, None]
        return jnp.sum(out.astype(jnp.float32) * weights), out

    def flat(*arguments):
        (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arguments)
        return out, *gradients

    return flat


@functools.cache
def compiled(form, radius: int, direction: str = "both"):
    function = value_and_gradients(form, radius=radius, direction=direction)
    return jax.jit(function, compiler_options=QUICK)


def assert_close(got, right):
    """1e-5 of the largest entry: the two sum in another order."""
    for a, b in zip(got, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize(("radius", "length"), SIZES)
def test_equals_dense_attention_with_a_window(radius, length):
    arguments = inputs(length)
    assert length > block_length(radius)  # or the dense form would be compared with itself
    assert_close(compiled(local_attention, radius)(*arguments), compiled(dense, radius)(*arguments))


@pytest.mark.parametrize(("radius", "length"), SIZES)
def test_to_the_left_it_equals_dense_attention_with_a_window(radius, length):
    """Causal: forward and backward."""
    arguments = inputs(length)
    got = compiled(local_attention, radius, "left")(*arguments)
    assert_close(got, compiled(dense, radius, "left")(*arguments))
    if radius:
        assert np.abs(got[0] - compiled(local_attention, radius)(*arguments)[0]).max() > 0.1


@pytest.mark.parametrize("direction", ["both", "left"])
@pytest.mark.parametrize("length", [1, 50, 64])
def test_a_row_of_one_block(length, direction):
    arguments = inputs(length)
    got = compiled(local_attention, 5, direction)(*arguments)
    assert_close(got, compiled(dense, 5, direction)(*arguments))


def reference(query, key, value, segments, radius, keep=None, direction="both"):
    """One query at a time, over the keys it may see, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    segments, out = np.asarray(segments), np.zeros(query.shape)
    for b, h, i in np.ndindex(query.shape[:3]):
        low, high = max(0, i - radius), i + 1 + (radius if direction == "both" else 0)
        seen = low + np.flatnonzero(segments[b, low:high] == segments[b, i])
        if segments[b, i] == 0:
            continue
        shares = np.exp(key[b, h, seen] @ query[b, h, i] / np.sqrt(query.shape[-1]))
        shares /= shares.sum()
        if keep is not None:
            shares = shares * [keep(b, h, i, j) for j in seen]
        out[b, h, i] = shares @ value[b, h, seen]
    return out


def test_equals_the_reference():
    arguments = inputs(150)
    out, *_ = compiled(local_attention, 10)(*arguments)
    np.testing.assert_allclose(out, reference(*arguments, 10), atol=2e-6)  # float32 sums of 21
    out, *_ = compiled(local_attention, 10, "left")(*arguments)
    np.testing.assert_allclose(out, reference(*arguments, 10, direction="left"), atol=2e-6)


@pytest.mark.parametrize(("radius", "visible"), [(64, 129), (10, 21)])
def test_a_window_of_equal_scores_is_a_mean(radius, visible):
    """ModernBERT's window of 128 shows 129 places: 64 to either side and the query's own."""
    length = 400
    value = jnp.eye(length)[None, None]
    same = jnp.zeros_like(value)
    out = local_attention(same, same, value, jnp.ones((1, length), jnp.int32), radius=radius)
    middle = np.asarray(out[0, 0, 200])
    assert np.count_nonzero(middle) == visible
    np.testing.assert_allclose(middle[200 - radius : 201 + radius], 1 / visible, rtol=1e-6)
    assert np.count_nonzero(out[0, 0, 0]) == radius + 1
    segments = jnp.ones((1, length), jnp.int32)
    out = local_attention(same, same, value, segments, radius=radius, direction="left")
    np.testing.assert_array_equal(np.flatnonzero(out[0, 0, 200]), np.arange(200 - radius, 201))
    assert np.count_nonzero(out[0, 0, 0]) == 1


def test_what_sees_nothing_is_zero_and_passes_no_gradient():
    arguments = inputs(300)
    padding = np.asarray(arguments[3] == 0)[:, None].repeat(HEADS, 1)
    assert padding.sum() > 100
    for array in compiled(local_attention, 64)(*arguments):
        assert np.isfinite(array).all()
        np.testing.assert_array_equal(np.asarray(array)[padding], 0)
    empty = compiled(local_attention, 64)(*arguments[:3], jnp.zeros_like(arguments[3]))
    for array in empty:
        np.testing.assert_array_equal(array, 0)


def test_bfloat16_is_float32_but_for_rounding():
    narrow = inputs(300, jnp.bfloat16)
    wide = [x.astype(jnp.float32) for x in narrow[:3]]
    got = compiled(local_attention, 64)(*narrow)
    right = compiled(local_attention, 64)(*wide, narrow[3])
    for a, b in zip(got, right, strict=True):
        assert a.dtype == jnp.bfloat16
        difference = np.linalg.norm(np.asarray(a, np.float32) - b)
        assert difference < 4 * 2**-8 * np.linalg.norm(b)  # four roundings on the way


def test_dropout_acts_on_the_probabilities():
    radius, length, rate = 3, 150, 0.3
    arguments, width = inputs(length), block_length(radius)
    seed = DropoutSeed.from_key(jax.random.key(0, impl="threefry2x32"), jnp.arange(BATCH))
    shape = (BATCH, HEADS, -(-length // width), width, width + 2 * radius)
    kept = np.asarray(random_bits(seed, 2, jnp.zeros(shape))) >= round(rate * 2**32)

    def keep(b, h, i, j):
        block = i // width
        return kept[b, h, block, i % width, j - block * width + radius] / (1 - rate)

    out = local_attention(*arguments, radius=radius, dropout_rate=rate, seed=seed, site=2)
    np.testing.assert_allclose(out, reference(*arguments, radius, keep), atol=5e-6)
    assert np.abs(out - compiled(local_attention, radius)(*arguments)[0]).max() > 0.1


# ----------------------------------------------------------------------------- under a mesh


@functools.cache
def on_one_device(direction: str = "both"):
    """Batch 8 so that 2 x 2 x 2 devices share it; radius 5, three blocks."""
    arguments = inputs(150, batch=8)
    return arguments, compiled(local_attention, 5, direction)(*arguments)


@pytest.mark.parametrize(
    ("shape", "direction"),
    [(MeshShape(8), "both"), (MeshShape(2, 2, 2), "both"), (MeshShape(2, 2, 2), "left")],
)
def test_under_a_mesh(shape, direction):
    arguments, right = on_one_device(direction)
    with jax.set_mesh(make_mesh(shape)):
        laid_out = [jax.device_put(x, specs.spec(*specs.HEADS)) for x in arguments[:3]]
        segments = jax.device_put(arguments[3], specs.spec(*specs.TOKENS))
        form = value_and_gradients(local_attention, radius=5, direction=direction)
        function = jax.jit(form, compiler_options=QUICK)
        got = function(*laid_out, segments)
        for array in got:
            assert jax.typeof(array).sharding.spec == specs.spec(*specs.HEADS)
        text = function.lower(*laid_out, segments).compile().as_text()
    assert_close(got, right)
    for name in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert name not in text  # every device works on its own rows and heads


def test_inside_a_manual_region():
    arguments, right = on_one_device()
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        rows = jax.P(specs.BATCH)
        function = jax.shard_map(
            value_and_gradients(local_attention, radius=5),
            in_specs=(rows,) * 4, out_specs=(rows,) * 4, axis_names=set(specs.BATCH),
        )  # fmt: skip
        laid_out = [jax.device_put(x, specs.spec(*specs.HEADS)) for x in arguments[:3]]
        segments = jax.device_put(arguments[3], specs.spec(*specs.TOKENS))
        got = jax.jit(function, compiler_options=QUICK)(*laid_out, segments)
    assert_close(got, right)


# ------------------------------------------------------------------------------- cost


@functools.cache
def cost(form, length: int):
    """(bytes of temporaries, floating-point operations) of forward and backward."""
    array = jax.ShapeDtypeStruct((1, 1, length, WIDTH), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, length), jnp.int32)
    function = jax.jit(value_and_gradients(form, radius=64), compiler_options=QUICK)
    program = function.lower(array, array, array, segments).compile()
    return program.memory_analysis().temp_size_in_bytes, program.cost_analysis()["flops"]


def test_memory_and_work_are_linear_in_the_length():
    """Twice the length: twice both, against four times for the dense form."""
    for short, long in zip(cost(local_attention, 4096), cost(local_attention, 8192), strict=True):
        assert 1.9 < long / short < 2.1
    for short, long in zip(cost(dense, 4096), cost(dense, 8192), strict=True):
        assert 3.8 < long / short < 4.2
    assert cost(local_attention, 8192)[0] < cost(dense, 8192)[0] / 20  # 8192 / 256 is 32


def test_length_8192():
    """It runs, and queries at ends, block borders and in between have the reference's values."""
    arguments = inputs(8192)
    out, *gradients = compiled(local_attention, 64)(*arguments)
    assert all(np.isfinite(g).all() for g in gradients)
    for place in (0, 127, 128, 4100, 6000):
        low = max(0, place - 64)
        window = slice(low, place + 65)
        cut = [x[:, :, window] for x in arguments[:3]]
        right = reference(*cut, arguments[3][:, window], 64)[:, :, place - low]
        np.testing.assert_allclose(out[:, :, place], right, atol=2e-6)


def test_block_length():
    assert [block_length(r) for r in (0, 1, 32, 33, 64, 65, 128)] == [
        64,
        64,
        64,
        128,
        128,
        192,
        256,
    ]
    assert all(block_length(r) >= r for r in range(500))  # a halo is one neighbour's


def test_negative_radius():
    with pytest.raises(ValueError, match=r"radius is -1; it must be at least 0"):
        local_attention(*inputs(10), radius=-1)
