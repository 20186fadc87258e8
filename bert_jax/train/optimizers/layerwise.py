"""Adam with a learning rate of each tensor's own: LAMB and StableAdamW.

Rows that only pad the token table to a multiple of 128 begin at zero and stay there. They add
nothing to LAMB's norms; in StableAdamW's mean over a tensor they count as zeros, which lowers it by
.13 % for a vocabulary of 50,368 entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bert_jax.models.paths import by_path, from_paths
from bert_jax.train.optimizers.adam import per_rate, scale_by_bert_adam
from bert_jax.train.optimizers.base import (
    Clip,
    Decay,
    DecayScale,
    Moments,
    OptimizerBase,
    bias_correction,
    clipped,
    init_moments,
    map_with_words,
    tensor_axes,
)

# Modules that AnswerDotAI/ModernBERT keeps as one: Wqkv, and Wi of its gated feed-forward map.
FUSED = {"query": "qkv", "key": "qkv", "value": "qkv", "mlp_in": "wi", "mlp_gate": "wi"}


@dataclass(frozen=True)
class Lamb(OptimizerBase):
    """LAMB (You et al., arXiv:1904.00962) as google-research/albert has it (lamb_optimizer.py).

    Per step, for each tensor: ``u = m / (sqrt(v) + eps) + weight_decay * p``, moments without bias
    correction, then ``p -= lr * |p| / |u| * u``. The ratio is 1 where ``|p|`` or ``|u|`` is 0. A
    parameter that is not decayed has no ratio either.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Part of ``u``.
        decay: As in `AdamW`; also the parameters that have a trust ratio.
        clip_norm: Gradients of greater L2 norm are scaled down to it; None never clips.
        clip: As in `BertAdam`.
    """

    learning_rate: float = 1.76e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay: Decay = "matrices"
    clip_norm: float | None = 1.0
    clip: Clip = "global"

    def direction(self) -> optax.GradientTransformation:
        """Clip (if it is global), moments, decay, trust ratio; times ``-rate`` is the update."""
        return optax.chain(
            clipped(self.clip_norm if self.clip == "global" else None),
            scale_by_bert_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, mask=self.decay_mask),
            optax.masked(scale_by_trust_ratio(), self.decay_mask),
        )


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Multiplies the update of every tensor by ``|p| / |u|``; by 1 where one of them is 0."""

    def one(path: tuple[str, ...], u: Float[Array, "*shape"], p: Float[Array, "*shape"]) -> Any:
        axes = tensor_axes(path, u.ndim)
        norm = lambda x: jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))  # noqa: E731
        of_p, of_u = norm(p), norm(u)
        usable = (of_p > 0) & (of_u > 0)
        return u * jnp.where(usable, of_p / jnp.where(usable, of_u, 1.0), 1.0)

    return optax.stateless(lambda updates, params: map_with_words(one, updates, params))


@dataclass(frozen=True)
class StableAdamW(OptimizerBase):
    """StableAdamW (Wortsman et al., arXiv:2304.13013) as AnswerDotAI/ModernBERT has it.

    Per step t from 1 (src/optimizer.py, from optimi): the moments are averages with the debiased
    ``b (1 - b^(t-1)) / (1 - b^t)``; for each tensor ``lr_t = lr / max(1, sqrt(mean(g^2 / max(v,
    eps^2))))``; ``p *= 1 - lr_t / max_lr * weight_decay``; ``p -= lr_t * m / (sqrt(v) + eps)``.
    The code applied to all tensors at once, which ran on GPUs, is meant: the loop over tensors
    beside it carries ``lr_t`` from one to the next.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Decoupled.
        decay: As in `AdamW`.
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips.
        decay_scale: ``relative``: the decay is scaled by lr_t over ``max_learning_rate``; ``rate``:
            by lr_t.
        max_learning_rate: Of ``relative``; None is the optimizer's own peak. A later phase at a
            lower peak keeps the first one's here, as ModernBERT's restored optimizer does.
        tensors: What counts as one tensor: ``fused``: query, key and value together, and the
            feed-forward layer's map with its gate, as ModernBERT stores them; ``separate``: each.
    """

    learning_rate: float = 8e-4
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 1e-5
    decay: Decay = "not_vectors"
    clip_norm: float | None = None
    decay_scale: DecayScale = "relative"
    max_learning_rate: float | None = None
    tensors: Literal["fused", "separate"] = "fused"

    def direction(self) -> optax.GradientTransformation:
        """Clip, moments, decay, each tensor's divisor: times ``-rate`` is the update."""
        return optax.chain(
            clipped(self.clip_norm), optax.GradientTransformation(init_moments, self._update)
        )

    def _update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count = optax.safe_increment(jnp.asarray(state.count))
        # 1 - b (1 - b^(t-1)) / (1 - b^t), without cancellation.
        new1 = (1 - self.b1) / bias_correction(self.b1, count)
        new2 = (1 - self.b2) / bias_correction(self.b2, count)
        mu = jax.tree.map(lambda m, g: m + new1 * (g - m), state.mu, updates)
        nu = jax.tree.map(lambda v, g: v + new2 * (g * g - v), state.nu, updates)
        ratio = lambda g, v: g * g / jnp.maximum(v, self.eps**2)  # noqa: E731
        divisors = _divisors(jax.tree.map(ratio, updates, nu), self.tensors)
        decay = per_rate(self.weight_decay, self)

        def one(m, v, p, decayed, divisor):
            step = m / (jnp.sqrt(v) + self.eps)
            return (step + decay * p if decayed else step) / divisor

        mask = self.decay_mask(params)
        return jax.tree.map(one, mu, nu, params, mask, divisors), Moments(count, mu, nu)


def _divisors(ratios: Any, tensors: Literal["fused", "separate"]) -> Any:
    """``max(1, sqrt(mean))`` over each tensor, of a form that broadcasts against its leaf."""
    flat = by_path(ratios)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in flat:
        groups.setdefault(_tensor_of(tuple(name.split("/")), tensors), []).append(name)
    divisors = {}
    for names in groups.values():
        sums, size = [], 0
        for name in names:
            axes = tensor_axes(tuple(name.split("/")), flat[name].ndim)
            sums.append(jnp.sum(flat[name], axis=axes, keepdims=True))
            size += flat[name].size // sums[-1].size
        mean = sum(sums[1:], sums[0]) / size
        divisors |= dict.fromkeys(names, jnp.maximum(1.0, jnp.sqrt(mean)))
    return from_paths(divisors)


def _tensor_of(path: tuple[str, ...], tensors: Literal["fused", "separate"]) -> tuple[str, ...]:
    """Name of the tensor to which the parameter at a path belongs."""
    if tensors == "separate" or len(path) < 2:
        return path
    return (*path[:-2], FUSED.get(path[-2], path[-2]), path[-1])
