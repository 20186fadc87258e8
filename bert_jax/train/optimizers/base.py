"""What the optimizers share: checks of numbers, which parameters are decayed, what one tensor is.

Parameters are a nested dict. Below a word ``layers`` the first axis of every leaf counts layers;
each row of it is a tensor of its own, as in the published code, where every layer has its own
variables. All statistics of a tensor (norms, root mean squares, factors) go by that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

Decay = Literal["matrices", "all", "not_vectors"]
DecayScale = Literal["rate", "relative"]
Clip = Literal["global", "replica"]

STACK = "layers"  # below this word the first axis counts layers
UNDECAYED_ROLES = ("bias", "scale")  # the last word of a parameter's path is its role
UNDECAYED_SUFFIX = "_bias"  # biases that stand alone, such as ``head_bias``

_OPTIONAL = ("max_learning_rate", "rest_learning_rate", "clip_norm", "rms")
_POSITIVE = (
    "learning_rate",
    "eps",
    "clip_rms",
    "min_scale",
    "min_size_to_factor",
    "iterations",
    *_OPTIONAL,
)
_FRACTIONS = ("b1", "b2", "momentum", "rest_b1", "rest_b2")


@dataclass(frozen=True)
class OptimizerBase:
    """Checks the numbers of an optimizer, and says which parameters it decays."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name))

    def decay_mask(self, params: Mapping[str, Any]) -> Any:
        """True for every parameter that is decayed, in the tree of ``params``."""
        decay: Decay = getattr(self, "decay")  # noqa: B009 - a field of every optimizer
        return map_with_words(lambda path, leaf: is_decayed(decay, path, leaf.ndim), params)


def _check(name: str, value: Any) -> None:
    if value is None:  # where the field's type allows it
        return
    if name in _POSITIVE and value <= 0:
        none = ", or None" if name in _OPTIONAL else ""
        raise ValueError(f"optimizer.{name} is {value}; it must be positive{none}.")
    if name in _FRACTIONS and not 0 <= value < 1:
        raise ValueError(f"optimizer.{name} is {value}; it lies in [0, 1).")
    if name == "weight_decay" and value < 0:
        raise ValueError(f"optimizer.{name} is {value}; it is 0 or more.")
    if name == "second_moment_power" and not 0 < value <= 1:
        raise ValueError(f"optimizer.{name} is {value}; it lies in (0, 1].")


def is_decayed(decay: Decay, path: tuple[str, ...], ndim: int) -> bool:
    """Whether a parameter is decayed.

    ``matrices``: everything but biases and the scales and biases of norms (google-research/bert,
    optimization.py: all but names with ``LayerNorm``, ``layer_norm`` or ``bias``), so tables of
    embeddings, relative positions and deltas are decayed. ``all``: everything (fairseq, NeoBERT,
    MosaicBERT). ``not_vectors``: tensors of two axes or more (AnswerDotAI/ModernBERT).

    Args:
        decay: The rule.
        path: Words of the parameter's path.
        ndim: Axes of the leaf, that of the layers included.
    """
    if decay == "all":
        return True
    if decay == "not_vectors":
        return ndim - is_stacked(path) > 1
    return not (path[-1] in UNDECAYED_ROLES or path[-1].endswith(UNDECAYED_SUFFIX))


def words(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Words of a key path of jax through nested dicts."""
    return tuple(str(entry.key) for entry in path)


def is_stacked(path: tuple[str, ...]) -> bool:
    """Whether the first axis of the parameter at a path counts layers."""
    return STACK in path


def tensor_axes(path: tuple[str, ...], ndim: int) -> tuple[int, ...]:
    """Axes of a leaf that make up one tensor: all, or all but that of the layers."""
    return tuple(range(int(is_stacked(path)), ndim))


def map_with_words(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """``function(words of the path, leaf, ...)`` for every leaf."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(words(path), *leaves), tree, *rest
    )


def per_tensor(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transformation of optax, applied to every tensor by itself: to each layer of a stack too.

    Its state is a dict like the parameters, with the transformation's own state of one tensor at
    each leaf (stacked where the tensor is).

    Args:
        transform: A transformation of one array.
    """

    def init(params: Any) -> Any:
        return map_with_words(
            lambda path, p: (jax.vmap(transform.init) if is_stacked(path) else transform.init)(p),
            params,
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, tree = jax.tree_util.tree_flatten_with_path(updates)
        states, weights = tree.flatten_up_to(state), tree.flatten_up_to(params)
        results = []
        for (path, leaf), own, weight in zip(leaves, states, weights, strict=True):
            one = jax.vmap(transform.update) if is_stacked(words(path)) else transform.update
            results.append(one(leaf, own, weight))
        return tree.unflatten([u for u, _ in results]), tree.unflatten([s for _, s in results])

    return optax.GradientTransformation(init, update)


def clipped(norm: float | None) -> optax.GradientTransformation:
    """Scales gradients of a global L2 norm above ``norm`` down to it; None never does."""
    return optax.identity() if norm is None else optax.clip_by_global_norm(norm)


def bias_correction(decay: float, count: ArrayLike) -> Float[Array, ""]:
    """``1 - decay**count`` in float32, without the cancellation of that form for a small count."""
    if decay == 0:
        return jnp.ones((), jnp.float32)
    return -jnp.expm1(jnp.asarray(count, jnp.float32) * math.log(decay))


Moments = optax.ScaleByAdamState


def init_moments(params: Any) -> Moments:
    """No update yet: moments of 0 in the parameters' types and layouts."""
    zeros = optax.tree.zeros_like
    return Moments(jnp.zeros((), jnp.int32), zeros(params), zeros(params))


def next_moments(gradients: Any, state: Moments, b1: float, b2: float) -> Moments:
    """Exponential moving averages of gradients and of their squares."""
    return Moments(
        optax.safe_increment(jnp.asarray(state.count)),
        optax.tree.update_moment(gradients, state.mu, b1, 1),
        optax.tree.update_moment(gradients, state.nu, b2, 2),
    )
