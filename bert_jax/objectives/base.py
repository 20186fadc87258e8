"""What a training objective is: a corruption, and stages of losses as sums and counts.

    corrupt(key, step, batch) -> batch                          on the device, example by example
    stage.loss(apply, params, batch, key, frozen) -> {name: (sum, weight)}

A *sum* is differentiated; a *weight* never depends on parameters. The train step first adds the
weights W_i of the whole global batch, then accumulates the gradient of ``sum_i c_i S_i / W_i``.
So microbatches, devices and several denominators are exact, and no mean of means exists.
Stages run one after the other in a step, each on its own subset of the parameters, with its own
optimizer; a later stage sees the parameters its predecessors have just updated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bert_jax.models.paths import by_path, from_paths

Batch = Mapping[str, Array]
Params = Mapping[str, Any]
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
Apply = Callable[..., Any]
Loss = Callable[[Apply, Params, Batch, jax.Array | None, Params], Sums]


@runtime_checkable
class Optimizer(Protocol):
    """What a stage needs of an optimizer; `bert_jax.train.optimizer.AdamW` is one."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate; the experiment's schedule scales it."""
        ...

    def direction(self) -> optax.GradientTransformation:
        """Everything up to, but not including, the factor ``-learning rate``."""
        ...


def all_parameters(path: str) -> bool:
    """Predicate of a stage that trains everything."""
    del path
    return True


@dataclass(frozen=True)
class Stage:
    """One loss of an objective, and what it trains.

    Attributes:
        name: For messages and metrics.
        loss: ``loss(apply, params, batch, key, frozen)``. ``params`` holds the trained parameters,
            ``frozen`` the others (`merge` joins them); ``key`` is the step's dropout key, None at
            evaluation.
        coefficients: Names of ``loss`` that are minimised, with their factors c_i; the other names
            are metrics.
        trains: Whether the parameter at a path such as ``encoder/layers/query/kernel`` is trained.
        optimizer: Its own optimizer; None means the experiment's.
    """

    name: str
    loss: Loss
    coefficients: Mapping[str, float] = field(default_factory=lambda: {"loss": 1.0})
    trains: Callable[[str], bool] = all_parameters
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        if not self.coefficients:
            raise ValueError(f"stage {self.name!r} minimises nothing; name a loss and its factor.")


@runtime_checkable
class Objective(Protocol):
    """What `train` needs of an objective."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a step, in order."""
        ...

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Builds inputs and targets; a function of key, step and each example's own index."""
        ...


def select(params: Params, trains: Callable[[str], bool]) -> tuple[dict, dict]:
    """Splits parameters into those ``trains`` accepts and the rest, as two nested dicts."""
    flat = by_path(params)
    chosen = {path: leaf for path, leaf in flat.items() if trains(path)}
    rest = {path: leaf for path, leaf in flat.items() if path not in chosen}
    return from_paths(chosen), from_paths(rest)


def merge(params: Params, frozen: Params) -> dict:
    """Joins what `select` has split."""
    flat = {**by_path(params), **by_path(frozen)}
    return from_paths(flat)


def total_loss(
    sums: Sums, coefficients: Mapping[str, float], weights: Mapping[str, Float[Array, ""]]
) -> Float[Array, ""]:
    """``sum_i c_i S_i / W_i``; a loss without any weight counts as 0."""
    terms = [
        factor * jnp.where(weights[name] > 0, sums[name][0] / _or_one(weights[name]), 0.0)
        for name, factor in coefficients.items()
    ]
    return sum(terms[1:], terms[0])


def means(sums: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Each sum divided by its weight, once, on the host; 0 where there was no weight."""
    return {
        name: float(total) / float(weight) if float(weight) else 0.0
        for name, (total, weight) in sums.items()
    }


def _or_one(weight: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(weight > 0, weight, 1.0)
