"""The train step: corrupt, sum the weights, accumulate local gradients, reduce once, update.

Gradients are computed in a `jax.shard_map` region that is manual over the batch axes of the mesh:
there every device sees its own rows and whole parameters, so the region needs no collective and
the partitioner has nothing to decide. Microbatches add up inside it. Then the accumulated gradient
is reduced exactly once a step, in the configured type: a sum over ``data`` and a reduce-scatter
over ``fsdp``, which leaves each device the slice of the gradient, the moments and the parameters
it owns. The tied token table is one parameter here, so it is reduced once, not twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from bert_jax.models.config import ComputeDtype
from bert_jax.objectives.base import (
    Apply,
    Batch,
    Objective,
    Optimizer,
    Passed,
    Stage,
    Sums,
    select,
    split_passed,
    total_loss,
)
from bert_jax.parallel import specs
from bert_jax.train.state import TrainState


@dataclass(frozen=True)
class StepConfig:
    """What a step depends on beside state, batch and pace.

    Attributes:
        optimizer: Of every stage that has none of its own.
        seed: Of masks and dropout.
        gradient_dtype: Type in which gradients cross between devices.
    """

    optimizer: Optimizer
    seed: int
    gradient_dtype: ComputeDtype = "float32"


class Pace(NamedTuple):
    """What the run's clock says of a step; numbers from the host, so that no value is compiled in.

    Attributes:
        factor: Of the peak learning rate (`bert_jax.train.schedule`).
        microbatches: How many microbatches hold examples; the others are not computed. None where
            all of them always do.
    """

    factor: jax.Array | np.ndarray | np.generic | float
    microbatches: jax.Array | np.ndarray | np.generic | int | None = None


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
) -> Callable[[TrainState, Batch, Pace], tuple[TrainState, Metrics]]:
    """Builds ``step(state, batch, pace) -> (state, metrics)``, to be jitted with the state donated.

    The batch's arrays are (microbatches, rows, ...), split over the batch axes at ``rows``. It runs
    under a mesh (`bert_jax.parallel.mesh`), one device being a mesh of 1 x 1 x 1.

    The metrics are ``sums`` (name -> (sum, weight) over the global batch, float32),
    ``gradient_norm`` (before clipping, but for replicas that are clipped one by one; the L2 norm
    over stages if there are several) and ``finite``.
    """

    def step(state: TrainState, batch: Batch, pace: Pace) -> tuple[TrainState, Metrics]:
        keys = Keys.from_seed(config.seed)
        dropout_key = jax.random.fold_in(keys.dropout, state.step)
        params, opt_states = state.params, []
        all_sums: Sums = {}
        norms = []
        for stage, opt_state in zip(objective.stages, state.opt_states, strict=True):
            optimizer = stage.optimizer or config.optimizer
            trained, frozen = select(params, stage.trains)
            drawn_from = (keys.masks, state.step, dropout_key, pace.microbatches)
            compute = _Compute(
                stage, apply, objective.corrupt, replica_clip_norm(optimizer), config.gradient_dtype
            )
            gradients, (sums, passed) = compute(trained, frozen, batch, drawn_from)
            norm = optax.tree.norm(gradients)
            updated, opt_state = _update(optimizer, pace.factor, trained, gradients, opt_state)
            params = _replace(params, updated)
            opt_states.append(opt_state)
            _refuse_same_names(stage, all_sums, sums)
            all_sums |= sums
            batch = {**batch, **passed}
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
        return state, {"sums": all_sums, "gradient_norm": norm, "finite": finite}

    return step


def replica_clip_norm(optimizer: Optimizer) -> float | None:
    """Norm to which an optimizer wants each device's own gradient clipped; None: not at all."""
    return optimizer.clip_norm if getattr(optimizer, "clip", "global") == "replica" else None  # pyright: ignore[reportAttributeAccessIssue]


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


@dataclass(frozen=True)
class _Compute:
    """The gradient of one stage over the global batch, and what its loss says."""

    stage: Stage
    apply: Apply
    corrupt: Callable[[jax.Array, jax.Array, Batch], Batch]
    replica_clip: float | None
    dtype: ComputeDtype

    def __call__(
        self, trained: dict, frozen: dict, batch: Batch, drawn_from: tuple[Any, ...]
    ) -> tuple[dict, Passed]:
        """Gradient in the parameters' layout; sums over the global batch; what is passed on."""
        whole = jax.tree.map(specs.gathered, (trained, frozen))
        passed = jax.P(None, specs.BATCH)
        stacked, passed_on = jax.shard_map(
            self._local,
            in_specs=(jax.P(), passed, jax.P()),
            out_specs=(jax.P(specs.BATCH), passed),
            axis_names=set(specs.BATCH),
        )(whole, batch, drawn_from)
        gradients, sums = _reduce(trained, stacked, self.dtype)
        return gradients, Passed(sums, passed_on)

    def _local(self, whole, batch, drawn_from):
        """What one device does, with its own rows and whole parameters."""
        trained, frozen = jax.tree.map(_varying, whole)
        mask_key, step, key, live = drawn_from
        rows = jax.lax.map(lambda rows: self.corrupt(mask_key, step, rows), batch)

        def losses(trained, rows) -> Passed:
            return split_passed(self.stage.loss(self.apply, trained, rows, key, frozen))

        # Weights first: they depend on no parameter, so the compiler drops the forward pass here.
        weights = jax.lax.map(lambda r: _weights(losses(trained, r).sums, self.stage), rows)
        weights = {name: jnp.sum(w) for name, w in weights.items()}
        if self.replica_clip is None:
            weights = {name: jax.lax.psum(w, specs.BATCH) for name, w in weights.items()}

        def objective(trained, rows):
            out = losses(trained, rows)
            return total_loss(out.sums, self.stage.coefficients, weights), out

        gradient = jax.grad(objective, has_aux=True)
        first = jax.tree.map(lambda leaf: leaf[0], rows)
        if live is None and next(iter(rows.values())).shape[0] == 1:  # no buffer of zeros
            gradients, (sums, passed) = gradient(trained, first)
            passed = jax.tree.map(lambda leaf: leaf[None], passed)
        else:
            gradients, sums, passed = _accumulate(gradient, trained, rows, first, live)
        if self.replica_clip is not None:
            gradients = _clip_replica(gradients, self.replica_clip)
        return jax.tree.map(lambda leaf: leaf[None], (gradients, sums)), passed


def _accumulate(gradient, trained, rows, first, live):
    """Adds up the microbatches, those with examples, and stacks what each passes on."""
    zeros = lambda s: _varying(jnp.zeros(s.shape, s.dtype))  # noqa: E731
    shapes = jax.eval_shape(gradient, trained, first)
    nothing = (jax.tree.map(jnp.zeros_like, trained), jax.tree.map(zeros, shapes[1]))

    def add(total, numbered):
        index, rows = numbered
        # Marked alike in both branches, whether or not they hang on the rows.
        compute = lambda rows: jax.tree.map(_varying, gradient(trained, rows))  # noqa: E731
        if live is None:
            gradients, (sums, passed) = compute(rows)
        else:
            gradients, (sums, passed) = jax.lax.cond(index < live, compute, lambda _: nothing, rows)
        return jax.tree.map(jnp.add, total, (gradients, sums)), passed

    count = next(iter(rows.values())).shape[0]
    start = (nothing[0], nothing[1].sums)
    (gradients, sums), passed = jax.lax.scan(add, start, (jnp.arange(count), rows))
    return gradients, sums, passed


def _clip_replica(gradients: dict, limit: float) -> dict:
    """Scales a device's own gradient down to a norm, and to its share of the mean over devices.

    The gradient is that of the device's own mean loss. So the update depends on how many devices
    there are; that is what google-research/bert does (its CrossShardOptimizer averages gradients
    that are clipped already).
    """
    norm = optax.tree.norm(gradients)
    devices = math.prod(jax.lax.axis_size(axis) for axis in specs.BATCH)
    scale = limit / jnp.maximum(norm, limit) / devices
    return jax.tree.map(lambda g: g * scale, gradients)


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
