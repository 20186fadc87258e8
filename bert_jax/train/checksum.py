"""Checksums of arrays, computed on the devices that hold them.

A checksum is the sum, modulo 2**32, of a hash of every element's bits together with its place. A
sum does not depend on how an array is split over devices, so it can be compared after a restore
onto any mesh; the place makes a swap of two elements visible. The hash of an element is a bijection
of its bits, so a change of one element is always seen, several with probability 1 - 2**-32.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped, UInt32

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: element 0 is hashed with a word that is not 0
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def checksums(arrays: Mapping[str, Shaped[Array, "..."]]) -> dict[str, int]:
    """The checksum of every array, each in [0, 2**32); waits until the arrays are computed.

    Args:
        arrays: Name to array of elements of 1, 2 or 4 bytes, in any layout.
    """
    return {name: int(word) for name, word in jax.device_get(_checksums(dict(arrays))).items()}


@jax.jit
def _checksums(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: _checksum(array) for name, array in arrays.items()}


def _checksum(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    bits = jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)
    return jnp.sum(_mix(bits + _mix(_places(x.shape))))


def _places(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Row-major index of every element, modulo 2**32, plus a constant."""
    place = jnp.uint32(_GOLDEN)
    stride = 1
    for axis in reversed(range(len(shape))):
        along = jnp.arange(shape[axis], dtype=jnp.uint32) * jnp.uint32(stride % 2**32)
        place = place + along.reshape((-1,) + (1,) * (len(shape) - 1 - axis))
        stride *= shape[axis]
    return place


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words with full avalanche (C. Wellons' `lowbias32`, 2018)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
