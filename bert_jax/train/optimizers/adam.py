"""Adam with decoupled weight decay, in the four arithmetics of published recipes.

They differ in the correction of the moments' bias, in where epsilon stands and in what scales the
decay; the size of the first update of a constant gradient shows it: lr for `AdamW` and
`FairseqAdam`, ``lr (1 - b1) / sqrt(1 - b2)`` for `BertAdam`, that is 3.16 lr for b2 = .999 and .707
lr for b2 = .98.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.train.optimizers.base import (
    Clip,
    Decay,
    DecayScale,
    OptimizerBase,
    bias_correction,
    clipped,
    init_moments,
    next_moments,
)


@dataclass(frozen=True)
class AdamW(OptimizerBase):
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) with the arithmetic of optax and torch.

    Per step: ``p -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)``; with ``decay_scale``
    relative (composer's DecoupledAdamW, optim/decoupled_weight_decay.py)
    ``p -= lr * m_hat / (sqrt(v_hat) + eps) + lr / max_lr * weight_decay * p``.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Decoupled.
        decay: ``matrices``: all but biases and norms; ``all``: these too (fairseq, MosaicBERT);
            ``not_vectors``: tensors of two axes or more (ModernBERT).
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips.
        decay_scale: What the decay is multiplied by: ``rate``, the learning rate; ``relative``, the
            learning rate over ``max_learning_rate``.
        max_learning_rate: Of ``relative``; None is the optimizer's own peak.
    """

    learning_rate: float = 1e-4
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    decay: Decay = "matrices"
    clip_norm: float | None = 1.0
    decay_scale: DecayScale = "rate"
    max_learning_rate: float | None = None

    def direction(self) -> optax.GradientTransformation:
        """Clip, moments, decay: an update still to be multiplied by ``-learning rate``."""
        decay = per_rate(self.weight_decay, self)
        return optax.chain(
            clipped(self.clip_norm),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(decay, mask=self.decay_mask),
        )


def per_rate(weight_decay: float, optimizer: Any) -> float:
    """What the learning rate is to be multiplied by to give the decay of a step.

    Args:
        weight_decay: As the recipe states it.
        optimizer: With ``decay_scale``, ``learning_rate`` and ``max_learning_rate``.
    """
    if optimizer.decay_scale == "rate":
        return weight_decay
    return weight_decay / (optimizer.max_learning_rate or optimizer.learning_rate)


@dataclass(frozen=True)
class BertAdam(OptimizerBase):
    """Adam of google-research/bert (optimization.py), which corrects no bias of the moments.

    Per step: ``p -= lr * (m / (sqrt(v) + eps) + weight_decay * p)``. google-research/electra
    (model/optimization.py) and XAdam of microsoft/DeBERTa (optims/xadam.py) are the same.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Decoupled, scaled by the learning rate.
        decay: As in `AdamW`.
        clip_norm: Gradients of greater L2 norm are scaled down to it; None never clips.
        clip: Whose norm: ``global``, that of the gradient of the whole batch; ``replica``, that of
            each replica's own gradient before they are averaged (Google's code on TPU). The train
            step does the latter.
    """

    learning_rate: float = 1e-4
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay: Decay = "matrices"
    clip_norm: float | None = 1.0
    clip: Clip = "global"

    def direction(self) -> optax.GradientTransformation:
        """Clip (if it is global), moments, decay: an update to be multiplied by ``-rate``."""
        return optax.chain(
            clipped(self.clip_norm if self.clip == "global" else None),
            scale_by_bert_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, mask=self.decay_mask),
        )


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """``m / (sqrt(v) + eps)`` of moments without bias correction."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        state = next_moments(updates, state, b1, b2)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), state.mu, state.nu), state

    return optax.GradientTransformation(init_moments, update)


@dataclass(frozen=True)
class FairseqAdam(OptimizerBase):
    """Adam of fairseq (optim/adam.py), which adds epsilon before it corrects the bias.

    Per step t from 1: ``p -= lr * (sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps) + weight_decay
    * p)``, so epsilon counts ``1 / sqrt(1 - b2^t)`` times as much as in `AdamW`.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Decoupled, scaled by the learning rate.
        decay: As in `AdamW`; fairseq leaves nothing out.
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips, as
            fairseq's 0.
    """

    learning_rate: float = 1e-4
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: Decay = "all"
    clip_norm: float | None = None

    def direction(self) -> optax.GradientTransformation:
        """Clip, moments, decay: an update still to be multiplied by ``-learning rate``."""
        return optax.chain(
            clipped(self.clip_norm),
            scale_by_fairseq_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, mask=self.decay_mask),
        )


def scale_by_fairseq_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """``sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)``."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        state = next_moments(updates, state, b1, b2)
        size = jnp.sqrt(bias_correction(b2, state.count)) / bias_correction(b1, state.count)
        return jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + eps), state.mu, state.nu), state

    return optax.GradientTransformation(init_moments, update)
