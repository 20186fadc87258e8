"""Sliding-window attention whose time and memory grow linearly with the length.

Queries are taken in blocks of w; a block sees its own keys and a *halo* of ``radius`` keys on
either side, so one product of w queries with ``w + 2 radius`` keys holds all a block can see (on
the left only, ``w + radius`` keys, where attention is causal).
The window is that of Longformer (arXiv:2004.05150) and of ModernBERT's local layers
(arXiv:2412.13663, window 128: radius 64). Only slices, concatenations and dense products: no
gather, and nothing of size length x length. docs/design-notes/attention-forms.md has the
comparison with other forms.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.ops.attention import Direction, attention, local_mask, masked_softmax
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.ops.linear import product
from bert_jax.parallel import specs

_BLOCK_MULTIPLE = 64  # w and w + 2 radius then fill lanes of 128 where 2 radius is a multiple of 64
_OUTSIDE = -1  # segment of the halo beyond a row's ends: equals no segment, padding (0) included
_BLOCKS = (specs.BATCH, specs.TENSOR, None, None, None)


def block_length(radius: int) -> int:
    """Queries a block, w: the window's width rounded up to a multiple of 64, at least 64.

    A block computes ``w (w + 2 radius)`` scores of which ``w (2 radius + 1)`` are used; at
    w = 2 radius half are. Smaller blocks waste less and make the products too narrow.

    Args:
        radius: How far a query sees, in places; at least 0.
    """
    return max(1, -(-2 * radius // _BLOCK_MULTIPLE)) * _BLOCK_MULTIPLE


def local_attention(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    value: Float[Array, "batch heads length head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    radius: int,
    direction: Direction = "both",
    dropout_rate: float = 0.0,
    seed: DropoutSeed | None = None,
    site: int = 0,
) -> Float[Array, "batch heads length head_dim"]:
    """Attention of query i to the keys j of its segment with ``|i - j| <= radius``.

    With ``direction`` ``left`` only to those with ``j <= i``. Equals ``attention(query, key, value,
    local_mask(segment_ids, radius, direction))`` but for rounding and for which probabilities
    dropout hits. That dense form is also what runs where the row is no
    longer than one block, since it is the smaller one there.

    Args:
        query: In the compute type, as ``key`` and ``value``; of any length.
        key: Keys.
        value: Values.
        segment_ids: Segment of every token, at least 0; 0 is padding, which neither sees nor is
            seen: it gets the zero vector and passes no gradient.
        radius: How far a query sees to either side, in places: ``2 radius + 1`` keys at most.
        direction: ``left``: no key that follows the query, so ``radius + 1`` keys at most.
        dropout_rate: Rate on the probabilities.
        seed: Dropout seed; None at evaluation.
        site: Dropout site.

    Returns:
        Weighted sums of values, in the compute type.

    Raises:
        ValueError: If ``radius`` is negative.
    """
    if radius < 0:
        raise ValueError(f"radius is {radius}; it must be at least 0 (each token sees itself).")
    length, width = query.shape[2], block_length(radius)
    if length <= width:
        return attention(
            query, key, value, local_mask(segment_ids, radius, direction),
            dropout_rate=dropout_rate, seed=seed, site=site,
        )  # fmt: skip
    scaled = query * query.shape[-1] ** -0.5
    queries, keys, values = (_blocks(x, width, *_BLOCKS) for x in (scaled, key, value))
    segments = _blocks(segment_ids[:, None, :, None], width, specs.BATCH, None, None, None, None)
    after = radius if direction == "both" else 0
    keys, values = (_with_halo(x, radius, after, 0) for x in (keys, values))
    seen = _mask(segments, radius, after)
    scores = product("bhnqd,bhnkd->bhnqk", queries, keys, *_BLOCKS, result=jnp.float32)
    shares = masked_softmax(scores, seen).astype(value.dtype)
    shares = dropout(shares, dropout_rate, seed, site)
    context = product("bhnqk,bhnkd->bhnqd", shares, values, *_BLOCKS)
    batch, heads, blocks, _, head_dim = context.shape
    flat = (batch, heads, blocks * width, head_dim)
    return specs.reshape(context, flat, *specs.HEADS)[:, :, :length]


def _blocks(x: Array, width: int, *layout: specs.Axis) -> Array:
    """(batch, heads, length, d) as (batch, heads, blocks, width, d), zeros after the end.

    Zero is also the segment of padding, so what is added sees nothing and is not seen.
    """
    batch, heads, length, d = x.shape
    blocks = -(-length // width)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, blocks * width - length), (0, 0)))
    return specs.reshape(x, (batch, heads, blocks, width, d), *layout)


def _with_halo(x: Array, before: int, after: int, fill: int) -> Array:
    """Every block with the last places of the one before and the first of the next.

    Args:
        x: (batch, heads, blocks, width, d).
        before: Places of the block before, at most ``width``.
        after: Places of the next block, at most ``width``.
        fill: What stands beyond the first and the last block.
    """
    pieces = [x]
    if before:
        outside = jnp.full_like(x[:, :, :1, :before], fill)
        pieces = [jnp.concatenate([outside, x[:, :, :-1, -before:]], axis=2), x]
    if after:
        outside = jnp.full_like(x[:, :, :1, :after], fill)
        pieces.append(jnp.concatenate([x[:, :, 1:, :after], outside], axis=2))
    return jnp.concatenate(pieces, axis=3)


def _mask(segments: Array, before: int, after: int) -> Array:
    """(batch, 1, blocks, width, before + width + after): which key of its halo each query sees."""
    width = segments.shape[3]
    keys = jnp.swapaxes(_with_halo(segments, before, after, _OUTSIDE), 3, 4)
    distance = np.arange(width)[:, None] - (np.arange(before + width + after) - before)
    seen = (-after <= distance) & (distance <= before)
    return (segments == keys) & (segments != 0) & seen
