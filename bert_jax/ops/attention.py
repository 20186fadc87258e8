"""Bidirectional attention: boolean masks, float32 softmax, a defined result for empty rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.ops.cross_entropy import MASKED_LOGIT
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.ops.linear import product
from bert_jax.parallel import specs


def segment_mask(segment_ids: Int[Array, "batch length"]) -> Bool[Array, "batch 1 length length"]:
    """Which key each query may see: those of its own segment. Segment 0 is padding.

    A padding mask is the case of one segment. Masks are composed as booleans: two additive
    masks of the smallest float would sum to -inf.
    """
    queries = segment_ids[:, None, :, None]
    keys = segment_ids[:, None, None, :]
    return (queries == keys) & (keys != 0)


def attention(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    value: Float[Array, "batch heads length head_dim"],
    mask: Bool[Array, "batch 1 length length"],
    *,
    dropout_rate: float = 0.0,
    seed: DropoutSeed | None = None,
    site: int = 0,
) -> Float[Array, "batch heads length head_dim"]:
    """Scaled dot-product attention.

    Scores are scaled by ``head_dim ** -.5`` and their softmax is taken in float32. A query that
    may see no key (padding) gets the zero vector and passes no gradient.

    Args:
        query: In the compute type, as ``key`` and ``value``.
        key: Keys.
        value: Values.
        mask: True where the query (third axis) may see the key (last axis).
        dropout_rate: Rate on the probabilities.
        seed: Dropout seed; None at evaluation.
        site: Dropout site.

    Returns:
        Weighted sums of values, in the compute type.
    """
    layout = (specs.BATCH, specs.TENSOR, None, None)
    scale = query.shape[-1] ** -0.5
    scores = product("bhqd,bhkd->bhqk", query * scale, key, *layout, result=jnp.float32)
    scores = jnp.where(mask, scores, MASKED_LOGIT)
    probabilities = jax.nn.softmax(scores, axis=-1)
    sees_any = jnp.any(mask, axis=-1, keepdims=True)
    probabilities = jnp.where(sees_any, probabilities, 0).astype(value.dtype)
    probabilities = dropout(probabilities, dropout_rate, seed, site)
    return product("bhqk,bhkd->bhqd", probabilities, value, *layout)
