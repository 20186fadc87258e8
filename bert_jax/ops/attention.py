"""Attention: boolean masks, float32 softmax, a defined result for empty rows."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from bert_jax.ops.cross_entropy import MASKED_LOGIT
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.ops.linear import product
from bert_jax.parallel import specs

# What a query that may see no key takes: nothing (``zero``), or an equal share of every key, masked
# ones too, as in libraries that fill masked scores with the smallest float (``uniform``) or add it
# to them (``added``: the scores are lost in it, but still get a gradient).
Empty = Literal["zero", "uniform", "added"]
# Which keys a query may see: those on both sides, or none that follows it (causal).
Direction = Literal["both", "left"]


def segment_mask(segment_ids: Int[Array, "batch length"]) -> Bool[Array, "batch 1 length length"]:
    """Which key each query may see: those of its own segment. Segment 0 is padding.

    A padding mask is the case of one segment. Masks are composed as booleans: two additive
    masks of the smallest float would sum to -inf.
    """
    queries = segment_ids[:, None, :, None]
    keys = segment_ids[:, None, None, :]
    return (queries == keys) & (keys != 0)


def row_mask(segment_ids: Int[Array, "batch length"]) -> Bool[Array, "batch 1 length length"]:
    """`segment_mask`, and padding sees every real token of its row (as in transformers).

    Padding is seen by none either way; what it sees matters only to heads that normalise over a
    whole row, padding included, as the loss of spans there does.
    """
    padding = (segment_ids == 0)[:, None, :, None]
    return segment_mask(segment_ids) | (padding & (segment_ids != 0)[:, None, None, :])


def window_mask(length: int, radius: int) -> Bool[np.ndarray, "length length"]:
    """Pairs of places at most ``radius`` apart."""
    places = np.arange(length)
    return np.abs(places[:, None] - places) <= radius


def left_mask(length: int) -> Bool[np.ndarray, "length length"]:
    """Pairs of places whose key does not follow the query: what a causal model may see."""
    places = np.arange(length)
    return places[:, None] >= places


def local_mask(
    segment_ids: Int[Array, "batch length"], radius: int, direction: Direction = "both"
) -> Bool[Array, "batch 1 length length"]:
    """`segment_mask` within a window: query i sees key j only if ``|i - j| <= radius``.

    With ``direction`` ``left`` only if ``j <= i`` too. Distances are counted in places of the row.
    The mask holds ``length ** 2`` cells; long rows take `bert_jax.ops.local_attention`, which holds
    none.
    """
    length = segment_ids.shape[1]
    seen = segment_mask(segment_ids) & window_mask(length, radius)
    return seen & left_mask(length) if direction == "left" else seen


def masked_softmax(
    scores: Float32[Array, "*rows keys"], mask: Bool[Array, "..."], empty: Empty = "zero"
) -> Float32[Array, "*rows keys"]:
    """Softmax over the keys that ``mask`` (broadcast) shows; `Empty` says what if it shows none."""
    masked = MASKED_LOGIT
    if empty == "added":
        masked = MASKED_LOGIT + (scores - jax.lax.stop_gradient(scores))
    shares = jax.nn.softmax(jnp.where(mask, scores, masked), axis=-1)
    if empty != "zero":  # equal scores, equal shares
        return shares
    return jnp.where(jnp.any(mask, axis=-1, keepdims=True), shares, 0)


def attention_probabilities(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch heads keys head_dim"],
    mask: Bool[Array, "batch 1 queries keys"],
    *,
    bias: Float32[Array, "batch heads queries keys"] | None = None,
    scale: float | None = None,
    empty: Empty = "zero",
) -> Float32[Array, "batch heads queries keys"]:
    """How much each query takes of each key: the numbers `attention` weighs values with.

    Args:
        query: In the compute type, as ``key``.
        key: Keys.
        mask: True where the query (third axis) may see the key (last axis).
        bias: Added to the scaled scores before masking; already scaled.
        scale: Factor of the products of queries and keys; ``head_dim ** -.5`` by default.
        empty: Of a query that sees nothing; see `Empty`.

    Returns:
        Probabilities.
    """
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = product("bhqd,bhkd->bhqk", query * factor, key, *specs.HEADS, result=jnp.float32)
    return masked_softmax(scores if bias is None else scores + bias, mask, empty)


def attention(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch heads keys head_dim"],
    value: Float[Array, "batch heads keys head_dim"],
    mask: Bool[Array, "batch 1 queries keys"],
    *,
    bias: Float32[Array, "batch heads queries keys"] | None = None,
    scale: float | None = None,
    empty: Empty = "zero",
    dropout_rate: float = 0.0,
    seed: DropoutSeed | None = None,
    site: int = 0,
) -> Float[Array, "batch heads queries head_dim"]:
    """Scaled dot-product attention.

    Scores and their softmax are in float32. A query that may see no key (padding) gets the zero
    vector and passes no gradient, unless ``empty`` says otherwise.

    Args:
        query: In the compute type, as ``key`` and ``value``.
        key: Keys.
        value: Values.
        mask: True where the query (third axis) may see the key (last axis).
        bias: Added to the scaled scores before masking; already scaled.
        scale: Factor of the products of queries and keys; ``head_dim ** -.5`` by default.
        empty: Of a query that sees nothing; see `Empty`.
        dropout_rate: Rate on the probabilities.
        seed: Dropout seed; None at evaluation.
        site: Dropout site.

    Returns:
        Weighted sums of values, in the compute type.
    """
    shares = attention_probabilities(query, key, mask, bias=bias, scale=scale, empty=empty)
    shares = dropout(shares.astype(value.dtype), dropout_rate, seed, site)
    return product("bhqk,bhkd->bhqd", shares, value, *specs.HEADS)
