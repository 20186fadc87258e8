"""Dropout whose bits are a counter hash: cheap everywhere, the same on any mesh.

The mask of an element is a pure function of (key, global example index, layer, site, position of
the element inside its example). So it does not depend on the device count, on how a batch is split
into microbatches, or on how many layers run in one loop. Two strong hashes give every (key,
example, layer, site) its own odd multiplier and offset; the element's index then goes through that
affine map and a 32-bit finaliser with full avalanche (the constants are C. Wellons' `lowbias32`,
"Prospecting for hash functions", 2018: measured bias .17).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, UInt32

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio, Knuth's multiplicative constant


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DropoutSeed:
    """What the dropout of one layer depends on.

    Attributes:
        words: Two words of the run's dropout key, already folded with the step.
        example_ids: Global example index of every row, modulo 2**32.
        layer: Index of the layer; may be traced (a scan over layers).
    """

    words: UInt32[Array, "2"]
    example_ids: UInt32[Array, "batch"]
    layer: int | Int[Array, ""] = 0

    @classmethod
    def from_key(cls, key: jax.Array, example_ids: Integer[Array, "batch"]) -> DropoutSeed:
        """Seed from a typed jax key (any implementation) and the rows' example indices."""
        data = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
        return cls(jnp.stack([data[0], data[-1]]), example_ids.astype(jnp.uint32))

    def shared(self) -> DropoutSeed:
        """The seed of what a whole batch shares: of one row, whatever examples there are."""
        return dataclasses.replace(self, example_ids=jnp.zeros((1,), jnp.uint32))

    def at_layer(self, layer: int | Int[Array, ""]) -> DropoutSeed:
        """The same seed for another layer."""
        return dataclasses.replace(self, layer=layer)


def dropout(
    x: Float[Array, "batch *rest"], rate: float, seed: DropoutSeed | None, site: int
) -> Float[Array, "batch *rest"]:
    """Zeroes elements with probability ``rate`` and scales the others by ``1 / (1 - rate)``.

    Args:
        x: First axis is the batch.
        rate: Probability of zero, in [0, 1).
        seed: None means no dropout (evaluation).
        site: Which dropout of the layer this is; different sites are independent.
    """
    if seed is None or rate == 0:
        return x
    keep = random_bits(seed, site, x) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x * (1 / (1 - rate)), jnp.zeros_like(x))


def random_bits(
    seed: DropoutSeed, site: int, like: Float[Array, "batch *rest"]
) -> UInt32[Array, "batch *rest"]:
    """32 random bits an element of ``like``, laid out like it."""
    place = jnp.uint32(site) + jnp.uint32(64) * jnp.asarray(seed.layer).astype(jnp.uint32)
    base = _mix(_mix(seed.words[0] ^ (place * jnp.uint32(_GOLDEN))) ^ seed.words[1])
    offset = _mix(_mix(seed.example_ids ^ base) + base)
    multiplier = _mix(offset ^ jnp.uint32(_GOLDEN)) | jnp.uint32(1)
    per_row = (-1, *([1] * (like.ndim - 1)))
    index = _index_in_example(like)
    return _mix(index * multiplier.reshape(per_row) + offset.reshape(per_row))


def _index_in_example(like: Array) -> UInt32[Array, "batch *rest"]:
    """Row-major index of every element inside its example, modulo 2**32."""
    sharding = jax.typeof(like).sharding if _under_mesh() else None
    index = jnp.zeros_like(like, jnp.uint32)
    stride = 1
    for axis in range(like.ndim - 1, 0, -1):
        iota = jax.lax.broadcasted_iota(jnp.uint32, like.shape, axis, out_sharding=sharding)
        index = index + iota * jnp.uint32(stride % 2**32)
        stride *= like.shape[axis]
    return index


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _under_mesh() -> bool:
    return not jax.sharding.get_abstract_mesh().empty
