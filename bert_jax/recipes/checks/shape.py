"""Checks of the model: parameters, which are decayed, initial values, norms, activation."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.layers import activate
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.models.sizes import parameter_count, real_shape
from bert_jax.models.task_heads import SequenceClassifier
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.recipes.checks.expectation import Counted, Expectation
from bert_jax.recipes.checks.findings import Finding, close, equal, within

_MODELS: dict[Counted, type[EncoderModel]] = {
    "body": EncoderModel,
    "masked lm": MaskedLM,
    "pre-training": PreTraining,
    "detector": ReplacedTokenDetector,
}


def check_shape(phase: Experiment, expected: Expectation) -> list[Finding]:
    """The model of a recipe's first phase."""
    wanted, config = expected.shape, phase.model
    found = [
        equal(f"parameters, {counted}", number, _count(counted, config))
        for counted, number in wanted.counts
    ]
    model = _MODELS[wanted.counts[0].counted](config)
    found.append(equal("parameters decayed", wanted.decayed, _decayed(phase, model)))
    found += _norms(config, expected) + _initial(config, expected)
    value = float(activate(config.activation, jnp.float32(2.69)))
    # The two forms of gelu are 4.7e-4 apart here.
    found.append(within("activation at 2.69", wanted.activation, value, 1e-5))
    rates = config.dropout
    dropout = (rates.on_embeddings, rates.attention, rates.on_attention_out)
    found.append(equal("dropout", wanted.dropout, dropout))
    return found + _objective(phase, expected)


def _count(counted: Counted, config: EncoderConfig) -> int:
    if counted == "pooled":  # a classifier with one class, without its last map
        classifier = SequenceClassifier(config, num_labels=1)
        return parameter_count(classifier) - config.hidden_size - 1
    return parameter_count(_MODELS[counted](config))


def _decayed(phase: Experiment, model: EncoderModel) -> int:
    """Parameters that the phase's optimizer decays, rows that pad the vocabulary not counted."""
    variables: Any = jax.eval_shape(model.init, jax.random.key(0))
    params = variables["params"]
    mask = by_path(phase.optimizer.decay_mask(params))
    return sum(
        math.prod(real_shape(path, leaf.shape, phase.model))
        for path, leaf in by_path(params).items()
        if mask[path]
    )


def narrowed(config: EncoderConfig, width: int, layers: int | None = None) -> EncoderConfig:
    """A config of the same kind that is small enough to be run: one head, a short vocabulary."""
    return dataclasses.replace(
        config,
        vocab_size=128,
        pad_id=0,
        hidden_size=width,
        embedding_size=None,
        num_layers=config.num_layers if layers is None else layers,
        num_heads=1,
        intermediate_size=width,
        compute_dtype="float32",
        execution=Execution(loop="scan", remat="none"),  # quickly compiled
    )


def _norms(config: EncoderConfig, expected: Expectation) -> list[Finding]:
    """Where norms stand, by what runs through a small model with large weights."""
    wanted, small = expected.shape, narrowed(config, 32, 2)
    seen = _normal(small)
    return [
        equal("norm", wanted.norm, seen.placement),
        equal("norm of the embeddings", wanted.embedding_norm, seen.embeddings),
        equal("norm at the end", True, seen.end),
        equal("norm before the first attention", wanted.first_norm, seen.first),
        equal("epsilon of norms", wanted.eps, config.norm.eps),
    ]


class _Normal(NamedTuple):
    """Where what runs through a model has a mean square of 1."""

    placement: str
    embeddings: bool
    end: bool
    first: bool


@functools.cache  # sizes of a family are one when narrowed
def _normal(small: EncoderConfig) -> _Normal:
    model = EncoderModel(small)
    variables: Any = jax.jit(model.init)(jax.random.key(0))
    # Branches as large as the stream: what no norm follows is then not normal.
    leaves = {
        path: 40 * leaf if path.endswith(("/kernel", "/embedding")) else leaf
        for path, leaf in by_path(variables["params"]).items()
    }
    params = from_paths(leaves)
    ids = jnp.asarray(np.random.default_rng(0).integers(1, 128, (2, 16)), jnp.int32)
    run = jax.jit(lambda params, ids: model.apply(params, ids, capture=("hidden_states",)))
    output = run({"params": params}, ids)
    states = [*np.asarray(output["hidden_states"]), np.asarray(output["hidden"])]
    # float32; epsilon is nothing beside such values.
    normal = [bool(np.allclose(np.mean(s * s, axis=-1), 1, atol=1e-3)) for s in states]
    scale = leaves["encoder/layers/attention_norm/scale"]
    return _Normal(
        placement="post" if all(normal[1:-1]) else "pre",
        embeddings=normal[0],
        end=normal[-1],
        first=len(scale) == small.stored_layers,
    )


def _initial(config: EncoderConfig, expected: Expectation) -> list[Finding]:
    """Standard deviations of freshly drawn matrices, at the recipe's depth."""
    wanted = expected.shape
    # The depth matters only where it scales the maps back to the stream.
    deep = getattr(config.initializer, "residual", "same") == "by_depth"
    stds = _deviations(narrowed(config, 64 if deep else 96, None if deep else 2))
    found = [
        # 2 * 96^2 numbers give a standard deviation to half a per cent.
        close("initial std of query", wanted.matrix_std, stds[0], 0.02),
        close("initial std of attention_out", wanted.residual_std, stds[1], 0.02),
        close("initial std of words", wanted.matrix_std, stds[2], 0.03),
    ]
    if wanted.detector_limit is not None:
        limit = config.outer_initializer(config.hidden_size, 1)
        found.append(
            close("initial bound of the detector", wanted.detector_limit, _limit(limit), 1e-4)
        )
    return found


@functools.cache
def _deviations(small: EncoderConfig) -> tuple[float, float, float]:
    """Standard deviations of the queries' map, the map after attention, the table of words."""
    variables: Any = jax.jit(EncoderModel(small).init)(jax.random.key(1))
    params = by_path(variables["params"])
    query, out = (params[f"encoder/layers/{n}/kernel"] for n in ("query", "attention_out"))
    words = params["encoder/embeddings/word/embedding"][1:]  # the first may start at zero
    first, second, third = (float(np.asarray(x, np.float64).std()) for x in (query, out, words))
    return first, second, third


def _limit(initializer: Any) -> float:
    return float(getattr(initializer, "limit", math.nan))


def _objective(phase: Experiment, expected: Expectation) -> list[Finding]:
    objective, found = phase.objective, []
    if expected.generator is not None and isinstance(objective, ReplacedTokensObjective):
        generator = objective.generator(phase.model)
        size = (generator.hidden_size, generator.num_layers, generator.num_heads)
        weight = objective.discriminator_weight
        found.append(equal("generator, weight", expected.generator, (*size, weight)))
    elif expected.generator is not None:
        found.append(equal("objective", "replaced tokens", type(objective).__name__))
    if expected.teacher_layers:
        layers = objective.layers if isinstance(objective, DistillationObjective) else ()
        found.append(equal("layers of the teacher", expected.teacher_layers, layers))
    return found
