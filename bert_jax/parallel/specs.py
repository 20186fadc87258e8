"""The named PartitionSpecs of the project, and the few operations that need them.

Mesh axes: ``data`` (pure data parallel), ``fsdp`` (batch and parameters), ``tensor`` (heads, the
feed-forward layer, the vocabulary). Without a mesh no spec may be given to jax, so every function
here returns None then; inside a ``shard_map`` that is manual over an axis, that axis is dropped,
since the code there sees its own shard only. So the same model runs alone, under a mesh, and
inside the train step's region of local gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
AXES = (DATA, FSDP, TENSOR)
BATCH = (DATA, FSDP)  # the axes that split a batch

Axis = str | tuple[str, ...] | None

# Stored layouts: kernels are split over ``fsdp`` on their input side, over ``tensor`` on the side
# that Megatron (arXiv:1909.08053) splits. Vectors stay whole: splitting them saves nothing.
TOKENS = (BATCH, None)
ACTIVATIONS = (BATCH, None, None)
ATTENTION_MASK = (BATCH, None, None, None)
HEADS = (BATCH, TENSOR, None, None)


def spec(*axes: Axis) -> jax.P | None:
    """PartitionSpec of ``axes`` for the mesh in force; None without one.

    Args:
        *axes: One entry a dimension: an axis name, a tuple of names, or None.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return None
    manual = set(mesh.manual_axes)

    def usable(axis: Axis) -> Axis:
        names = (axis,) if isinstance(axis, str) else (axis or ())
        kept = tuple(name for name in names if name not in manual)
        return kept[0] if len(kept) == 1 else (kept or None)

    return jax.P(*map(usable, axes))


def constrain(x: jax.Array, *axes: Axis) -> jax.Array:
    """``x`` moved to the layout ``axes``; ``x`` itself without a mesh."""
    target = spec(*axes)
    return x if target is None else jax.reshard(x, target)


def gathered(parameter: jax.Array) -> jax.Array:
    """The parameter as matrix products use it: whole over ``fsdp``, still split over ``tensor``.

    The transpose of this gather scatters the gradient back to the stored layout.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return parameter
    stored = jax.typeof(parameter).sharding.spec
    used = without_axis(stored, FSDP)
    return parameter if used == stored else jax.reshard(parameter, used)


def without_axis(stored: jax.P, axis: str) -> jax.P:
    """``stored`` with every mention of ``axis`` removed."""

    def drop(entry: Axis) -> Axis:
        if isinstance(entry, tuple):
            rest = tuple(name for name in entry if name != axis)
            return rest[0] if len(rest) == 1 else (rest or None)
        return None if entry == axis else entry

    return jax.P(*(drop(entry) for entry in stored))


def reshape(x: jax.Array, shape: tuple[int, ...], *axes: Axis) -> jax.Array:
    """Reshape with the layout of the result stated (a plain reshape may type it wrongly)."""
    return jax.lax.reshape(x, shape, out_sharding=spec(*axes))


def lookup(table: jax.Array, ids: jax.Array, *axes: Axis) -> jax.Array:
    """Rows of ``table`` at ``ids``; ``axes`` is the layout of the result.

    An id past the table gives a row of NaN, never a neighbour's row: a bad id that escaped the
    checks on the host is loud.
    """
    return jnp.asarray(table).at[ids].get(out_sharding=spec(*axes), mode="fill", fill_value=jnp.nan)


def batch_shards() -> int:
    """How many pieces the mesh in force cuts a batch into; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    manual = set(mesh.manual_axes)
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    count = 1
    for axis in BATCH:
        count *= 1 if axis in manual else sizes.get(axis, 1)
    return count


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``: of the mesh in force if it names one, else the default backend.

    A mesh of described (not present) devices names its own platform, so a model compiled ahead of
    time for a TPU pod takes the TPU's defaults on a CPU machine.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    name = getattr(device, "platform", None)
    return name or jax.default_backend()


def zeros(shape: tuple[int, ...], dtype: DTypeLike, *axes: Axis) -> jax.Array:
    """Zeros laid out as ``axes``."""
    return jnp.zeros(shape, dtype, out_sharding=spec(*axes))
