"""What `bert-jax compare` does with the words of its command line."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_jax.compare import PAGE, SHEET, Budget, Unit, compare
from bert_jax.experiment import Experiment
from bert_jax.train.command import find_phases


def compare_files(
    names: Sequence[str],
    *,
    out: Path,
    unit: Unit,
    amount: float | None,
    seeds: Sequence[int],
    data: Path | None,
    then: str | None,
) -> int:
    """Compares the experiments of files or recipes and prints the table.

    Returns:
        The exit code.

    Raises:
        ValueError: For names that are equal, and whatever `bert_jax.compare.compare` refuses.
    """
    found = [_experiment(name, data) for name in names]
    by_name = {e.name: e for e in found}
    if len(by_name) < len(found):
        raise ValueError(
            f"the experiments are called {', '.join(e.name for e in found)}; give each a name of "
            f"its own (the field `name`)."
        )
    continuation = None if then is None else _experiment(then, data)
    result = compare(by_name, out, Budget(unit, amount), seeds=seeds, then=continuation)
    if result.interrupted is not None:
        sys.stderr.write(f"{result.interrupted}: saved; the same command goes on from here\n")
        return 128 + signal.Signals[result.interrupted]
    sys.stdout.write(f"{result.table}\n\nchart {out / PAGE}, all measurements {out / SHEET}\n")
    return 0


def _experiment(name: str, data: Path | None) -> Experiment:
    first, *others = phases = find_phases(name)
    if others:
        raise ValueError(
            f"{name} has {len(phases)} phases and a comparison is of single ones; name one, such "
            f"as {name}:1."
        )
    return first if data is None else dataclasses.replace(first, data=str(data))
