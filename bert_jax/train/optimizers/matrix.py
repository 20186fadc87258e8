"""Optimizers for which a parameter is a matrix: Adafactor and Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import optax
import optax.contrib
from jaxtyping import Array, Float

from bert_jax.parallel import specs
from bert_jax.train.optimizers.base import (
    Decay,
    OptimizerBase,
    clipped,
    is_stacked,
    map_with_words,
    per_tensor,
)


@dataclass(frozen=True)
class Adafactor(OptimizerBase):
    """Adafactor (Shazeer & Stern, arXiv:1804.04235) as T5 uses it (mesh_tensorflow/optimize.py).

    Per step t from 1, for each tensor: the second moment v averages ``g^2 + eps`` with ``1 -
    t^-power``, kept as its row and column means where the tensor is large enough; ``u = g /
    sqrt(v)``, divided by ``max(1, rms(u) / clip_rms)``; ``p -= lr * max(min_scale, rms(p)) * u``.
    There is no momentum. T5's rate ``1 / sqrt(max(step, 10_000))`` is a peak of .01 under
    `bert_jax.train.schedule.InverseSqrt` with ``constant=10_000``.

    Attributes:
        learning_rate: Peak, relative to each tensor's root mean square.
        second_moment_power: How fast the second moment's memory grows.
        eps: Added to the squared gradient.
        clip_rms: Root mean square to which greater updates of a tensor are scaled down.
        min_scale: Least root mean square that a tensor is taken to have.
        min_size_to_factor: A tensor is factored if its two longest axes have this length or more.
        weight_decay: Decoupled, scaled by the learning rate alone (torch.optim.Adafactor); T5 has
            none.
        decay: As in `AdamW`.
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips.
    """

    learning_rate: float = 1e-2
    second_moment_power: float = 0.8
    eps: float = 1e-30
    clip_rms: float = 1.0
    min_scale: float = 1e-3
    min_size_to_factor: int = 128
    weight_decay: float = 0.0
    decay: Decay = "matrices"
    clip_norm: float | None = None

    def direction(self) -> optax.GradientTransformation:
        """Clip, factored scaling, each tensor's size, decay: times ``-rate`` is the update."""
        return optax.chain(
            clipped(self.clip_norm),
            per_tensor(
                optax.chain(
                    optax.scale_by_factored_rms(
                        decay_rate=self.second_moment_power,
                        min_dim_size_to_factor=self.min_size_to_factor,
                        epsilon=self.eps,
                    ),
                    optax.clip_by_block_rms(self.clip_rms),
                    optax.scale_by_param_block_rms(self.min_scale),
                )
            ),
            optax.add_decayed_weights(self.weight_decay, mask=self.decay_mask),
        )


@dataclass(frozen=True)
class Muon(OptimizerBase):
    """Muon for the matrices of the layers (Jordan et al. 2024, github.com/KellerJordan/Muon).

    Per step, for each matrix: ``m = momentum * m + (1 - momentum) * g``; ``n = momentum * m + (1 -
    momentum) * g`` (Nesterov); ``o`` is n made orthogonal by Newton-Schulz iterations
    (optax.contrib), so that its singular values are near 1; ``p -= lr * (scale * o + weight_decay *
    p)``, where ``scale`` is ``sqrt(max(1, out / in))``, or ``rms * sqrt(max(in, out))``.
    torch.optim.Muon is the same, with its iterations in bfloat16. Embeddings, heads, biases and
    norms go by `AdamW`, with the same decay and schedule.

    Under a mesh each device orthogonalises whole matrices: they are gathered first.

    Attributes:
        learning_rate: Peak, of matrices.
        momentum: Decay of the average of gradients.
        iterations: Of Newton-Schulz.
        rms: None scales by shape as above; a number makes it the root mean square of an update's
            entries (.2 is AdamW's; Liu et al., arXiv:2502.16982).
        weight_decay: Decoupled, scaled by the learning rate.
        decay: As in `AdamW`.
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips.
        rest_learning_rate: Peak of all other parameters; None is that of matrices.
        rest_b1: Decay of the first moment of the others.
        rest_b2: Decay of the second moment of the others.
        eps: Outside the square root, of the others.
    """

    learning_rate: float = 2e-2
    momentum: float = 0.95
    iterations: int = 5
    rms: float | None = None
    weight_decay: float = 0.01
    decay: Decay = "matrices"
    clip_norm: float | None = None
    rest_learning_rate: float | None = None
    rest_b1: float = 0.9
    rest_b2: float = 0.95
    eps: float = 1e-8

    def direction(self) -> optax.GradientTransformation:
        """Clip, orthogonal momentum or Adam, decay: times ``-learning rate`` is the update."""
        relative = (self.rest_learning_rate or self.learning_rate) / self.learning_rate
        decayed = lambda: optax.add_decayed_weights(  # noqa: E731
            self.weight_decay, mask=self.decay_mask
        )
        return optax.chain(
            clipped(self.clip_norm),
            optax.partition(
                {
                    "matrix": optax.chain(self._orthogonal(), decayed()),
                    "rest": optax.chain(
                        optax.scale_by_adam(self.rest_b1, self.rest_b2, self.eps),
                        decayed(),
                        optax.scale(relative),
                    ),
                },
                lambda params: map_with_words(
                    lambda path, p: "matrix" if is_matrix(path, p.ndim) else "rest", params
                ),
            ),
        )

    def _orthogonal(self) -> optax.GradientTransformation:
        """Nesterov momentum, made orthogonal and scaled."""

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            del params
            average = lambda g, m: self.momentum * m + (1 - self.momentum) * g  # noqa: E731
            trace = jax.tree.map(average, updates, state.trace)
            nesterov = jax.tree.map(average, updates, trace)
            return jax.tree.map(self._orthogonalised, nesterov), optax.TraceState(trace)

        return optax.GradientTransformation(
            lambda params: optax.TraceState(optax.tree.zeros_like(params)), update
        )

    def _orthogonalised(self, x: Float[Array, "*layers in out"]) -> Float[Array, "*layers in out"]:
        """Each matrix of ``x`` made orthogonal and scaled, in the layout of ``x``."""
        dims = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
        newton_schulz = optax.contrib.scale_by_muon(  # its own momentum off: no state that matters
            ns_steps=self.iterations, beta=0.0, nesterov=False, weight_dimension_numbers=dims
        )
        # A product of a matrix with itself has no layout where the summed axis is split.
        whole = specs.constrain(x)
        result: Any = newton_schulz.update(whole, newton_schulz.init(whole))[0]
        rows, columns = x.shape[-2:]
        if self.rms is None:
            result = result * math.sqrt(max(1.0, columns / rows))
        else:
            result = result * (self.rms * math.sqrt(max(rows, columns)))
        if jax.sharding.get_abstract_mesh().empty:
            return result
        return jax.reshard(result, jax.typeof(x).sharding.spec)


def is_matrix(path: tuple[str, ...], ndim: int) -> bool:
    """Whether `Muon` orthogonalises the parameter at a path: the kernels of the layers."""
    return is_stacked(path) and path[-1] == "kernel" and ndim == 3
