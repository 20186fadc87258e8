"""Learning-rate schedules: a factor of the peak as a function of the run's clock, on the host.

``factor(now, total)`` is the factor of the update that is made when the clock shows ``now``; the
first update is made at 0. Both are in the unit of the clock (`Clock`), as are the lengths in the
records. With a warm-up from 0 the first update therefore has rate 0, as in google-research/bert,
fairseq, optax and transformers: the first batch changes only the moments. ``warmup_from`` starts
higher; ``1 / (n + 1)`` with a warm-up of n steps gives ``(step + 1) / (n + 1)``.

A published run is a schedule and a total; where the total lies beyond the run's end (a first phase
of a longer schedule), the run stops in mid-course.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

Clock = Literal["steps", "tokens", "seconds"]

_LENGTHS = ("warmup", "decay_length")  # in units of the clock
_FACTORS = ("warmup_from", "final", "start")


@dataclass(frozen=True)
class _Checked:
    """Checks the numbers of a schedule, by their names."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name))

    def factor(self, now: float, total: float) -> float:
        """Factor of the peak learning rate for the update made at ``now``.

        Args:
            now: What the clock shows, from 0.
            total: Where the schedule ends, in the same unit.

        Raises:
            ValueError: ``total`` is not positive, or ``now`` is negative.
        """
        if total <= 0:
            raise ValueError(f"the schedule's total is {total}; it must be positive.")
        if now < 0:
            raise ValueError(f"the clock shows {now}; it counts from 0.")
        return self._factor(float(now), float(total))

    def _factor(self, now: float, total: float) -> float:
        raise NotImplementedError


def _check(name: str, value: Any) -> None:
    if name in _LENGTHS and value < 0:
        raise ValueError(f"schedule.{name} is {value}; it is 0 or more.")
    if name in _FACTORS and not 0 <= value <= 1:
        raise ValueError(f"schedule.{name} is {value}; it lies in [0, 1].")
    if name in ("power", "constant") and value <= 0:
        raise ValueError(f"schedule.{name} is {value}; it must be positive.")
    if name == "peak" and not 0 < value < 1:
        raise ValueError(f"schedule.peak is {value}; it lies between 0 and 1.")
    if name == "end" and value is not None and value <= 0:
        raise ValueError(f"schedule.end is {value}; it must be positive, or None.")


@dataclass(frozen=True)
class _Warmup(_Checked):
    """Linear warm-up.

    Attributes:
        warmup: Length until the factor is 1.
        warmup_from: Factor at 0.
    """

    warmup: float = 0.0
    warmup_from: float = 0.0

    def _factor(self, now: float, total: float) -> float:
        if now < self.warmup:
            return self.warmup_from + (1 - self.warmup_from) * now / self.warmup
        return self._after_warmup(now, total)

    def _after_warmup(self, now: float, total: float) -> float:
        raise NotImplementedError


def _progress(now: float, start: float, end: float) -> float:
    """0 until ``start``, 1 from ``end`` on, straight between them."""
    if now >= end:
        return 1.0
    return max(now - start, 0.0) / (end - start)


@dataclass(frozen=True)
class Linear(_Warmup):
    """Warm-up, then a straight line to ``final`` at the end (fairseq's polynomial of power 1)."""

    final: float = 0.0

    def _after_warmup(self, now: float, total: float) -> float:
        return 1 - (1 - self.final) * _progress(now, self.warmup, total)


@dataclass(frozen=True)
class Polynomial(_Warmup):
    """Warm-up, then ``final + (1 - final) (1 - x)^power`` of the progress x since its end.

    fairseq's polynomial_decay (optim/lr_scheduler/polynomial_decay_schedule.py).
    """

    power: float = 1.0
    final: float = 0.0

    def _after_warmup(self, now: float, total: float) -> float:
        left = 1 - _progress(now, self.warmup, total)
        return self.final + (1 - self.final) * left**self.power


@dataclass(frozen=True)
class Cosine(_Warmup):
    """Warm-up, then half a cosine to ``final`` (Loshchilov & Hutter 2017, arXiv:1608.03983).

    Attributes:
        final: Factor at the end of the cosine and after it.
        end: Where the cosine ends; None: with the schedule. NeoBERT's ends at step 900,000 of
            1,000,000.
    """

    final: float = 0.0
    end: float | None = None

    def _after_warmup(self, now: float, total: float) -> float:
        turn = math.cos(math.pi * _progress(now, self.warmup, self.end or total))
        return self.final + (1 - self.final) * 0.5 * (1 + turn)


@dataclass(frozen=True)
class Constant(_Warmup):
    """Warm-up, then the peak for ever."""

    def _after_warmup(self, now: float, total: float) -> float:
        del now, total
        return 1.0


@dataclass(frozen=True)
class Trapezoid(_Warmup):
    """Warm-up, plateau, decay over the last ``decay_length`` (warm-up-stable-decay).

    A decay as long as the schedule has no plateau. With the decay's progress x the factor is
    ``final + (1 - final) (1 - fall(x))``.

    Attributes:
        decay_length: Length of the decay; 0: none.
        decay: ``linear``: fall(x) = x; ``1-sqrt``: sqrt(x) (Haegele et al. 2024, arXiv:2405.18392;
            ModernBERT, src/scheduler.py); ``cosine``: half a cosine.
        final: Factor at the end.
    """

    decay_length: float = 0.0
    decay: Literal["linear", "1-sqrt", "cosine"] = "linear"
    final: float = 0.0

    def _after_warmup(self, now: float, total: float) -> float:
        if self.decay_length == 0:
            return 1.0
        x = _progress(now, total - self.decay_length, total)
        fall = {"linear": x, "1-sqrt": math.sqrt(x), "cosine": 0.5 * (1 - math.cos(math.pi * x))}
        return self.final + (1 - self.final) * (1 - fall[self.decay])


@dataclass(frozen=True)
class InverseSqrt(_Warmup):
    """``1 / sqrt(now)``, 1 until ``constant`` or the end of the warm-up, whichever is later.

    T5's ``1 / sqrt(max(step, 10_000))`` is a peak of .01 with ``constant=10_000``; with a warm-up
    instead it is fairseq's inverse_sqrt (Vaswani et al. 2017, arXiv:1706.03762).

    Attributes:
        constant: Until here the factor is 1.
    """

    constant: float = 1.0

    def _after_warmup(self, now: float, total: float) -> float:
        del total
        start = max(self.constant, self.warmup)
        return math.sqrt(start / max(now, start))


@dataclass(frozen=True)
class BertLinear(_Checked):
    """A line from 1 at 0 to 0 at the end, replaced by the warm-up while that lasts.

    So the factor falls by ``warmup / total`` when the warm-up ends: in BERT from 1 to .99
    (google-research/bert and albert, optimization.py; warmup_linear of microsoft/DeBERTa,
    optims/lr_schedulers.py).

    Attributes:
        warmup: Length of the warm-up from 0.
    """

    warmup: float = 0.0

    def _factor(self, now: float, total: float) -> float:
        return now / self.warmup if now < self.warmup else 1 - _progress(now, 0.0, total)


@dataclass(frozen=True)
class ElectraLinear(_Checked):
    """A line from 1 at 0 to 0 at the end, times the warm-up (google-research/electra).

    model/optimization.py: ``(1 - now / total) * min(1, now / warmup)``, which never jumps and never
    reaches 1.

    Attributes:
        warmup: Length of the warm-up from 0.
    """

    warmup: float = 0.0

    def _factor(self, now: float, total: float) -> float:
        rise = now / self.warmup if now < self.warmup else 1.0
        return rise * (1 - _progress(now, 0.0, total))


@dataclass(frozen=True)
class Budget(_Checked):
    """A triangle over a budget: up from ``start`` to 1 at ``peak`` of it, then down to 0.

    JonasGeiping/cramming, budget-triangle2, whose budget is wall-clock time; any clock will do.

    Attributes:
        start: Factor at 0.
        peak: Fraction of the total at which the factor is 1.
    """

    start: float = 0.25
    peak: float = 0.75

    def _factor(self, now: float, total: float) -> float:
        x = min(now / total, 1.0)
        if x < self.peak:
            return self.start + (1 - self.start) * x / self.peak
        return (1 - x) / (1 - self.peak)


Schedule = (
    Linear
    | Cosine
    | Constant
    | Trapezoid
    | BertLinear
    | ElectraLinear
    | Polynomial
    | InverseSqrt
    | Budget
)
