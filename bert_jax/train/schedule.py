"""Learning-rate schedules: a factor of the peak as a function of the step, in float32.

``factor(step)`` is the factor of the update that is made at ``step`` (from 0). With a warm-up
from 0 the first update therefore has rate 0, as in optax, fairseq and transformers;
``warmup_from`` starts higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Step = Int[Array, ""] | int


@dataclass(frozen=True)
class _Warmup:
    """Linear warm-up.

    Attributes:
        warmup_steps: Steps until the factor is 1.
        warmup_from: Factor of step 0.
    """

    warmup_steps: int = 0
    warmup_from: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"schedule.warmup_steps is {self.warmup_steps}; it is 0 or more.")
        if not 0 <= self.warmup_from <= 1:
            raise ValueError(f"schedule.warmup_from is {self.warmup_from}; it lies in [0, 1].")

    def factor(self, step: Step, total_steps: int) -> Float[Array, ""]:
        """Factor of the peak learning rate for the update made at ``step``.

        Args:
            step: From 0.
            total_steps: Steps of the whole run.
        """
        step = jnp.asarray(step, jnp.float32)
        after = self._after_warmup(step, float(total_steps))
        if self.warmup_steps == 0:
            return after
        rise = self.warmup_from + (1 - self.warmup_from) * step / self.warmup_steps
        return jnp.where(step < self.warmup_steps, rise, after)

    def _after_warmup(self, step: Float[Array, ""], total: float) -> Float[Array, ""]:
        raise NotImplementedError

    def _progress(self, step: Float[Array, ""], start: float, end: float) -> Float[Array, ""]:
        """0 at ``start``, 1 at ``end``, clipped outside."""
        return jnp.clip((step - start) / max(end - start, 1.0), 0.0, 1.0)

    def _check_final(self, name: str, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"schedule.{name} is {value}; it lies in [0, 1].")


@dataclass(frozen=True)
class Linear(_Warmup):
    """Warm-up, then a straight line to ``final`` at the last step (fairseq's polynomial)."""

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_final("final", self.final)

    def _after_warmup(self, step, total):
        return 1 - (1 - self.final) * self._progress(step, self.warmup_steps, total)


@dataclass(frozen=True)
class Cosine(_Warmup):
    """Warm-up, then half a cosine to ``final`` at the last step (Loshchilov & Hutter 2017)."""

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_final("final", self.final)

    def _after_warmup(self, step, total):
        turn = jnp.cos(jnp.pi * self._progress(step, self.warmup_steps, total))
        return self.final + (1 - self.final) * 0.5 * (1 + turn)


@dataclass(frozen=True)
class Constant(_Warmup):
    """Warm-up, then the peak for ever."""

    def _after_warmup(self, step, total):
        return jnp.ones_like(step)


@dataclass(frozen=True)
class Trapezoid(_Warmup):
    """Warm-up, plateau, decay over the last ``decay_steps`` (warm-up-stable-decay).

    Attributes:
        decay_steps: Length of the decay.
        decay: ``linear``, or ``1-sqrt``: ``1 - sqrt(x)`` of the decay's progress x (Haegele et al.
            2024, arXiv:2405.18392; ModernBERT).
        final: Factor at the last step.
    """

    decay_steps: int = 0
    decay: Literal["linear", "1-sqrt"] = "linear"
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_final("final", self.final)
        if self.decay_steps < 0:
            raise ValueError(f"schedule.decay_steps is {self.decay_steps}; it is 0 or more.")

    def _after_warmup(self, step, total):
        if self.decay_steps == 0:
            return jnp.ones_like(step)
        progress = self._progress(step, total - self.decay_steps, total)
        fall = progress if self.decay == "linear" else jnp.sqrt(progress)
        return self.final + (1 - self.final) * (1 - fall)


Schedule = Linear | Cosine | Constant | Trapezoid
