"""A published recipe as a record: phases, sources, scores, and what is not as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bert_jax.experiment import Experiment


class Score(NamedTuple):
    """A published score.

    Attributes:
        benchmark: What was measured, with the metric where it has several.
        value: The score, as the source prints it.
        source: Where it stands, and of which run if not exactly this recipe's.
    """

    benchmark: str
    value: float
    source: str


@dataclass(frozen=True)
class Recipe:
    """A pre-training run as published, in one or more phases.

    Attributes:
        name: What `bert_jax.recipes.recipe` and ``bert-jax train`` call it.
        phases: What runs, in order. From the second on, ``carry`` says what of the phase before
            goes on; ``init_from`` is None and is filled in by whoever chains them.
        sources: Repositories (with files) and papers that the numbers are from; a source that
            holds for one number stands beside it in the code.
        hardware: What the source trained on, and for how long.
        tokens: Positions of all phases together, padding included.
        scores: Published scores.
        deviations: What differs from the source, known and left so; a sentence each.
        unsourced: What no source states, and what stands there instead; a sentence each.
        carries: For each change of phase what is carried over and what is reset; a sentence each.
    """

    name: str
    phases: tuple[Experiment, ...]
    sources: tuple[str, ...]
    hardware: str
    tokens: float
    scores: tuple[Score, ...] = ()
    deviations: tuple[str, ...] = ()
    unsourced: tuple[str, ...] = ()
    carries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError(f"the recipe {self.name!r} has no phase; give it at least one.")
        if len(self.carries) != len(self.phases) - 1:
            raise ValueError(
                f"the recipe {self.name!r} has {len(self.phases)} phases and {len(self.carries)} "
                f"sentences on what they carry over; give one for each change of phase."
            )
        if not self.sources:
            raise ValueError(f"the recipe {self.name!r} names no source; name at least one.")


def one_phase(name: str, phases: Sequence[Experiment], number: str) -> Experiment:
    """The phase of ``name`` that stands behind a colon, counted from 1.

    Raises:
        ValueError: The number is none, or there is no such phase.
    """
    known = f"{name}:1" + (f" to {name}:{len(phases)}" if len(phases) > 1 else "")
    if not number.isdecimal():
        raise ValueError(f"'{name}:{number}' names no phase; write {known}.")
    if not 1 <= int(number) <= len(phases):
        has = f"phases 1 to {len(phases)}" if len(phases) > 1 else "one phase"
        raise ValueError(f"{name} has no phase {number}; it has {has}.")
    return phases[int(number) - 1]
