"""Experiments against each other at an equal budget: same data, same evaluation, several seeds."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from bert_jax.data.shards import write_whole
from bert_jax.experiment import MAX_EXAMPLES, Experiment
from bert_jax.train.chart import Series, line_chart
from bert_jax.train.inputs import eval_masking
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train
from bert_jax.train.report import STYLE
from bert_jax.train.task import make_task, synthetic_vocabulary

Unit = Literal["flops", "tokens", "seconds"]

TABLE, PAGE, SHEET = "comparison.md", "comparison.html", "comparison.csv"
THEN = "then "  # before the names of the common continuation's scores
_ABOUT = ("kind", "step", "time", "seconds")  # of a record, beside its numbers
_SAME = ("data", "packing")  # what the held-out rows hang on, beside the masks


@dataclass(frozen=True)
class Budget:
    """What each experiment may spend.

    Attributes:
        unit: ``flops``: operations of the matrix products of all models in training, a generator's
            and a teacher's included; ``tokens``: positions of the rows that are read; ``seconds``:
            of training, without evaluations.
        amount: How much; None: what each experiment's own steps amount to, which must be equal.
    """

    unit: Unit
    amount: float | None = None

    def __post_init__(self) -> None:
        if self.amount is not None and not 0 < self.amount < math.inf:
            raise ValueError(f"the budget is {self.amount} {self.unit}; it must be positive.")


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Attributes:
        rows: Every held-out measurement: ``experiment``, ``seed``, ``step``, ``spent`` (in the
            budget's unit), and the scores by name.
        table: Final scores, mean and standard error over seeds, as Markdown.
        directory: Where table, page and sheet are.
        interrupted: Name of the signal that ended the call early; its state is saved. Else None.
    """

    rows: tuple[Mapping[str, Any], ...]
    table: str
    directory: Path
    interrupted: str | None = None


def compare(
    experiments: Mapping[str, Experiment],
    out: str | Path,
    budget: Budget,
    *,
    seeds: Sequence[int] = (0, 1),
    then: Experiment | None = None,
) -> Comparison:
    """Trains experiments at an equal budget and puts their held-out scores beside each other.

    Every run has a directory of its own under ``out``, and is taken up again by the same call.
    Where the objectives differ their scores do not compare; ``then``, trained from each result
    in the same way, gives scores that do.

    Args:
        experiments: By name. They must agree in data, packing and evaluation masks.
        out: Directory of the runs and of what is found.
        budget: What each may spend; with an amount, ``steps`` of the experiments is set by it.
        seeds: Of initial weights, order, masks and dropout; one run for each.
        then: A common continuation; its own budget is not counted.

    Raises:
        ValueError: For unequal budgets, or experiments that are not measured on the same targets.
    """
    if len(experiments) < 2:
        raise ValueError(f"there is {len(experiments)} experiment; a comparison needs two or more.")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds are {tuple(seeds)}; give one or more, each once.")
    for name in experiments:
        if "/" in name or name in (".", ".."):
            raise ValueError(f"an experiment is called {name!r}; its runs need a plain file name.")
    _check_same_targets(experiments)
    planned = planned_runs(experiments, budget)
    directory, rows = Path(out), []
    for seed in seeds:
        for name, experiment in planned.items():
            run_dir = directory / f"{name}-seed-{seed}"
            finished = dataclasses.replace(experiment, seed=seed)
            result = train(finished, run_dir)
            if result.interrupted is not None:
                return Comparison(tuple(rows), "", directory, result.interrupted)
            measured = _measurements(run_dir, finished, budget.unit, name, seed)
            if then is not None:
                continued = dataclasses.replace(then, init_from=str(run_dir), seed=seed)
                result = train(continued, run_dir / "then")
                if result.interrupted is not None:
                    return Comparison(tuple(rows), "", directory, result.interrupted)
                measured[-1] |= _final_scores(run_dir / "then")
            rows += measured
    comparison = Comparison(tuple(rows), _table(rows, budget), directory)
    write_whole(directory / TABLE, comparison.table + "\n")
    write_whole(directory / SHEET, _sheet(rows))
    write_whole(directory / PAGE, _page(comparison.table, rows, budget))
    return comparison


def planned_runs(experiments: Mapping[str, Experiment], budget: Budget) -> dict[str, Experiment]:
    """The experiments with as many steps as the budget pays for.

    Raises:
        ValueError: If a budget without an amount is not equal for all, to half a step of the
            costliest.
    """
    if budget.unit == "seconds":
        return _by_the_seconds(experiments, budget)
    for name, e in experiments.items():
        if e.clock == "seconds":
            raise ValueError(
                f"time ends {name} (clock is 'seconds'), whatever its steps; compare by --unit "
                f"seconds, or let its clock count steps or tokens."
            )
    if budget.amount is not None:
        _check_ends(experiments)
        return {
            name: dataclasses.replace(e, steps=_steps_for(name, e, budget))
            for name, e in experiments.items()
        }
    spent = {name: spent_by(e, e.steps, budget.unit) for name, e in experiments.items()}
    least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    step = max(_of_last_step(e, budget.unit) for e in experiments.values())
    if spent[most] - spent[least] > step / 2:
        enough = _steps_for(least, experiments[least], Budget(budget.unit, spent[most]))
        raise ValueError(
            f"the budgets are not equal: {most} spends {spent[most]:.4g} {budget.unit} and {least} "
            f"{spent[least]:.4g}; give {least} {enough:,} steps, or a budget for all (--amount)."
        )
    return dict(experiments)


def spent_by(experiment: Experiment, steps: int, unit: Unit) -> float:
    """What the first steps of an experiment cost, in operations or tokens."""
    tokens = experiment.sizes.tokens_before(steps)
    if unit == "tokens":
        return float(tokens)
    task = make_task(experiment, synthetic_vocabulary(experiment.model), experiment.masking)
    length = experiment.packing.seq_length
    return task.flops(experiment.batch_size, length) * tokens / (experiment.batch_size * length)


def _of_last_step(experiment: Experiment, unit: Unit) -> float:
    steps = experiment.steps
    return spent_by(experiment, steps, unit) - spent_by(experiment, steps - 1, unit)


def _steps_for(name: str, experiment: Experiment, budget: Budget) -> int:
    """The most steps that do not cost more than the budget."""
    assert budget.amount is not None
    per_token = spent_by(
        experiment, experiment.steps, budget.unit
    ) / experiment.sizes.tokens_before(experiment.steps)
    # One token more than is paid for needs a step more than is paid for.
    steps = experiment.sizes.steps_for_tokens(math.floor(budget.amount / per_token + 1e-6) + 1) - 1
    most = (MAX_EXAMPLES - 1) // experiment.batch_size
    if steps > most:
        raise ValueError(
            f"a budget of {budget.amount:.4g} {budget.unit} is {steps:.4g} steps of {name}, and a "
            f"run has at most {most:,} (2**32 examples); lower it."
        )
    if steps < 1:
        raise ValueError(
            f"a budget of {budget.amount:.4g} {budget.unit} does not pay for one step of {name}, "
            f"which costs {spent_by(experiment, 1, budget.unit):.4g}; raise it."
        )
    return steps


def _check_ends(experiments: Mapping[str, Experiment]) -> None:
    """A schedule must end with the budget, not at a place of its own."""
    for name, e in experiments.items():
        if e.total is not None:
            raise ValueError(
                f"the schedule of {name} ends at {e.total:g} {e.clock} (total), whatever the "
                f"budget, and would be cut off; set its total to None."
            )


def _by_the_seconds(experiments: Mapping[str, Experiment], budget: Budget) -> dict[str, Experiment]:
    """The experiments with the budget as their time, and with no other end."""
    for name, e in experiments.items():
        if e.clock != "seconds":
            raise ValueError(
                f"{name} counts {e.clock} (clock), so its schedule would be cut off at an "
                f"arbitrary place; for a budget of time set clock to 'seconds'."
            )
    if budget.amount is None:
        (first, reference), *others = experiments.items()
        for name, e in others:
            if e.total != reference.total:
                raise ValueError(
                    f"the budgets are not equal: {name} has {e.total:g} seconds (total) and "
                    f"{first} {reference.total:g}; give both the same, or a budget for all "
                    f"(--amount)."
                )
    return {
        name: dataclasses.replace(
            e,
            total=e.total if budget.amount is None else budget.amount,
            steps=(MAX_EXAMPLES - 1) // e.batch_size,  # more than any time is enough for
        )
        for name, e in experiments.items()
    }


def _check_same_targets(experiments: Mapping[str, Experiment]) -> None:
    (first, reference), *others = experiments.items()
    for name, e in others:
        for field in _SAME:
            if getattr(e, field) != getattr(reference, field):
                raise ValueError(
                    f"{name} and {first} differ in {field}, so they would not be measured on the "
                    f"same held-out rows; give both the same."
                )
        if e.evaluation.max_rows != reference.evaluation.max_rows:
            raise ValueError(
                f"{name} is measured on {e.evaluation.max_rows} held-out rows and {first} on "
                f"{reference.evaluation.max_rows}; give both the same evaluation.max_rows."
            )
        if (e.init_from is None) != (reference.init_from is None):
            begun = name if e.init_from else first
            raise ValueError(
                f"{begun} starts from a trained model (init_from), whose training nobody counts, "
                f"and the other from random numbers; start both from one, or neither."
            )
        if eval_masking(e) != eval_masking(reference):
            raise ValueError(
                f"{name} and {first} differ in their masks at evaluation; give both the same "
                f"eval_masking."
            )


def _final_scores(run_dir: Path) -> dict[str, float]:
    """Final scores of the common continuation, under names that begin with `THEN`."""
    last = [r for r in read_metrics(run_dir) if r["kind"] == "evaluation"][-1]
    return {f"{THEN}{name}": value for name, value in last.items() if name not in _ABOUT}


def _measurements(
    run_dir: Path, experiment: Experiment, unit: Unit, name: str, seed: int
) -> list[dict[str, Any]]:
    """The held-out scores of a run, with what had been spent before each."""
    found = []
    for record in read_metrics(run_dir):
        if record["kind"] == "evaluation":
            spent = record["seconds"]
            if unit != "seconds":
                spent = spent_by(experiment, record["step"], unit)
            scores = {n: v for n, v in record.items() if n not in _ABOUT}
            about = {"experiment": name, "seed": seed, "step": record["step"], "spent": spent}
            found.append(about | scores)
    if not found:
        raise ValueError(
            f"{experiment.data} holds no validation split; prepare it with a validation fraction "
            f"above 0 to compare."
        )
    return found


def _scores(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    about = ("experiment", "seed", "step", "spent", "standard_error", "targets")
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name.removeprefix(THEN) not in about]


def _finals(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The last row of every run, by experiment."""
    last = {(row["experiment"], row["seed"]): row for row in rows}
    finals: dict[str, list[Mapping[str, Any]]] = {}
    for (name, _), row in last.items():
        finals.setdefault(name, []).append(row)
    return finals


def _table(rows: Sequence[Mapping[str, Any]], budget: Budget) -> str:
    names, finals = _scores(rows), _finals(rows)
    lines = [
        f"| experiment | seeds | steps | {budget.unit} | {' | '.join(names)} |",
        "|" + "---|" * (len(names) + 4),
    ]
    for name, runs in finals.items():
        cells = [_cell([run[score] for run in runs if score in run]) for score in names]
        spent = statistics.fmean(run["spent"] for run in runs)
        steps = f"{statistics.fmean(run['step'] for run in runs):,.0f}"
        lines.append(f"| {name} | {len(runs)} | {steps} | {spent:.4g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    """Mean and standard error over seeds."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def _sheet(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _charts(rows: Sequence[Mapping[str, Any]], budget: Budget) -> str:
    """Every loss that was measured against what was spent, a line for every run that has it."""
    charts = []
    losses = [name for name in _scores(rows) if name.endswith("loss")]
    for loss in (name for name in losses if not name.startswith(THEN)):
        runs: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            if loss in row:
                runs.setdefault(f"{row['experiment']}, seed {row['seed']}", []).append(row)
        series = [
            Series(name, [r["spent"] for r in run], [r[loss] for r in run], "dots")
            for name, run in runs.items()
        ]
        about = f"held-out {loss} against {budget.unit}"
        charts.append(
            f"<h2>{escape(loss)}</h2>\n{line_chart(series, width=900, height=360, about=about)}"
        )
    return "\n".join(charts)


def _page(table: str, rows: Sequence[Mapping[str, Any]], budget: Budget) -> str:
    title = f"held-out losses against {budget.unit}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
{_charts(rows, budget)}
<pre>{escape(table)}</pre>
</body>
</html>
"""
