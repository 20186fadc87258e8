"""AdamW as data, over optax, and which parameters are decayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax

from bert_jax.models.paths import by_path

DECAYED_ROLES = ("kernel", "embedding")  # the last word of a parameter's path is its role


@dataclass(frozen=True)
class AdamW:
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) with the arithmetic of optax and torch.

    Per step: ``p -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)``.

    Attributes:
        learning_rate: Peak; the schedule's factor multiplies it.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Outside the square root.
        weight_decay: Decoupled, scaled by the learning rate.
        decay: ``matrices``: kernels and embeddings only; ``all``: biases and norms too (fairseq).
        clip_norm: Gradients of greater global L2 norm are scaled down to it; None never clips.
    """

    learning_rate: float = 1e-4
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    decay: Literal["matrices", "all"] = "matrices"
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"optimizer.{name} is {getattr(self, name)}; it must be positive.")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optimizer.{name} is {getattr(self, name)}; it lies in [0, 1).")
        if self.weight_decay < 0:
            raise ValueError(f"optimizer.weight_decay is {self.weight_decay}; it is 0 or more.")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(
                f"optimizer.clip_norm is {self.clip_norm}; it must be positive, or None."
            )

    def direction(self) -> optax.GradientTransformation:
        """Clip, moments, decay: an update still to be multiplied by ``-learning rate``."""
        return optax.chain(
            optax.identity()
            if self.clip_norm is None
            else optax.clip_by_global_norm(self.clip_norm),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, mask=self.decay_mask),
        )

    def decay_mask(self, params: Mapping[str, Any]) -> Any:
        """True for every parameter that is decayed, by the last word of its path."""
        return jax.tree_util.tree_map_with_path(
            lambda path, _: self.decay == "all" or path[-1].key in DECAYED_ROLES, params
        )


def decay_table(optimizer: AdamW, params: Mapping[str, Any]) -> str:
    """Which parameters are decayed, as a table: path, shape, count, yes or no."""
    flat = by_path(params)
    decayed = by_path(optimizer.decay_mask(params))
    width = max(len(path) for path in flat)
    lines = [f"{'parameter':<{width}}  {'shape':<18}{'count':>12}  decay"]
    totals = {True: 0, False: 0}
    for path, leaf in flat.items():
        totals[decayed[path]] += leaf.size
        shape = "x".join(map(str, leaf.shape))
        answer = "yes" if decayed[path] else "no"
        lines.append(f"{path:<{width}}  {shape:<18}{leaf.size:>12,}  {answer}")
    lines.append(f"decayed {totals[True]:,}, not decayed {totals[False]:,}")
    return "\n".join(lines)
