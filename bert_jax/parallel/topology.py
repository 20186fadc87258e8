"""Compile a train step for TPU chips that are not there.

The ``libtpu`` wheel (extra ``tpu``) holds the real TPU compiler. It compiles for a *described*
topology on any Linux x86-64 machine: the result cannot run here, but it says how much memory a
chip needs (``memory_analysis()``) and what crosses between chips (`bert_jax.parallel.hlo`).
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

# Read when libtpu is loaded: describe chips silently, without asking a cloud's metadata server, in
# several processes at once. Which accelerator is named makes no difference.
_LIBTPU_ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

# The slices that can be rented. libtpu describes others too, without a word.
_POD_OF_256 = {(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)}
_FLAT_SLICES = {
    "v2": {(2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)},
    "v3": {(2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)},
    "v5e": _POD_OF_256 | {(1, 1)},
    "v6e": _POD_OF_256 | {(1, 1)},
}
_SMALL_CUBOIDS = {(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)}  # larger ones are built of 4x4x4
_MOST_CHIPS = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}


def topology_mesh(topology: str, shape: MeshShape) -> jax.sharding.Mesh:
    """A mesh of described TPU devices, with explicit axes ``data``, ``fsdp``, ``tensor``.

    Call it first in a process: it makes a process that has no backend yet a CPU one, so that
    nothing waits for a TPU (and on a TPU VM the chips stay free).

    Args:
        topology: Family and shape of the slice in chips, such as ``v5e:4x4`` or ``v4:2x2x4``.
        shape: The mesh; axes are laid along whole sides of the torus.

    Returns:
        The mesh. A v4 or v5p chip is one device (megacore), a v2, v3 or tpu7x chip two.

    Raises:
        ValueError: For a slice that does not exist, a mesh that does not fit its torus, or where
            libtpu is not installed.
    """
    family, sides = _parse(topology)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ValueError(
            "compiling for a TPU needs its compiler, libtpu, which is not installed; "
            "pip install 'bert-jax[tpu]' (Linux, x86-64)."
        )
    for name, value in _LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if family == "v4":
        options["chip_config_name"] = "megacore"
    if math.prod(sides) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    description = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    try:
        return make_mesh(shape, description.devices)
    except NotImplementedError as error:
        sizes = "x".join(map(str, shape.sizes(len(description.devices))))
        raise ValueError(
            f"mesh {sizes} (data x fsdp x tensor) does not fit the torus of {topology}; give each "
            f"axis a product of whole sides."
        ) from error


def _parse(topology: str) -> tuple[str, tuple[int, ...]]:
    """Family and sides of a slice that exists; ValueError otherwise."""
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)+)", topology)
    family = match[1] if match else None
    families = [*_FLAT_SLICES, *_MOST_CHIPS]
    if not match or family not in families:
        raise ValueError(
            f"topology {topology!r} is not known; write one of {', '.join(sorted(families))} and "
            f"the shape of the slice in chips, as in v5e:4x4 or v4:2x2x4."
        )
    sides = tuple(map(int, match[2].split("x")))
    if family in _FLAT_SLICES:
        known = sides in _FLAT_SLICES[family]
        choices = ", ".join("x".join(map(str, s)) for s in sorted(_FLAT_SLICES[family]))
    else:
        most = _MOST_CHIPS[family]
        cubes = len(sides) == 3 and all(side and side % 4 == 0 for side in sides)
        known = sides in _SMALL_CUBOIDS or (
            cubes and list(sides) == sorted(sides) and math.prod(sides) <= most
        )
        choices = f"2x2x1, 2x2x2, 2x2x4, 2x4x4 and rising multiples of 4 up to {most} chips"
    if not known:
        raise ValueError(f"there is no {family} slice {match[2]}; there are {choices}.")
    return family, sides


def abstract_batch(
    batch_size: int, microbatches: int, example: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and layouts of a batch, as `bert_jax.parallel.mesh.put_batch` makes it.

    Args:
        batch_size: Rows a step.
        microbatches: Pieces of it.
        example: A batch of any number of rows: which arrays there are, their types and lengths.
        mesh: Whose batch axes split the rows.
    """
    rows = (microbatches, batch_size // microbatches)
    sharding = jax.NamedSharding(mesh, jax.P(None, specs.BATCH))
    return {
        name: jax.ShapeDtypeStruct((*rows, *array.shape[1:]), array.dtype, sharding=sharding)
        for name, array in example.items()
    }


def compile_train_step(
    step: Callable[..., Any],
    arguments: tuple[Any, ...],
    mesh: jax.sharding.Mesh,
    *,
    compiler_options: Mapping[str, Any] | None = None,
) -> jax.stages.Compiled:
    """Compiles ``step(*arguments)``, the first donated, without an array being made.

    Args:
        step: As `bert_jax.train.step.make_train_step` builds it.
        arguments: State, batch and pace: shapes and layouts, as
            `bert_jax.train.state.abstract_state` and `abstract_batch` give them, or values.
        mesh: Of described or of present devices.
        compiler_options: XLA's, by name; ``{"optimization_level": 9}`` is O0: a third of the time,
            a little more memory, the same reductions.

    Returns:
        The executable, for its ``as_text()`` and ``memory_analysis()``. One for described devices
        cannot be called.
    """
    with jax.set_mesh(mesh):
        lowered = jax.jit(step, donate_argnums=0).lower(*arguments)
        return lowered.compile(dict(compiler_options) if compiler_options else None)
