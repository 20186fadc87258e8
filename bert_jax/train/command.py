"""`bert-jax train`: its options are the fields of the experiment that it names."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.arguments import HELP, Signature, place, print_help, wants_help
from bert_jax.config import format_flat, load_phases, override_among
from bert_jax.experiment import Experiment

RUNS = Path("runs")


def train_command(args: Sequence[str], prog: str) -> int:
    """Runs `train` with the words of a command line, or prints its help.

    Args:
        args: The words: the experiment first, then a run directory and options in any order.
        prog: The command they stand behind, for messages.

    Returns:
        The exit code.

    Raises:
        ValueError: For a mistake in the words, and whatever `train` raises.
    """
    signature = Signature.of(train)
    signature.places["experiment"] = str  # a name, which `find_phases` understands
    leading = {*signature.options, *HELP}  # without values, so they may come before the experiment
    file = next((word for word in args if word not in leading), None)
    if file is None or file.startswith("-"):
        if wants_help(args):
            print_help(train, signature, prog)
            return 0
        raise ValueError(
            f"the experiment comes first; the command is {prog} {signature.usage()} "
            f"({prog} --help explains it)."
        )
    rest = [word for word in args if word not in HELP]
    rest.remove(file)
    phases, given, words = _overridden(find_phases(file), rest, signature.options)
    if wants_help(args):
        print_help(train, signature, prog, phases[0])
        return 0
    _, *placed = place(signature, [file, *words], prog)
    options = {signature.names[flag]: value for flag, value in given.items()}
    return train(phases, *placed, **options)


def _overridden(
    phases: tuple[Experiment, ...], words: Sequence[str], others: Mapping[str, Any]
) -> tuple[tuple[Experiment, ...], dict[str, Any], list[str]]:
    """Every phase with the options of a command line; further options; the other words."""
    changed, given, left = [], {}, []
    errors: dict[int, ValueError] = {}
    for number, phase in enumerate(phases, 1):
        try:
            phase, given, left = override_among(phase, words, others)
            changed.append(phase)
        except ValueError as error:
            errors[number] = error
    if not errors:
        return tuple(changed), given, left
    number, error = next(iter(errors.items()))
    if len(errors) == len(phases):  # nothing about phases is wrong
        raise error
    raise ValueError(f"phase {number} of {len(phases)}: {error}") from error


def find_phases(name: str) -> tuple[Experiment, ...]:
    """The experiments of a Python file, or the phases of the published recipe of that name.

    Args:
        name: ``experiments/mine.py``, ``bert-base``; or one phase of either, ``bert-base:2``.

    Raises:
        ValueError: There is neither, or the file is bad.
        FileNotFoundError: The name is that of a Python file which is not there.
    """
    from bert_jax.recipes import published
    from bert_jax.recipes.record import one_phase

    whole = Path(name).exists()  # a file's own name may end like a phase
    phase = None if whole else re.fullmatch(r"(.+):([^/.]*)", name)
    base = phase[1] if phase else name
    if base.endswith(".py") or Path(base).exists():
        phases = load_phases(base)
    else:
        try:
            phases = published(base).phases
        except ValueError as error:
            raise ValueError(f"there is no file {name}, and {error}") from error
    return (one_phase(base, phases, phase[2]),) if phase else phases


def train(
    experiment: tuple[Experiment, ...],
    run_dir: Path | None = None,
    /,
    *,
    print: bool = False,
    show_examples: bool = False,
) -> int:
    """Pretrain an encoder, or go on with a run that was interrupted.

    Phases run one after the other, in directories phase-1, phase-2 ... of the run's; options are
    for all of them. Every field of the experiment is an option (bert-jax train EXPERIMENT --help
    lists them with their values). SIGTERM and Ctrl-C save the state; the same command then goes on
    from there, bit for bit.

    Example:
        bert-jax train experiments/quickstart.py runs/first --optimizer.learning-rate 3e-4

    Args:
        experiment: A Python file that defines `experiment` or `phases`, or a recipe's name; with
            :2 behind it, its second phase alone.
        run_dir: Directory of the run; by default runs/ and the experiment's name.
        print: Show every field as it would be, and train nothing.
        show_examples: If training fails on some examples, write down their text too, not only
            their indices.

    Returns:
        Exit code: 0; 1 if training could not go on; 128 + the number of the signal that ended it.
    """
    phases = experiment
    if print:
        shown = [format_flat(phase) for phase in phases]
        if len(shown) > 1:
            shown = [f"phase {number}\n{text}" for number, text in enumerate(shown, 1)]
        sys.stdout.write("\n\n".join(shown) + "\n")
        return 0
    from bert_jax.train.loop import TrainingStopped
    from bert_jax.train.loop import train as train_experiment

    directory = run_dir or RUNS / phases[0].name
    examples = "show" if show_examples else "record"
    try:
        if len(phases) == 1:
            result = train_experiment(phases[0], directory, examples=examples)
        else:
            from bert_jax.train.phases import train_phases

            result = train_phases(phases, directory, examples=examples)
    except TrainingStopped as error:
        sys.stderr.write(f"bert-jax: {error}\n")
        return 1
    sys.stdout.write(f"run directory {result.run_dir}, report {result.report}\n")
    if result.interrupted is None:
        return 0
    return 128 + signal.Signals[result.interrupted]
