"""Where a token stands: default position ids, sinusoids, rotary embeddings, linear biases."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from bert_jax.models.config import LearnedPositions, Positions
from bert_jax.parallel import specs


def default_position_ids(
    positions: Positions, real: Int[Array, "batch length"]
) -> Int[Array, "batch length"]:
    """Positions of tokens when the caller gives none.

    Args:
        positions: The scheme. With an offset (RoBERTa) only real tokens are counted and padding
            gets -1, the row before the first; otherwise positions are 0, 1, 2, ...
        real: 1 for real tokens, 0 for padding.
    """
    if isinstance(positions, LearnedPositions) and positions.offset > 0:
        return jnp.where(real != 0, jnp.cumsum(real, axis=-1) - 1, -1)
    return jnp.zeros_like(real) + jnp.arange(real.shape[-1])


def sinusoids(
    position_ids: Int[Array, "batch length"], width: int, theta: float
) -> Float[Array, "batch length width"]:
    """Fixed position embeddings, float32, sines and cosines interleaved.

    Entry 2 i is ``sin(p * theta ** (-2 i / width))``, entry 2 i + 1 its cosine (Vaswani et al.
    2017, section 3.5).
    """
    pair = jnp.arange(width, dtype=jnp.int32) // 2
    frequencies = jnp.power(jnp.float32(theta), pair.astype(jnp.float32) * (-2.0 / width))
    angles = position_ids.astype(jnp.float32)[..., None] * frequencies
    return jnp.where(jnp.arange(width) % 2 == 0, jnp.sin(angles), jnp.cos(angles))


def rotary_angles(
    position_ids: Int[Array, "batch length"], head_dim: int, theta: float
) -> tuple[Float[Array, "batch 1 length half"], Float[Array, "batch 1 length half"]]:
    """Cosine and sine of the rotation angles, float32.

    Angle of pair i at position p: ``p * theta ** (-2 i / head_dim)`` (Su et al. 2021, eq. 15).
    bfloat16 would merge neighbouring positions from 256 on, so angles are float32 always.
    """
    exponent = jnp.arange(head_dim // 2, dtype=jnp.float32) * (-2.0 / head_dim)
    frequencies = jnp.power(jnp.float32(theta), exponent)
    angles = position_ids.astype(jnp.float32)[:, None, :, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "batch heads length head_dim"],
    cosine: Float[Array, "batch 1 length half"],
    sine: Float[Array, "batch 1 length half"],
) -> Float[Array, "batch heads length head_dim"]:
    """Rotates each pair (i, i + head_dim / 2) of ``x``: the rotate-half layout of GPT-NeoX."""
    wide = x.astype(jnp.float32)
    first, second = jnp.split(wide, 2, axis=-1)
    turned = jnp.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine], axis=-1
    )
    return turned.astype(x.dtype)


def alibi_slopes(num_heads: int) -> Float[np.ndarray, "heads"]:
    """How steeply the scores of every head fall with the distance, float64.

    For a power of two n the geometric series ``2 ** (-8 i / n)``, i = 1 ... n. Otherwise the series
    of the power of two below, followed by every second entry, from the first on, of the series of
    twice that (ofirpress/attention_with_linear_biases, ``get_slopes``; mosaicml/examples,
    bert_layers.py): 12 heads have 2**-1 ... 2**-8, then 2**-.5, 2**-1.5, 2**-2.5, 2**-3.5.
    """

    def series(count: int) -> Float[np.ndarray, "count"]:
        return 2.0 ** (-8.0 * np.arange(1, count + 1) / count)

    below = 1 << (num_heads.bit_length() - 1)
    return np.concatenate([series(below), series(2 * below)[::2][: num_heads - below]])


def alibi_bias(
    position_ids: Int[Array, "batch length"], num_heads: int
) -> Float32[Array, "batch heads length length"]:
    """``-slope |p_i - p_j|``: what is added to the scaled score of query i and key j.

    In float32: bfloat16 would merge distances from 256 on.

    Args:
        position_ids: Positions; packed documents count their own.
        num_heads: Heads, each with its slope.
    """
    slopes = specs.constrain(jnp.asarray(alibi_slopes(num_heads), jnp.float32), specs.TENSOR)
    apart = jnp.abs(position_ids[:, :, None] - position_ids[:, None, :]).astype(jnp.float32)
    return -slopes[None, :, None, None] * apart[:, None]
