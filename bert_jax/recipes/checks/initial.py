"""Checks of initial values, on arrays as they are drawn."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path
from bert_jax.recipes.checks.expectation import Expectation
from bert_jax.recipes.checks.findings import Finding, close, equal
from bert_jax.recipes.checks.quick import narrowed, quickly
from bert_jax.recipes.checks.shape import MODELS

_DRAWS = 4  # of a small model
_DRAWS_OF_A_MAP = 16  # of one map as large as it is
_RESIDUAL = ("attention_out", "mlp_out")
_WORDS = "encoder/embeddings/word/embedding"
PROJECTION = "encoder/embeddings/projection/kernel"
_DETECTOR = "detector/kernel"


class Start(NamedTuple):
    """Initial values.

    Attributes:
        matrix_std: Standard deviation of matrices and tables.
        residual_std: That of the maps back to the residual stream.
        limits: Bounds of the maps, by their path, that are drawn uniformly instead.
    """

    matrix_std: float
    residual_std: float
    limits: dict[str, float]


def check_start(phase: Experiment, expected: Expectation) -> list[Finding]:
    """The model that is trained and kept, with its heads."""
    wanted = expected.shape
    model = MODELS[wanted.counts[0].counted](phase.model)
    limits = {PROJECTION: wanted.projection_limit, _DETECTOR: wanted.detector_limit}
    limits = {path: limit for path, limit in limits.items() if limit is not None}
    start = Start(wanted.matrix_std, wanted.residual_std, limits)
    zero = not _drawn(type(model), _small(phase.model))[_WORDS][:, 0].any()
    return [
        *check_initial(model, start),
        equal("padding's embedding at first 0", wanted.zero_padding, zero),
    ]


def check_initial(model: EncoderModel, wanted: Start, whose: str = "") -> list[Finding]:
    """Every matrix and table of a model with its heads, at the recipe's depth.

    Standard deviations are those of a narrow model; a bound that depends on the width is that of
    the map at its size.

    Args:
        model: Of the recipe's size.
        wanted: What is expected.
        whose: Begins the findings' names.
    """
    small = _small(model.config)
    found, deviations = [], _deviations(type(model), small)
    for path, (std, number) in deviations.items():
        if path not in wanted.limits:
            name = path.split("/")[-2]
            expected = wanted.residual_std if name in _RESIDUAL else wanted.matrix_std
            # Four times the standard error of a standard deviation, and a hundredth.
            tolerance = 0.01 + 4 / math.sqrt(2 * number)
            found.append(close(f"{whose}initial std of {name}", expected, std, tolerance))
    for path, limit in wanted.limits.items():
        name = path.split("/")[-2]
        if path not in deviations:
            found.append(equal(f"{whose}initial bound of {name}", limit, "no such map"))
            continue
        draws = _map(type(model), _outside(model.config), path)
        largest, std = np.abs(draws).max(), draws.std()
        found.append(close(f"{whose}initial bound of {name}", limit, float(largest), 0.005))
        found.append(close(f"{whose}initial std of {name}", limit / 3**0.5, float(std), 0.05))
    found.append(equal(f"{whose}initial biases, scales", "0, 1", _constants(type(model), small)))
    return found


def _small(config: EncoderConfig) -> EncoderConfig:
    """Narrow; as deep as it is only where the depth scales the maps back to the stream."""
    deep = getattr(config.initializer, "residual", "same") == "by_depth"
    return narrowed(config, 64 if deep else 96, None if deep else 2)


@functools.cache
def _drawn(kind: type[EncoderModel], small: EncoderConfig) -> dict[str, np.ndarray]:
    """Parameters of a small model, a few times over along a first axis."""
    init: Any = quickly(kind(small).init)
    several = [by_path(init(jax.random.key(key))["params"]) for key in range(_DRAWS)]
    return {p: np.stack([np.asarray(one[p], np.float64) for one in several]) for p in several[0]}


def _deviations(kind: type[EncoderModel], small: EncoderConfig) -> dict[str, tuple[float, int]]:
    """Standard deviation of each matrix and table, and of how many numbers it is."""
    found = {}
    for path, values in _drawn(kind, small).items():
        if path.endswith(("/kernel", "/embedding")):
            drawn = values[:, 1:] if path == _WORDS else values  # that of padding may start at 0
            found[path] = (float(drawn.std()), drawn.size)
    return found


def _constants(kind: type[EncoderModel], small: EncoderConfig) -> str:
    """What biases and the scales of norms start at."""
    drawn = _drawn(kind, small)
    biases = {x for p, values in drawn.items() if p.endswith("bias") for x in values.flat}
    scales = {x for p, values in drawn.items() if p.endswith("norm/scale") for x in values.flat}
    return ", ".join(f"{x:g}" for x in sorted(biases | {0.0}) + sorted(scales))


def _outside(config: EncoderConfig) -> EncoderConfig:
    """As wide as it is outside the layers, and small otherwise."""
    return dataclasses.replace(
        narrowed(config, 64, 2),
        hidden_size=config.hidden_size,
        embedding_size=config.embedding_size,
        num_heads=config.num_heads,
    )


@functools.cache
def _map(kind: type[EncoderModel], config: EncoderConfig, path: str) -> np.ndarray:
    """Draws of one map; XLA leaves out all other parameters."""

    def init(key):
        variables: Any = kind(config).init(key)
        return by_path(variables["params"])[path]

    draw = quickly(init)
    keys = range(_DRAWS_OF_A_MAP)
    return np.stack([np.asarray(draw(jax.random.key(key)), np.float64) for key in keys])
