"""From the tokens of a text to one vector, as sentence-transformers names the ways."""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

Pooling = Literal["cls", "mean", "max", "weighted_mean", "mean_sqrt_len"]


def pool(
    kind: Pooling,
    hidden: Float[Array, "batch length d"],
    segment_ids: Int[Array, "batch length"],
) -> Float32[Array, "batch d"]:
    """One vector a row, over its real tokens, in float32.

    Args:
        kind: ``cls``: the first token; ``mean``; ``max`` of every dimension; ``weighted_mean``: the
            k-th real token counts k (Muennighoff 2022, arXiv:2202.08904); ``mean_sqrt_len``: the
            sum divided by the square root of the number of tokens.
        hidden: Hidden states.
        segment_ids: 0 for padding.

    Returns:
        Vectors; zero for a row of padding only.
    """
    hidden = hidden.astype(jnp.float32)
    real = (segment_ids != 0).astype(jnp.float32)
    if kind == "cls":
        return jax.lax.index_in_dim(hidden, 0, axis=1, keepdims=False) * real[:, :1]
    if kind == "max":
        lowest = jnp.where(real[..., None] > 0, hidden, -jnp.inf)
        return jnp.where(jnp.any(real > 0, axis=1)[:, None], jnp.max(lowest, axis=1), 0)
    if kind not in ("mean", "weighted_mean", "mean_sqrt_len"):
        raise ValueError(f"pooling is {kind!r}; known are {', '.join(get_args(Pooling))}.")
    weights = real * jnp.cumsum(real, axis=1) if kind == "weighted_mean" else real
    total = jnp.sum(hidden * weights[..., None], axis=1)
    count = jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]
    return total / (jnp.sqrt(count) if kind == "mean_sqrt_len" else count)


def normalise(vectors: Float[Array, "batch d"]) -> Float[Array, "batch d"]:
    """Vectors of length 1; zero stays zero, with a finite gradient."""
    power = jnp.sum(vectors * vectors, axis=-1, keepdims=True)
    # The inner where keeps the square root's infinite slope at 0 out of the gradient.
    length = jnp.sqrt(jnp.where(power > 0, power, 1.0))
    return vectors / length
