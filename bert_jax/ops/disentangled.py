"""Disentangled attention: scores between contents and relative positions (DeBERTa).

He et al. 2021 (arXiv:2006.03654, equation 4) add to the product of contents two terms, "content
to position" and "position to content", that read a table of relative positions at a row which
depends on i - j alone. Both read the *same* row: the released code looks the second one up at
-(j - i), clipped alike. Version 3 (arXiv:2111.09543) shares the table's projections with those of
the contents, and buckets great distances logarithmically as version 2 does.

The row of each pair is known on the host, so reading it is either a gather or a product with a
constant one-hot array. docs/design-notes/attention-forms.md says which is chosen where, and why.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from bert_jax.ops.linear import product
from bert_jax.parallel import specs

Form = Literal["gather", "one_hot"]
_LANES = 128  # reachable rows are rounded up to what fills the lanes of a TPU


def relative_buckets(
    length: int, *, buckets: int, max_distance: int
) -> Int32[np.ndarray, "length length"]:
    """Row of the relative table for every pair (query i, key j), from ``d = i - j``.

    With ``buckets`` = K > 0, distances up to ``K // 2`` have a row each and greater ones share
    rows that grow geometrically up to ``max_distance``; with 0, every distance has its row and
    K is ``max_distance``. The row is ``bucket(d) + K``, clipped to the table's ``2 K`` rows.

    Args:
        length: Tokens of a row.
        buckets: K of versions 2 and 3 (256 in the released models), or 0 as in version 1.
        max_distance: The distance at which buckets end (512 in the released models).

    Returns:
        Rows in ``[0, 2 K)``. Equal to PyTorch's float32 arithmetic for ``|d| < 2048`` at the
        released sizes (the test holds its numbers).

    Raises:
        ValueError: For sizes that define no buckets.
    """
    if length < 1 or max_distance < 1 or buckets < 0:
        raise ValueError(
            f"length {length}, max_distance {max_distance}, buckets {buckets}: the first two must "
            f"be at least 1, the last at least 0."
        )
    distances = np.arange(1 - length, length)
    half = buckets or max_distance
    signed = _log_bucket(distances, buckets, max_distance) if buckets else distances
    row_of = np.clip(signed + half, 0, 2 * half - 1).astype(np.int32)
    places = np.arange(length)
    return row_of[places[:, None] - places + length - 1]


def _log_bucket(distance: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Signed bucket of a signed distance.

    Beyond ``m = buckets // 2``: ``m + ceil((m - 1) log(|d| / m) / log((max_distance - 1) / m))``.
    """
    middle = buckets // 2
    if middle < 1 or max_distance - 1 <= middle:
        raise ValueError(
            f"buckets {buckets} with max_distance {max_distance}: half the buckets must be at "
            f"least 1 and less than max_distance - 1; change one of them."
        )
    far = np.maximum(np.abs(distance), middle) / middle
    steps = np.log(far) / np.log((max_distance - 1) / middle) * (middle - 1)
    signed = np.sign(distance) * (middle + np.ceil(steps)).astype(np.int64)
    return np.where(np.abs(distance) <= middle, distance, signed)


def disentangled_bias(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    position_key: Float[Array, "rows heads head_dim"] | None,
    position_query: Float[Array, "rows heads head_dim"] | None,
    indices: Int32[np.ndarray, "length length"],
    *,
    form: Form,
) -> Float32[Array, "batch heads length length"]:
    """The position terms of the scores, not scaled.

    ``c2p[i, j] = query_i . position_key[indices[i, j]]`` and
    ``p2c[i, j] = key_j . position_query[indices[i, j]]``. Add it, times
    ``(head_dim (1 + terms)) ** -.5``, to the contents' product with the same scale.

    In bfloat16 a product with the table is rounded once before it is read, in both forms alike;
    their sum and all gradients' sums are float32.

    Args:
        query: In the compute type, as ``key``; not scaled.
        key: Keys.
        position_key: The relative table under the map of the keys, split over heads; None leaves
            c2p out.
        position_query: The same under the map of the queries; None leaves p2c out.
        indices: From `relative_buckets`; a constant of the program.
        form: ``gather`` reads rows by index; ``one_hot`` by a product with a constant, without
            gather or scatter in the program, forward or backward.

    Raises:
        ValueError: If both tables are None, or an index lies outside a table.
    """
    tables = [table for table in (position_key, position_query) if table is not None]
    if not tables:
        raise ValueError("position_key and position_query are both None; give at least one.")
    first, last = int(indices.min()), int(indices.max())
    rows = min(table.shape[0] for table in tables)
    if first < 0 or last >= rows:
        raise ValueError(
            f"indices reach from {first} to {last} and the relative table has {rows} rows; take "
            f"both from the same number of buckets."
        )
    first, stop = _reachable(first, last, rows)
    indices = indices - np.int32(first)
    read = _gather if form == "gather" else _one_hot
    terms = []
    if position_key is not None:
        terms.append(read(_products(query, position_key[first:stop]), indices))
    if position_query is not None:
        terms.append(read(_products(key, position_query[first:stop]), indices.T).mT)
    return sum(terms[1:], terms[0])


def _reachable(first: int, last: int, rows: int) -> tuple[int, int]:
    """[start, stop): rows ``first`` to ``last``, widened to whole lanes inside the table."""
    count = min(-(-(last - first + 1) // _LANES) * _LANES, rows)
    start = min(first, rows - count)
    return start, start + count


def _products(
    x: Float[Array, "batch heads length head_dim"], table: Float[Array, "rows heads head_dim"]
) -> Float[Array, "batch heads length rows"]:
    """Every token with every row of the table, in the compute type."""
    return product("bhid,mhd->bhim", x, table, *specs.HEADS)


def _gather(
    products: Float[Array, "batch heads length rows"],
    indices: Int32[np.ndarray, "length length"],
) -> Float32[Array, "batch heads length length"]:
    """``products[..., t, indices[t, u]]`` for every t and u."""
    # Float32 before the gather: its transpose adds up all places of a bucket in this type.
    wide = products.astype(jnp.float32)
    return jnp.take_along_axis(wide, jnp.asarray(indices)[None, None], axis=-1)


def _one_hot(
    products: Float[Array, "batch heads length rows"],
    indices: Int32[np.ndarray, "length length"],
) -> Float32[Array, "batch heads length length"]:
    """The same as a product over the rows, in each of whose sums one term is not zero."""
    rows = jnp.arange(products.shape[-1], dtype=jnp.int32)
    hot = (jnp.asarray(indices)[:, None] == rows[:, None]).astype(products.dtype)
    # In a manual region the constant must count as each device's own, as its gradient (dropped) is.
    own = tuple(jax.typeof(products).mat.varying)
    hot = jax.lax.pcast(hot, own, to="varying") if own else hot
    # Batched over t in front: XLA:CPU has no other order of such a product in bfloat16.
    front = products.transpose(2, 0, 1, 3)
    layout = (None, specs.BATCH, specs.TENSOR, None)
    read = product("tbhm,tmu->tbhu", front, hot, *layout, result=jnp.float32)
    return read.transpose(1, 2, 0, 3)
