"""A published recipe as a record: phases, sources, scores, and what is not as published."""

from __future__ import annotations

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

    def phase(self, number: int) -> Experiment:
        """The phase of a number, from 1.

        Raises:
            ValueError: There is no such phase.
        """
        if not 1 <= number <= len(self.phases):
            raise ValueError(
                f"{self.name} has no phase {number}; it has phases 1 to {len(self.phases)}."
                if len(self.phases) > 1
                else f"{self.name} has no phase {number}; it has one phase."
            )
        return self.phases[number - 1]
