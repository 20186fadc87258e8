"""The state of a run that changes from step to step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, no_type_check

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from bert_jax.objectives.base import Objective, Optimizer, select


@no_type_check  # as a pytree it holds shapes, shardings or specs as well as arrays
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a checkpoint holds.

    Attributes:
        step: Steps done, skipped ones included.
        params: Parameters, float32.
        opt_states: One optimizer state a stage of the objective.
        skipped: Steps whose gradients were not finite and changed nothing.
        skipped_in_a_row: The same, since the last good step.
    """

    step: Int[Array, ""]
    params: dict[str, Any]
    opt_states: tuple[Any, ...]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def init_state(params: dict[str, Any], objective: Objective, optimizer: Optimizer) -> TrainState:
    """A state before the first step; moments get the layout of their parameters.

    The counters are separate arrays: a state is donated, and one buffer cannot be donated twice.
    """
    opt_states = tuple(
        (stage.optimizer or optimizer).direction().init(select(params, stage.trains)[0])
        for stage in objective.stages
    )
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
    return TrainState(step, params, opt_states, skipped, in_a_row)


def init_params(model: nn.Module, seed: int) -> dict[str, Any]:
    """Initial parameters of one model; they depend on the seed only, never on the mesh."""
    variables: Any = model.init(initial_key(seed))
    return variables["params"]


def initial_key(seed: int) -> jax.Array:
    """The key of a run's initial parameters."""
    return jax.random.key(seed, impl="threefry2x32")


def abstract_state(make: Callable[[], Any], mesh: jax.sharding.Mesh) -> Any:
    """Shapes, types and layouts of the state (or part of one) that ``make`` would build.

    Args:
        make: For example ``lambda: init_state(init_params(model, seed), objective, optimizer)``.
        mesh: The mesh in force.
    """
    return _on_mesh(jax.eval_shape(make), mesh)


def _on_mesh(shapes: Any, mesh: jax.sharding.Mesh) -> Any:
    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        # A scalar that hangs on nothing is traced without a layout.
        spec = jax.P() if leaf.sharding is None else leaf.sharding.spec
        sharding = jax.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, shapes)
