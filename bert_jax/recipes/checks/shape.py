"""Checks of the model: parameters, which are decayed, where norms stand, activation, dropout."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.layers import activate
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.models.sizes import parameter_count, real_shape
from bert_jax.models.task_heads import SequenceClassifier
from bert_jax.recipes.checks.expectation import Counted, Shape
from bert_jax.recipes.checks.findings import Finding, close, equal, within
from bert_jax.recipes.checks.quick import narrowed, quickly, rolled

MODELS: dict[Counted, type[EncoderModel]] = {
    "body": EncoderModel,
    "masked lm": MaskedLM,
    "pre-training": PreTraining,
    "detector": ReplacedTokenDetector,
}


def check_shape(phase: Experiment, wanted: Shape) -> list[Finding]:
    """The model of a recipe's first phase.

    Heads, positions, who sees whom, the pooler and dropout are fields that are compared with the
    source's; all else is counted or measured.
    """
    config = rolled(phase.model)
    found = [
        equal(f"parameters, {counted}", number, _count(counted, config))
        for counted, number in wanted.counts
    ]
    model = MODELS[wanted.counts[0].counted](config)
    found.append(equal("parameters decayed", wanted.decayed, decayed(phase, model)))
    found += _norms(config, wanted)
    value = float(activate(config.activation, jnp.float32(2.69)))
    # The two forms of gelu are 4.7e-4 apart here.
    found.append(within("activation at 2.69", wanted.activation, value, 1e-5))
    head = config.heads.vocabulary
    if head.transform == "dense":
        value = float(activate(head.activation or config.activation, jnp.float32(2.69)))
        label = "activation at 2.69 of the vocabulary's head"
        found.append(within(label, wanted.activation, value, 1e-5))
    found += [
        equal("heads", wanted.heads, config.num_heads),
        equal("positions", wanted.positions, config.positions),
        equal("attention", wanted.attention, config.attention),
    ]
    if wanted.pooler is not None:
        pooler = config.heads.pooler
        found.append(equal("pooler", wanted.pooler, (pooler.pooling, pooler.activation)))
    rates = config.dropout
    dropout = (rates.on_embeddings, rates.attention, rates.on_attention_out)
    found.append(equal("dropout", wanted.dropout, (*dropout, rates.mlp_inner, rates.on_mlp_out)))
    return found


def _count(counted: Counted, config: EncoderConfig) -> int:
    if counted == "pooled":  # a classifier with one class, without its last map
        classifier = SequenceClassifier(config, num_labels=1)
        return parameter_count(classifier) - config.hidden_size - 1
    return parameter_count(MODELS[counted](config))


def decayed(phase: Experiment, model: EncoderModel) -> int:
    """Parameters that the phase's optimizer decays, rows that pad the vocabulary not counted."""
    variables: Any = jax.eval_shape(model.init, jax.random.key(0))
    params = variables["params"]
    mask = by_path(phase.optimizer.decay_mask(params))
    return sum(
        math.prod(real_shape(path, leaf.shape, model.config))
        for path, leaf in by_path(params).items()
        if mask[path]
    )


def _norms(config: EncoderConfig, wanted: Shape) -> list[Finding]:
    """Where norms stand, and their epsilon, by what runs through a small model."""
    small = dataclasses.replace(narrowed(config, 32, 2), embedding_size=None)
    seen, shares = _normal(small), _shares(small, wanted.eps)
    # A norm of mean square 3 e gives 3 e / (3 e + eps).
    first = shares[0] if wanted.embedding_norm else shares[-1]
    return [
        equal("norm", wanted.norm, seen.placement),
        equal("norm of the embeddings", wanted.embedding_norm, seen.embeddings),
        equal("norm at the end", True, seen.end),
        equal("norm before the first attention", wanted.first_norm, seen.first),
        close("epsilon of norms", wanted.eps, 3 * wanted.eps * (1 / max(first, 1e-30) - 1), 0.01),
        close("values after small ones' last norm", 0.75, shares[-1], 0.01),
    ]


class _Normal(NamedTuple):
    """Where what runs through a model has a mean square of 1."""

    placement: str
    embeddings: bool
    end: bool
    first: bool


@functools.cache  # sizes of a family are one when narrowed
def _normal(small: EncoderConfig) -> _Normal:
    leaves = by_path(_params(small))
    # Branches as large as the stream: what no norm follows is then not normal.
    large = {
        path: 40 * leaf if path.endswith(("/kernel", "/embedding")) else leaf
        for path, leaf in leaves.items()
    }
    # float32; epsilon is nothing beside such values.
    normal = [bool(np.allclose(np.mean(s * s, axis=-1), 1, atol=1e-3)) for s in _run(small, large)]
    scale = leaves["encoder/layers/attention_norm/scale"]
    return _Normal(
        placement="post" if all(normal[1:-1]) else "pre",
        embeddings=normal[0],
        end=normal[-1],
        first=len(scale) == small.stored_layers,
    )


@functools.cache
def _shares(small: EncoderConfig, eps: float) -> list[float]:
    """Mean squares of values as small as the root of epsilon, as shares of the norms' own.

    No branch adds to the stream, its first values have the mean square ``3 eps``, and norms have
    the scale ``2 sqrt(eps)``: a norm gives the share ``3 / (3 + 1)`` of its square, ``4 eps``,
    which is ``3 eps`` again, so that all in a row give the same.
    """
    leaves = {path: np.zeros(leaf.shape) for path, leaf in by_path(_params(small)).items()}
    for path in leaves:
        if path.endswith("norm/scale"):
            leaves[path] += 2 * math.sqrt(eps)
    word = leaves["encoder/embeddings/word/embedding"]
    signs = np.where(np.arange(word.shape[-1]) % 2, 1.0, -1.0)  # mean 0
    word += math.sqrt(3 * eps) * signs
    states = _run(small, {path: np.float32(leaf) for path, leaf in leaves.items()})
    return [float(np.mean(np.float64(s) ** 2)) / (4 * eps) for s in states]


def _params(small: EncoderConfig) -> Any:
    return _init(small)["params"]


@functools.cache
def _init(small: EncoderConfig) -> Any:
    return quickly(EncoderModel(small).init)(jax.random.key(0))


def _run(small: EncoderConfig, leaves: dict[str, Any]) -> list[np.ndarray]:
    """Input of the first layer, output of each, output of all."""
    ids = jnp.asarray(np.random.default_rng(0).integers(1, 128, (2, 16)), jnp.int32)
    output = _program(small)({"params": from_paths(leaves)}, ids)
    return [*np.asarray(output["hidden_states"]), np.asarray(output["hidden"])]


@functools.cache
def _program(small: EncoderConfig) -> Any:
    model = EncoderModel(small)
    return quickly(lambda params, ids: model.apply(params, ids, capture=("hidden_states",)))
