"""Where a token stands: default position ids, sinusoids, rotary embeddings of queries and keys."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models.config import LearnedPositions, Positions


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
