"""Phases of a run, one after the other: each starts from the one before, and all resume."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bert_jax.config import CONFIG, digest, load_config
from bert_jax.experiment import Experiment
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.loop import TrainResult, train


def phase_dir(run_dir: str | Path, number: int) -> Path:
    """Directory of a phase, counted from 1, in that of the whole run."""
    return Path(run_dir) / f"phase-{number}"


def chained(phases: Sequence[Experiment], run_dir: str | Path) -> tuple[Experiment, ...]:
    """The phases as they are run in a directory: each with the one before as ``init_from``.

    A phase that names an ``init_from`` of its own keeps it.
    """
    linked = [phases[0]]
    for number, phase in enumerate(phases[1:], 1):
        source = phase.init_from or str(phase_dir(run_dir, number))
        linked.append(dataclasses.replace(phase, init_from=source))
    return tuple(linked)


def train_phases(
    phases: Sequence[Experiment],
    run_dir: str | Path,
    *,
    examples: Literal["record", "show"] = "record",
) -> TrainResult:
    """Trains phases one after the other, each in a directory of its own, ``phase-1`` and so on.

    The same call goes on where an interrupted one stopped; finished phases are passed over. What a
    phase takes over from the one before, beside the parameters, its ``carry`` says.

    Args:
        phases: The experiments, in order.
        run_dir: Directory that holds those of the phases.
        examples: As of `bert_jax.train.loop.train`.

    Returns:
        How the last phase that was run ended; of the last one if all were finished.
    """
    if not phases:
        raise ValueError("there are no phases; give at least one experiment.")
    if (Path(run_dir) / CONFIG).exists():
        raise ValueError(
            f"{run_dir} holds a run without phases, and this one has {len(phases)}; give another "
            f"run directory."
        )
    linked = chained(phases, run_dir)
    _check_steps(linked)
    for number, phase in enumerate(linked, 1):
        directory = phase_dir(run_dir, number)
        if number < len(linked) and _is_finished(phase, directory):
            continue
        result = train(phase, directory, examples=examples)
        if result.interrupted is not None:
            break
    return result


def _check_steps(phases: Sequence[Experiment]) -> None:
    """A phase that keeps the clock counts the steps before it, so it must have more."""
    for number, (before, phase) in enumerate(itertools.pairwise(phases), 2):
        if phase.carry.clock == "kept" and phase.steps <= before.steps:
            raise ValueError(
                f"phase {number} keeps the clock of phase {number - 1}, which ends at step "
                f"{before.steps:,}, and has {phase.steps:,} steps; steps counts both, so give it "
                f"more. An option --steps holds for all phases: leave it out, or train one phase "
                f"by its number, from the run before it (--init-from)."
            )


def _is_finished(phase: Experiment, directory: Path) -> bool:
    if not (directory / CONFIG).exists() or digest(load_config(directory)) != digest(phase):
        return False
    with Checkpointer(directory / "checkpoints") as saved:
        return max(saved.steps(), default=0) >= phase.steps
