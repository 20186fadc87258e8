"""What a training objective is: a corruption, and stages of losses as sums and counts.

    corrupt(key, step, batch) -> batch                          on the device, example by example
    stage.loss(apply, params, batch, key, frozen) -> {name: (sum, weight)}

A *sum* is differentiated; a *weight* never depends on parameters. Both have one number a row of the
batch, from which held-out scores get their standard errors. The train step first adds the weights
W_i of the whole global batch, then accumulates the gradient of ``sum_i c_i S_i / W_i``. So
microbatches, devices and several denominators are exact, and no mean of means exists. Stages run
one after the other in a step, each on its own subset of the parameters, with its own optimizer; a
later stage sees the parameters its predecessors have just updated, and what their losses have
`Passed` on.

An objective as data (`ObjectiveConfig`, a field of the experiment) makes a `Task`: the objective
together with the parameters it needs, and the model among them that is kept in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bert_jax.models.config import EncoderConfig
from bert_jax.models.flops import forward_flops, heads_flops
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.objectives.masking import Masking, SpecialIds

Batch = Mapping[str, Array]
Params = Mapping[str, Any]
Sum = Float[Array, ""] | Float[Array, "rows"]
Sums = dict[str, tuple[Sum, Sum]]
Apply = Callable[..., Any]


class Passed(NamedTuple):
    """What a loss may return instead of sums alone.

    Attributes:
        sums: As otherwise.
        batch: Arrays with one entry a row, which join the batch of the later stages of the step.
    """

    sums: Sums
    batch: dict[str, Array]


Loss = Callable[[Apply, Params, Batch, jax.Array | None, Params], Sums | Passed]


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


def _nothing_trained(source: str) -> tuple[EncoderConfig, Callable[[], Params]]:
    raise ValueError(f"this setting has no access to {source}; give it a function `trained`.")


@dataclass(frozen=True)
class Setting:
    """What an objective is made for.

    Attributes:
        model: The encoder that is trained.
        masking: Masking policy.
        special: Special ids of the vocabulary.
        vocab_size: Entries of the vocabulary that texts can have.
        total_steps: Steps of the run, for policies that change over it.
        token_counts: Frequency of every id in the training data; None where it is not known
            (synthetic data), or was not asked for.
        trained: Gives the encoder of a model trained before, and a function that reads its
            parameters as those of a `MaskedLM`.
    """

    model: EncoderConfig
    masking: Masking
    special: SpecialIds
    vocab_size: int
    total_steps: int = 1
    token_counts: Int[np.ndarray, "vocab"] | None = None
    trained: Callable[[str], tuple[EncoderConfig, Callable[[], Params]]] = _nothing_trained


def _same(params: Params) -> Any:
    return params


def _only(model_params: Params, params: Params) -> Any:
    del params
    return model_params


@dataclass(frozen=True)
class Task:
    """An objective, the parameters it works on, and the model that comes out.

    Attributes:
        objective: Corruption and stages.
        model: What is kept: its parameters are exported, evaluated and fine-tuned.
        init: ``init(key)``: all parameters, laid out on the mesh in force; traceable.
        apply: What the stages' losses call.
        flops: ``flops(rows, length)``: operations of a step's matrix products, of all models and
            stages, as `bert_jax.models.flops.model_flops_per_step` counts them.
        extract: The parameters of ``model`` out of all parameters.
        insert: ``insert(model_params, params)``: all parameters, with ``model`` as given.
        start: Completes the parameters of a fresh run on the host: a teacher's, say.
    """

    objective: Objective
    model: EncoderModel
    init: Callable[[jax.Array], dict[str, Any]]
    apply: Apply
    flops: Callable[[int, int], float]
    extract: Callable[[Params], Any] = _same
    insert: Callable[[Params, Params], Any] = _only
    start: Callable[[Any], Any] = _same


@runtime_checkable
class ObjectiveConfig(Protocol):
    """An objective as data."""

    def task(self, setting: Setting) -> Task:
        """The objective for a setting."""
        ...


def simple_task(model: EncoderModel, objective: Objective) -> Task:
    """The task of an objective that trains one model and needs nothing beside it.

    Operations are counted as three forward passes of the encoder and of a head of pre-training at
    every position; other heads are left out.

    Args:
        model: What is trained and kept; the losses call its ``apply``.
        objective: Corruption and stages.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        variables: Any = model.init(key)
        return variables["params"]

    def flops(rows: int, length: int) -> float:
        forward = forward_flops(model.config, length) + heads_flops(model, length)
        return 3.0 * rows * forward

    return Task(objective, model, init, model.apply, flops)


def row_keys(key: jax.Array, batch: Batch) -> jax.Array:
    """A key a row: ``key`` folded with the row's global example index.

    Where the data asks for fixed masks, with ``mask_ids``: the number of the row in the corpus, so
    that a row is masked in the same way each time it comes.
    """
    index = batch.get("mask_ids", batch["example_ids"])
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def row_sums(values: Float[Array, "rows slots"], weights: Float[Array, "rows slots"]) -> Any:
    """``values`` weighted, and the weights, summed over each row."""
    return jnp.sum(values * weights, axis=-1), jnp.sum(weights, axis=-1)


def split_passed(result: Sums | Passed) -> Passed:
    """What a loss returned, in its longer form, with sums over the batch where it gave rows."""
    sums, batch = result if isinstance(result, Passed) else (result, {})
    return Passed({n: (jnp.sum(s), jnp.sum(w)) for n, (s, w) in sums.items()}, batch)


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
