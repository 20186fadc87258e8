"""How many rows each step has: always the same number, or fewer at the beginning of a run.

Everything is exact in integers and a closed form of the step, so that any step's rows are found
without counting through the steps before it.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

Count = TypeVar("Count", int, np.ndarray)  # an integer, or an array of int64


@dataclass(frozen=True)
class BatchWarmup:
    """Batches that grow in equal steps (AnswerDotAI/ModernBERT, src/sequence_packer.py).

    The sizes are ``start``, ``start + increment``, ... below the full size. Size number i (from 0)
    is used until ``ceil(tokens * (b_0 + ... + b_i) / (b_0 + ... + b_last))`` tokens have been seen,
    so every size is used for an equal number of steps, up to one. Tokens are positions of the rows,
    padding included; ModernBERT counts what is not padding. ModernBERT-base has
    ``BatchWarmup(768, 768, 50_000_000_000)`` before batches of 4,608 rows of 1,024 tokens.

    Attributes:
        start: Rows of the first size.
        increment: By how many rows each size exceeds the one before.
        tokens: Positions after which batches have the full size.
    """

    start: int
    increment: int
    tokens: int

    def __post_init__(self) -> None:
        for name in ("start", "increment", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch_warmup.{name} is {getattr(self, name)}; at least 1.")


class _Stages(NamedTuple):
    """Runs of steps of one size; the last has no end.

    Attributes:
        steps: First step of each.
        sizes: Rows of its batches.
        examples: Rows before it.
    """

    steps: list[int]
    sizes: list[int]
    examples: list[int]


@dataclass(frozen=True)
class BatchSizes:
    """The rows of every step of a run.

    Where a method takes an integer it also takes an array of int64, and gives the same back.

    Attributes:
        batch_size: Rows of a full batch.
        seq_length: Positions of a row.
        warmup: Smaller batches at the beginning; None: none.
    """

    batch_size: int
    seq_length: int
    warmup: BatchWarmup | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1.")
        if self.warmup is not None and self.warmup.start > self.batch_size:
            raise ValueError(
                f"batch_warmup.start {self.warmup.start} exceeds batch_size {self.batch_size}; "
                f"start with smaller batches."
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size a batch of an endless run has, in order."""
        return tuple(self._stages.sizes)

    def batch_size_at(self, step: Count) -> Count:
        """Rows of the batch of a step (from 0)."""
        _, size, _ = self._stage(self._stages.steps, step)
        return size

    def first_example(self, step: Count) -> Count:
        """Rows of all steps before a step, which is the index of the step's first row."""
        start, size, examples = self._stage(self._stages.steps, step)
        return examples + (step - start) * size

    def tokens_before(self, step: Count) -> Count:
        """Positions of all steps before a step, padding included."""
        return self.first_example(step) * self.seq_length

    def step_of_example(self, example: Count) -> Count:
        """The step that a row of the run belongs to; inverse of `first_example`."""
        start, size, examples = self._stage(self._stages.examples, example)
        return start + (example - examples) // size

    def steps_for_tokens(self, total: Count) -> Count:
        """The fewest steps that have ``total`` positions or more, padding included."""
        rows = -(-total // self.seq_length)
        # The last of these rows decides; no row needs no step.
        return self.step_of_example(rows - 1) + 1

    def _stage(self, starts: list, at: Count) -> tuple[Count, Count, Count]:
        """First step, size and rows before, of the stage that holds ``at``."""
        if isinstance(at, np.ndarray):
            index = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
            steps, sizes, examples = (np.asarray(field, np.int64) for field in self._stages)
            return steps[index], sizes[index], examples[index]
        place = max(bisect.bisect_right(starts, at) - 1, 0)
        return tuple(field[place] for field in self._stages)  # pyright: ignore[reportReturnType]

    @functools.cached_property
    def _stages(self) -> _Stages:
        stages = _Stages([], [], [])
        step = examples = 0
        if self.warmup is not None:
            sizes = range(self.warmup.start, self.batch_size, self.warmup.increment)
            total, seen = sum(sizes), 0
            for size in sizes:
                seen += size
                threshold = -(-self.warmup.tokens * seen // total)
                missing = threshold - examples * self.seq_length
                count = -(-missing // (size * self.seq_length))
                if count > 0:  # a size whose threshold has been passed already is left out
                    _append(stages, step, size, examples)
                    step, examples = step + count, examples + count * size
        _append(stages, step, self.batch_size, examples)
        return stages


def _append(stages: _Stages, step: int, size: int, examples: int) -> None:
    for field, value in zip(stages, (step, size, examples), strict=True):
        field.append(value)
