"""attention: against a slow reference, with rows that see nothing, in bfloat16, with dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.attention import (
    attention,
    attention_probabilities,
    left_mask,
    local_mask,
    masked_softmax,
    row_mask,
    segment_mask,
)
from bert_jax.ops.dropout import DropoutSeed, random_bits

BATCH, HEADS, LENGTH, WIDTH = 3, 2, 7, 4


def qkv(scale: float = 1.0) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    return [jnp.asarray(rng.normal(0, scale, shape), jnp.float32) for _ in range(3)]


@pytest.fixture(scope="module")
def mask() -> jax.Array:
    """Half of all cells; row 1 of example 0 and all of example 2 see nothing."""
    cells = np.random.default_rng(1).random((BATCH, 1, LENGTH, LENGTH)) < 0.5
    cells[..., 0] = True
    cells[0, :, 1] = False
    cells[2] = False
    return jnp.asarray(cells)


def reference(query, key, value, mask, keep=None, bias=None, scale=WIDTH**-0.5):
    """One query at a time, over the keys it may see, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros_like(query)
    for b, h, q in np.ndindex(query.shape[:3]):
        seen = np.flatnonzero(mask[b, 0, q])
        if len(seen):
            scores = key[b, h, seen] @ query[b, h, q] * scale
            if bias is not None:
                scores = scores + np.asarray(bias, np.float64)[b, h, q, seen]
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            if keep is not None:
                shares = shares * keep[b, h, q, seen]
            out[b, h, q] = shares @ value[b, h, seen]
    return out


attend = jax.jit(attention, static_argnames=("dropout_rate", "site", "scale"))


@jax.jit
def gradients(query, key, value, mask):
    def loss(query, key, value):
        out = attention(query, key, value, mask).astype(jnp.float32)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))

    return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)


def test_equals_the_reference(mask):
    arrays = qkv()
    np.testing.assert_allclose(attend(*arrays, mask), reference(*arrays, mask), atol=2e-6)


def test_bias_and_scale(mask):
    """The bias is added as it is, after the scale and before the mask."""
    arrays = qkv()
    rng = np.random.default_rng(3)
    bias = jnp.asarray(rng.normal(0, 2, (BATCH, HEADS, LENGTH, LENGTH)), jnp.float32)
    out = attend(*arrays, mask, bias=bias, scale=0.3)
    np.testing.assert_allclose(out, reference(*arrays, mask, bias=bias, scale=0.3), atol=2e-6)
    np.testing.assert_array_equal(out[0, :, 1], 0)
    np.testing.assert_array_equal(out[2], 0)


def test_gradient_of_the_bias_is_that_of_the_scores(mask):
    """Softmax: rows of the gradient sum to zero; hidden cells and empty rows get none."""
    arrays = qkv()
    weights = jnp.cos(jnp.arange(arrays[0].size, dtype=jnp.float32)).reshape(arrays[0].shape)
    zero = jnp.zeros((BATCH, HEADS, LENGTH, LENGTH))
    d_bias = jax.grad(lambda b: jnp.sum(attention(*arrays, mask, bias=b) * weights))(zero)
    shares = attention_probabilities(*arrays[:2], mask)
    wanted = jnp.einsum("bhqd,bhkd->bhqk", weights, arrays[2])
    right = shares * (wanted - jnp.sum(shares * wanted, -1, keepdims=True))
    np.testing.assert_allclose(d_bias, right, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(d_bias)[~np.asarray(mask).repeat(HEADS, 1)], 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_probabilities_are_what_values_are_weighed_with(mask, dtype):
    query, key, _ = (x.astype(dtype) for x in qkv())
    shares = attention_probabilities(query, key, mask)
    assert shares.dtype == jnp.float32
    seen = np.asarray(mask).repeat(HEADS, 1)
    np.testing.assert_array_equal(np.asarray(shares)[~seen], 0)
    np.testing.assert_allclose(shares.sum(-1), seen.any(-1), atol=1e-6)
    # Values that are the identity; zeros beside the others make them as wide.
    query, key = (jnp.pad(x, [(0, 0)] * 3 + [(0, LENGTH - WIDTH)]) for x in (query, key))
    identity = jnp.broadcast_to(jnp.eye(LENGTH, dtype=dtype), query.shape)
    out = attend(query, key, identity, mask, scale=WIDTH**-0.5)
    np.testing.assert_array_equal(out, shares.astype(dtype))


def test_fewer_queries_than_keys(mask):
    query, key, value = qkv()
    few = attend(query[:, :, 2:5], key, value, mask[:, :, 2:5])
    np.testing.assert_allclose(few, attend(query, key, value, mask)[:, :, 2:5], atol=1e-6)


def test_gradients_equal_finite_differences(mask):
    """Central differences of the float64 reference along random directions."""
    arrays = [np.asarray(x, np.float64) for x in qkv()]
    got = gradients(*(jnp.asarray(x, jnp.float32) for x in arrays), mask)
    weights = np.cos(np.arange(arrays[0].size)).reshape(arrays[0].shape)
    rng = np.random.default_rng(2)
    for place in range(3):
        direction = rng.normal(0, 1, arrays[0].shape)
        moved = []
        for step in (1e-5, -1e-5):
            shifted = list(arrays)
            shifted[place] = arrays[place] + step * direction
            moved.append((reference(*shifted, mask) * weights).sum())
        slope = (moved[0] - moved[1]) / 2e-5
        np.testing.assert_allclose((np.asarray(got[place]) * direction).sum(), slope, rtol=2e-5)


def test_a_row_that_sees_nothing_is_zero_and_passes_no_gradient(mask):
    arrays = qkv()
    out = attend(*arrays, mask)
    np.testing.assert_array_equal(out[0, :, 1], 0)
    np.testing.assert_array_equal(out[2], 0)
    d_query, d_key, d_value = gradients(*arrays, mask)
    for gradient in (d_query, d_key, d_value):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[2], 0)
    np.testing.assert_array_equal(d_query[0, :, 1], 0)
    unseen = ~np.asarray(mask).any(axis=2)[:, 0]  # keys that no query sees
    np.testing.assert_array_equal(np.asarray(d_key)[unseen[:, None].repeat(HEADS, 1)], 0)


def test_hidden_keys_change_nothing(mask):
    """Not even infinities of the smallest size that a product can make of them."""
    query, key, value = qkv()
    hidden = jnp.zeros((BATCH, 1, LENGTH, LENGTH), bool).at[:, :, :, 3:].set(True)
    junk = jnp.zeros((LENGTH, WIDTH)).at[3:].set(1e4)
    before = attend(query, key, value, ~hidden)
    after = attend(query, key + junk, value + junk, ~hidden)
    np.testing.assert_allclose(before, after, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_great_scores_stay_finite(mask, dtype):
    arrays = [x.astype(dtype) for x in qkv(scale=100.0)]
    out = attend(*arrays, mask)
    assert out.dtype == dtype
    assert np.isfinite(out).all()
    assert all(np.isfinite(g).all() for g in gradients(*arrays, mask))


def test_bfloat16_is_float32_but_for_rounding(mask):
    """Forward and backward, which must also run at all in bfloat16 on a CPU."""
    arrays = [x.astype(jnp.bfloat16) for x in qkv()]
    wide = [x.astype(jnp.float32) for x in arrays]
    got = [attend(*arrays, mask), *gradients(*arrays, mask)]
    right = [attend(*wide, mask), *gradients(*wide, mask)]
    for narrow, exact in zip(got, right, strict=True):
        assert narrow.dtype == jnp.bfloat16
        difference = np.linalg.norm(np.asarray(narrow, np.float32) - exact)
        assert difference < 4 * 2**-8 * np.linalg.norm(exact)  # four roundings on the way


def test_dropout_acts_on_the_probabilities(mask):
    query, key, value = qkv()
    seed = DropoutSeed.from_key(jax.random.key(0, impl="threefry2x32"), jnp.arange(BATCH))
    bits = random_bits(seed, 2, jnp.zeros((BATCH, HEADS, LENGTH, LENGTH)))
    keep = (np.asarray(bits) >= round(0.3 * 2**32)) / 0.7
    out = attend(query, key, value, mask, dropout_rate=0.3, seed=seed, site=2)
    np.testing.assert_allclose(out, reference(query, key, value, mask, keep), atol=5e-6)
    assert np.abs(out - attend(query, key, value, mask)).max() > 0.1


def test_order_of_keys_does_not_matter():
    query, key, value = qkv()
    everything = jnp.ones((BATCH, 1, LENGTH, LENGTH), bool)
    order = jnp.asarray([3, 0, 6, 1, 2, 5, 4])
    moved = attend(query, key[:, :, order], value[:, :, order], everything)
    np.testing.assert_allclose(moved, attend(query, key, value, everything), atol=1e-6)


def test_segment_mask():
    """Segments 1 1 2, a segment that comes back, and padding."""
    seen = segment_mask(jnp.asarray([[1, 1, 2, 1, 0]]))
    assert seen.dtype == jnp.bool_
    expected = [
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 0],
        [0, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(seen, np.asarray(expected, bool)[None, None])


@pytest.mark.parametrize("direction", ["both", "left"])
@pytest.mark.parametrize("radius", [0, 1, 3, 9])
def test_local_mask(radius, direction):
    segments = np.asarray([[1, 1, 1, 2, 2, 1, 0, 0], [1] * 8])
    seen = local_mask(jnp.asarray(segments), radius, direction)
    assert seen.shape == (2, 1, 8, 8) and seen.dtype == jnp.bool_
    for b, i, j in np.ndindex(2, 8, 8):
        own = segments[b, i] == segments[b, j] != 0
        near = abs(i - j) <= radius and (direction == "both" or j <= i)
        assert bool(seen[b, 0, i, j]) == (own and near)


def test_left_mask():
    """A token sees itself and what precedes it."""
    np.testing.assert_array_equal(left_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_padding_and_segments_compose_without_infinities():
    """All masks on one cell (padding, another segment): additive masks would give -inf (P40)."""
    arrays = [x.astype(jnp.bfloat16) for x in qkv()]
    segments = jnp.asarray([[1, 1, 2, 2, 0, 0, 0], [0] * 7, [1, 2, 3, 4, 5, 6, 7]])
    out = attend(*arrays, segment_mask(segments))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[1], 0)
    np.testing.assert_array_equal(out[0, :, 4:], 0)
    np.testing.assert_array_equal(out[2], arrays[2][2])  # each token sees itself only


def test_padding_that_sees_its_row():
    """As in transformers: padding sees every real token of the row, of any document."""
    segments = np.asarray([[1, 2, 2, 0, 0], [0] * 5])
    seen = np.asarray(row_mask(jnp.asarray(segments)))[:, 0]
    for b, i, j in np.ndindex(2, 5, 5):
        if segments[b, i] == 0:
            assert seen[b, i, j] == (segments[b, j] != 0)
        else:
            assert seen[b, i, j] == (segments[b, i] == segments[b, j])


@pytest.mark.parametrize(("empty", "learns"), [("uniform", False), ("added", True)])
def test_a_query_that_sees_nothing_may_take_an_equal_share_of_all(empty, learns):
    """Filling and adding the smallest float differ in the gradient of the scores only."""
    scores = jnp.asarray([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    mask = jnp.asarray([[True, True, False], [False, False, False]])
    shares = masked_softmax(scores, mask, empty)
    first = np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum()
    np.testing.assert_allclose(shares, [[*first, 0], [1 / 3] * 3], rtol=1e-6)
    weights = jnp.asarray([1.0, 5.0, 9.0])
    gradient = jax.grad(lambda s: jnp.sum(masked_softmax(s, mask, empty)[1] * weights))(scores)
    right = (np.asarray(weights) - 5) / 3 if learns else np.zeros(3)  # p (w - mean of w)
    np.testing.assert_allclose(gradient, [np.zeros(3), right], atol=1e-6)
