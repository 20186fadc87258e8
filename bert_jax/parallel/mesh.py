"""The device mesh, and how a host's rows become a global array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bert_jax.parallel import specs


@dataclass(frozen=True)
class MeshShape:
    """How many ways each axis splits; ``data=-1`` takes the devices that are left.

    Attributes:
        data: Copies of the model, each with its share of the batch.
        fsdp: Ways in which batch, parameters and optimizer state are split.
        tensor: Ways in which heads, feed-forward layer and vocabulary are split.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for axis in specs.AXES:
            size = getattr(self, axis)
            if size < 1 and not (axis == specs.DATA and size == -1):
                raise ValueError(
                    f"mesh.{axis} is {size}; it must be at least 1"
                    + (" (or -1: all devices that are left)." if axis == specs.DATA else ".")
                )

    def sizes(self, devices: int) -> tuple[int, int, int]:
        """(data, fsdp, tensor) for a number of devices; ValueError where they do not fit."""
        rest = self.fsdp * self.tensor
        if self.data == -1:
            if devices % rest:
                raise ValueError(
                    f"mesh.fsdp {self.fsdp} x mesh.tensor {self.tensor} does not divide the "
                    f"{devices} devices; choose sizes whose product does."
                )
            return devices // rest, self.fsdp, self.tensor
        if self.data * rest != devices:
            raise ValueError(
                f"mesh {self.data} x {self.fsdp} x {self.tensor} wants {self.data * rest} devices "
                f"and there are {devices}; use data=-1 to take what is left."
            )
        return self.data, self.fsdp, self.tensor


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """An explicit mesh with axes ``data``, ``fsdp``, ``tensor`` over ``devices`` (default: all)."""
    devices = jax.devices() if devices is None else list(devices)
    sizes = shape.sizes(len(devices))
    explicit = (jax.sharding.AxisType.Explicit,) * 3
    return jax.make_mesh(sizes, specs.AXES, devices=devices, axis_types=explicit)


def put_batch(
    batch: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh, microbatches: int
) -> dict[str, jax.Array]:
    """Host rows to a global batch of (microbatches, rows, ...), split over the batch axes.

    Args:
        batch: This process's rows: process i of n holds the i-th of n equal parts of the batch.
        mesh: The mesh.
        microbatches: Pieces whose gradients are accumulated.

    Returns:
        Arrays in which microbatch m holds the m-th part of each process's rows. Which rows share a
        microbatch changes no number: everything random hangs on each example's own index.
    """
    out = {}
    for name, rows in batch.items():
        rows = rows.reshape((microbatches, rows.shape[0] // microbatches, *rows.shape[1:]))
        layout = jax.P(None, specs.BATCH, *[None] * (rows.ndim - 2))
        sharding = jax.NamedSharding(mesh, layout)
        out[name] = jax.make_array_from_process_local_data(sharding, rows)
    return out
