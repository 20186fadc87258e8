"""Checksums against a slow definition, and what they must notice."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.checksum import checksums

WORD = 2**32
DTYPES = [jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8, jnp.bool_]


def one(x: jax.Array) -> int:
    return checksums({"x": x})["x"]


def values(dtype: jnp.dtype, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(0).normal(size=shape) * 50
    return np.asarray(jnp.asarray(numbers > 0 if dtype == jnp.bool_ else numbers, dtype))


def mix(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) % WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) % WORD
    return x ^ (x >> 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)], ids=str)
def test_definition(dtype: jnp.dtype, shape: tuple[int, ...]) -> None:
    x = values(dtype, shape)
    bits = x.reshape(-1).view(f"uint{8 * x.dtype.itemsize}").tolist()
    expected = sum(mix((b + mix((i + 0x9E3779B9) % WORD)) % WORD) for i, b in enumerate(bits))
    assert one(jnp.asarray(x)) == expected % WORD


@pytest.mark.parametrize(
    "layout", [jax.P(), jax.P("data"), jax.P(None, "fsdp"), jax.P("fsdp", "tensor")], ids=str
)
def test_layout_does_not_matter(layout: jax.P) -> None:
    mesh = make_mesh(MeshShape(2, 2, 2))
    x = values(jnp.float32, (8, 12))
    put = jax.device_put(x, jax.NamedSharding(mesh, layout))
    assert one(put) == one(jnp.asarray(x))
    with jax.set_mesh(mesh):
        assert one(put) == one(jnp.asarray(x))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8], ids=lambda d: d.__name__)
def test_every_single_bit_is_seen(dtype: jnp.dtype) -> None:
    x = values(dtype, (6,))
    unsigned = f"uint{8 * x.dtype.itemsize}"
    seen = {one(jnp.asarray(x))}
    for element in range(x.size):
        for bit in range(8 * x.dtype.itemsize):
            flipped = x.view(unsigned).copy()
            flipped[element] ^= 1 << bit
            seen.add(one(jnp.asarray(flipped.view(x.dtype))))
    assert len(seen) == 1 + x.size * 8 * x.dtype.itemsize


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: np.roll(x, 1, axis=0),
        lambda x: x[:, ::-1],
        lambda x: x.T,
        lambda x: np.where(x == 1, 2, np.where(x == 2, 1, x)),
    ],
    ids=["rows reversed", "rows rolled", "columns reversed", "transposed", "two values swapped"],
)
def test_order_matters(change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Also of powers of two, which differ in a few high bits only."""
    x = 2.0 ** (np.arange(256 * 256) % 7).reshape(256, 256).astype(np.float32)
    changed = np.ascontiguousarray(change(x))
    assert not np.array_equal(x, changed)
    assert one(jnp.asarray(x)) != one(jnp.asarray(changed))
