"""The train step: corrupt, sum the weights, accumulate local gradients, reduce once, update.

Gradients are computed in a `jax.shard_map` region that is manual over the batch axes of the mesh:
there every device sees its own rows and whole parameters, so the region needs no collective and
the partitioner has nothing to decide. Microbatches add up inside it. Then the accumulated gradient
is reduced exactly once a step, in the configured type: a sum over ``data`` and a reduce-scatter
over ``fsdp``, which leaves each device the slice of the gradient, the moments and the parameters
it owns. The tied token table is one parameter here, so it is reduced once, not twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bert_jax.models.config import ComputeDtype
from bert_jax.objectives.base import (
    Apply,
    Batch,
    Objective,
    Optimizer,
    Stage,
    Sums,
    select,
    total_loss,
)
from bert_jax.parallel import specs
from bert_jax.train.schedule import Schedule
from bert_jax.train.state import TrainState


@dataclass(frozen=True)
class StepConfig:
    """What a step depends on beside state and batch.

    Attributes:
        optimizer: Of every stage that has none of its own.
        schedule: Factor of the peak learning rate.
        total_steps: Steps of the run.
        seed: Of masks and dropout.
        gradient_dtype: Type in which gradients cross between devices.
    """

    optimizer: Optimizer
    schedule: Schedule
    total_steps: int
    seed: int
    gradient_dtype: ComputeDtype = "float32"


@dataclass(frozen=True)
class Keys:
    """The random streams of a run, all threefry: their values never depend on the mesh."""

    masks: jax.Array
    dropout: jax.Array

    @classmethod
    def from_seed(cls, seed: int) -> Keys:
        """Independent streams of one seed."""
        key = jax.random.key(seed, impl="threefry2x32")
        return cls(jax.random.fold_in(key, 1), jax.random.fold_in(key, 2))


Metrics = dict[str, Any]


def make_train_step(
    objective: Objective, apply: Apply, config: StepConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Builds ``step(state, batch) -> (state, metrics)``, to be jitted with the state donated.

    The batch's arrays are (microbatches, rows, ...), split over the batch axes at ``rows``. It runs
    under a mesh (`bert_jax.parallel.mesh`), one device being a mesh of 1 x 1 x 1.

    The metrics are ``sums`` (name -> (sum, weight) over the global batch, float32),
    ``gradient_norm`` (before clipping; the first stage's for one stage, the L2 norm over stages
    for several), ``learning_rate_factor`` and ``finite``.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        keys = Keys.from_seed(config.seed)
        dropout_key = jax.random.fold_in(keys.dropout, state.step)
        factor = config.schedule.factor(state.step, config.total_steps)
        params, opt_states = state.params, []
        all_sums: Sums = {}
        norms = []
        for stage, opt_state in zip(objective.stages, state.opt_states, strict=True):
            trained, frozen = select(params, stage.trains)
            drawn_from = (keys.masks, state.step, dropout_key)
            gradients, sums = _gradients(
                stage, apply, objective.corrupt, trained, frozen, batch, drawn_from,
                config.gradient_dtype,
            )  # fmt: skip
            optimizer = stage.optimizer or config.optimizer
            norm = optax.tree.norm(gradients)
            updated, opt_state = _update(optimizer, factor, trained, gradients, opt_state)
            params = _replace(params, updated)
            opt_states.append(opt_state)
            _refuse_same_names(stage, all_sums, sums)
            all_sums |= sums
            norms.append(norm)
        norm = jnp.sqrt(sum(n * n for n in norms)) if len(norms) > 1 else norms[0]
        finite = jnp.isfinite(norm)
        # One bad stage undoes all of the step: no part of it is left.
        params, opt_states = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, tuple(opt_states)),
            (state.params, state.opt_states),
        )
        bad = jnp.where(finite, 0, 1)
        state = TrainState(
            state.step + 1,
            params,
            opt_states,
            state.skipped + bad,
            (state.skipped_in_a_row + bad) * bad,
        )
        metrics = {
            "sums": all_sums,
            "gradient_norm": norm,
            "learning_rate_factor": factor,
            "finite": finite,
        }
        return state, metrics

    return step


def _update(optimizer, factor, trained, gradients, opt_state):
    """One optimizer update of one stage."""
    updates, opt_state = optimizer.direction().update(gradients, opt_state, trained)
    rate = factor * optimizer.learning_rate
    return jax.tree.map(lambda p, u: p - rate * u, trained, updates), opt_state


def _refuse_same_names(stage: Stage, earlier: Sums, sums: Sums) -> None:
    same = sorted(earlier.keys() & sums.keys())
    if same:
        raise ValueError(
            f"stage {stage.name!r} returns {same[0]!r}, as an earlier stage does; give its losses "
            f"and metrics names of their own."
        )


def _replace(params, updated):
    """``params`` with the leaves that ``updated`` holds replaced."""
    if not isinstance(updated, dict):
        return updated
    return {k: _replace(v, updated[k]) if k in updated else v for k, v in params.items()}


def _gradients(
    stage: Stage,
    apply: Apply,
    corrupt: Callable[[jax.Array, jax.Array, Batch], Batch],
    trained: dict,
    frozen: dict,
    batch: Batch,
    drawn_from: tuple[jax.Array, jax.Array, jax.Array],
    dtype: ComputeDtype,
) -> tuple[dict, Sums]:
    """Gradient of the stage's loss over the global batch, in the parameters' layout, and sums."""
    whole = jax.tree.map(specs.gathered, (trained, frozen))

    def local(whole, batch, drawn_from):
        trained, frozen = jax.tree.map(_varying, whole)
        mask_key, step, key = drawn_from
        rows = jax.lax.map(lambda rows: corrupt(mask_key, step, rows), batch)

        def losses(trained, rows):
            return stage.loss(apply, trained, rows, key, frozen)

        # Weights first: they depend on no parameter, so the compiler drops the forward pass here.
        weights = jax.lax.map(lambda r: _weights(losses(trained, r), stage), rows)
        weights = {n: jax.lax.psum(jnp.sum(w), specs.BATCH) for n, w in weights.items()}

        def objective(trained, rows):
            sums = losses(trained, rows)
            return total_loss(sums, stage.coefficients, weights), sums

        def add(total, rows):
            gradients, sums = jax.grad(objective, has_aux=True)(trained, rows)
            return jax.tree.map(jnp.add, total, (gradients, sums)), None

        first = jax.tree.map(lambda leaf: leaf[0], rows)
        if next(iter(rows.values())).shape[0] == 1:  # no accumulation: no buffer of zeros
            total = jax.grad(objective, has_aux=True)(trained, first)
        else:
            shapes = jax.eval_shape(lambda r: losses(trained, r), first)
            zeros = jax.tree.map(lambda s: _varying(jnp.zeros(s.shape, s.dtype)), shapes)
            start = (jax.tree.map(jnp.zeros_like, trained), zeros)
            total, _ = jax.lax.scan(add, start, rows)
        return jax.tree.map(lambda leaf: leaf[None], total)

    manual = set(specs.BATCH)
    stacked = jax.shard_map(
        local,
        in_specs=(jax.P(), jax.P(None, specs.BATCH), jax.P()),
        out_specs=jax.P(specs.BATCH),
        axis_names=manual,
    )(whole, batch, drawn_from)
    return _reduce(trained, stacked, dtype)


def _weights(sums: Sums, stage: Stage) -> dict[str, Float[Array, ""]]:
    return {name: sums[name][1] for name in stage.coefficients}


def _varying(x: jax.Array) -> jax.Array:
    """Marks a value as each device's own, so that its gradient stays local."""
    missing = tuple(a for a in specs.BATCH if a not in jax.typeof(x).mat.varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _reduce(trained: dict, stacked: tuple[dict, dict], dtype: ComputeDtype) -> tuple[dict, Sums]:
    """Sums the devices' gradients, once, into the parameters' stored layout."""
    stored = jax.tree.map(lambda p: jax.typeof(p).sharding.spec, trained)
    gradients, sums = stacked
    if specs.batch_shards() == 1:  # nothing crosses between devices, so nothing is rounded either
        alone = lambda x, spec: specs.reshape(x, x.shape[1:], *spec)  # noqa: E731
        whole = jax.tree.map(lambda _: jax.P(), sums)
        return jax.tree.map(alone, gradients, stored), jax.tree.map(alone, sums, whole)

    def one(gradient, spec):
        original = gradient.dtype
        gradient = gradient[0].astype(dtype)
        # A scatter over one device is none, and the TPU compiler without optimization dies of it.
        if specs.FSDP in spec and jax.lax.axis_size(specs.FSDP) > 1:
            gradient = jax.lax.psum_scatter(
                gradient, specs.FSDP, scatter_dimension=spec.index(specs.FSDP), tiled=True
            )
            gradient = jax.lax.psum(gradient, specs.DATA)
        else:
            gradient = jax.lax.psum(gradient, specs.BATCH)
        return gradient.astype(original)

    def reduce(gradients, sums):
        reduced = jax.tree.map(one, gradients, stored)
        return reduced, jax.tree.map(lambda s: jax.lax.psum(s[0], specs.BATCH), sums)

    incoming = jax.tree.map(
        lambda spec: jax.P(specs.BATCH, *specs.without_axis(spec, specs.FSDP)), stored
    )
    return jax.shard_map(
        reduce, in_specs=(incoming, jax.P(specs.BATCH)), out_specs=(stored, jax.P())
    )(gradients, sums)
