"""Pooling and normalisation: closed forms, padding, rows without tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.pooling import normalise, pool

# Two tokens [1, -4] and [3, 2], then padding that must not count; one token; padding only.
HIDDEN = jnp.asarray(
    [[[1.0, -4.0], [3.0, 2.0], [9.0, 9.0]], [[2.0, -1.0], [9.0, 9.0], [9.0, 9.0]], [[9.0] * 2] * 3]
)
SEGMENTS = jnp.asarray([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
RIGHT = {
    "cls": [[1, -4], [2, -1], [0, 0]],
    "mean": [[2, -1], [2, -1], [0, 0]],
    "max": [[3, 2], [2, -1], [0, 0]],
    "weighted_mean": [[7 / 3, 0], [2, -1], [0, 0]],  # (1 * first + 2 * second) / 3
    "mean_sqrt_len": [[4 / math.sqrt(2), -2 / math.sqrt(2)], [2, -1], [0, 0]],
}


@pytest.mark.parametrize(("kind", "right"), RIGHT.items())
def test_pooling(kind, right):
    np.testing.assert_allclose(pool(kind, HIDDEN, SEGMENTS), right, rtol=1e-6)


@pytest.mark.parametrize("kind", RIGHT)
def test_gradients_are_finite_and_zero_at_padding(kind):
    grad = jax.grad(lambda h: jnp.sum(pool(kind, h, SEGMENTS)))(HIDDEN)
    assert np.isfinite(grad).all()
    assert np.all(np.asarray(grad)[np.asarray(SEGMENTS) == 0] == 0)
    assert np.asarray(grad)[0].any()


def test_pooling_of_bfloat16_is_float32():
    """A mean of 513 ones: a bfloat16 sum would stop at 256."""
    ones = jnp.ones((1, 513, 1), jnp.bfloat16)
    pooled = pool("mean", ones, jnp.ones((1, 513), jnp.int32))
    assert pooled.dtype == jnp.float32
    np.testing.assert_allclose(pooled, [[1.0]], rtol=1e-6)


def test_unit_length_and_zero():
    vectors = jnp.asarray([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(normalise(vectors), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda v: normalise(v).sum())(vectors)).all()
