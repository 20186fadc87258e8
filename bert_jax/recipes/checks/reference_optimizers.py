"""Optimizers as their sources write them: plain numpy, float64, one variable at a time.

They share nothing with `bert_jax.train.optimizer`, which they check. A variable is one tensor of
the original code: where this package stacks layers, each layer's slice is one. Gradients come
clipped (`clip_by_global_norm`); rates are those of each update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

Variables = Mapping[str, Float64[np.ndarray, "..."]]


def clip_by_global_norm(gradients: Variables, limit: float | None) -> dict[str, np.ndarray]:
    """Gradients scaled so that their L2 norm together is ``limit`` at most; None leaves them.

    ``tf.clip_by_global_norm``: ``g * limit / max(norm, limit)``. (torch adds 1e-6 to the norm.)
    """
    if limit is None:
        return dict(gradients)
    norm = float(np.sqrt(sum(float(np.sum(g * g)) for g in gradients.values())))
    return {name: g * (limit / max(norm, limit)) for name, g in gradients.items()}


def adamw(
    variables: Variables,
    gradients: Sequence[Variables],
    rates: Sequence[float],
    decayed: Collection[str],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> dict[str, np.ndarray]:
    """torch.optim.AdamW: corrected moments; ``p -= rate (m / (sqrt(v) + eps) + decay p)``."""
    values, m, v = _start(variables)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        for name, g in gradient.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            corrected = m[name] / (1 - b1**step)
            scale = np.sqrt(v[name] / (1 - b2**step)) + eps
            decay = weight_decay if name in decayed else 0.0
            values[name] = values[name] - rate * (corrected / scale + decay * values[name])
    return values


def fairseq_adam(
    variables: Variables,
    gradients: Sequence[Variables],
    rates: Sequence[float],
    decayed: Collection[str],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> dict[str, np.ndarray]:
    """fairseq/optim/adam.py: epsilon before the correction, decay of the old value.

    ``p -= rate decay p``; then ``p -= rate sqrt(1 - b2^k) / (1 - b1^k) m / (sqrt(v) + eps)``.
    """
    values, m, v = _start(variables)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        size = rate * np.sqrt(1 - b2**step) / (1 - b1**step)
        for name, g in gradient.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            decay = weight_decay if name in decayed else 0.0
            kept = values[name] - rate * decay * values[name]
            values[name] = kept - size * m[name] / (np.sqrt(v[name]) + eps)
    return values


def bert_adam(
    variables: Variables,
    gradients: Sequence[Variables],
    rates: Sequence[float],
    decayed: Collection[str],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> dict[str, np.ndarray]:
    """google-research/bert, optimization.py: no correction; decay joins the update.

    ``p -= rate (m / (sqrt(v) + eps) + decay p)``. Also ELECTRA's and, by another name, DeBERTa's.
    """
    values, m, v = _start(variables)
    for gradient, rate in zip(gradients, rates, strict=True):
        for name, g in gradient.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            update = m[name] / (np.sqrt(v[name]) + eps)
            if name in decayed:
                update = update + weight_decay * values[name]
            values[name] = values[name] - rate * update
    return values


def lamb(
    variables: Variables,
    gradients: Sequence[Variables],
    rates: Sequence[float],
    decayed: Collection[str],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> dict[str, np.ndarray]:
    """google-research/albert, lamb_optimizer.py: BERT's update times ``|p| / |update|``.

    What is not decayed has no trust ratio either: exclude_from_layer_adaptation defaults to
    exclude_from_weight_decay.
    """
    values, m, v = _start(variables)
    for gradient, rate in zip(gradients, rates, strict=True):
        for name, g in gradient.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            update = m[name] / (np.sqrt(v[name]) + eps)
            ratio = 1.0
            if name in decayed:
                update = update + weight_decay * values[name]
                size, step = np.linalg.norm(values[name]), np.linalg.norm(update)
                ratio = float(size / step) if size > 0 and step > 0 else 1.0
            values[name] = values[name] - rate * ratio * update
    return values


def stable_adamw(
    variables: Variables,
    gradients: Sequence[Variables],
    rates: Sequence[float],
    decayed: Collection[str],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    max_rate: float,
) -> dict[str, np.ndarray]:
    """AnswerDotAI/ModernBERT, src/optimizer.py, decoupled_stableadamw.

    Betas are corrected instead of moments, ``b (1 - b^(k-1)) / (1 - b^k)``; each variable's rate is
    divided by the root mean square of ``g / max(sqrt(v), eps)`` where that exceeds 1; the decay
    is ``weight_decay`` at the rate ``max_rate`` and in proportion below.
    """
    values, m, v = _start(variables)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = b1 * (1 - b1 ** (step - 1)) / (1 - b1**step)
        second = b2 * (1 - b2 ** (step - 1)) / (1 - b2**step)
        for name, g in gradient.items():
            m[name] = first * m[name] + (1 - first) * g
            v[name] = second * v[name] + (1 - second) * g * g
            spread = np.sqrt(np.mean(g * g / np.maximum(v[name], eps * eps)))
            own = rate / max(1.0, float(spread))
            decay = weight_decay if name in decayed else 0.0
            kept = values[name] * (1 - own / max_rate * decay)
            values[name] = kept - own * m[name] / (np.sqrt(v[name]) + eps)
    return values


def _start(variables: Variables):
    """Copies of the variables, and their two moments at zero."""
    values = {name: np.array(value, np.float64) for name, value in variables.items()}
    zeros = {name: np.zeros_like(value) for name, value in values.items()}
    return values, zeros, dict(zeros)
