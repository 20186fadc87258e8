"""What ``bert-jax recipes`` prints: the list, one recipe, a difference, a check."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from bert_jax.config import diff, format_flat
from bert_jax.recipes import Recipe, list_presets, list_recipes, published, recipe
from bert_jax.recipes.checks.expected import EXPECTED
from bert_jax.train.command import find_phases

ALL = "all"
_COLUMNS = (
    "recipe",
    "parameters",
    "layers x width",
    "tokens at row length",
    "phases",
    "hardware",
    "published score",
)
_UNEQUAL = ("name", "logging", "checkpoints", "evaluation", "data")
"""Fields that `differences` leaves out: what a run is called, where it reads and what it writes."""


def run(words: Sequence[str]) -> tuple[str, int]:
    """Answers the words of a command line after ``recipes``.

    Args:
        words: None: list; a name: show; ``diff A B``; ``check NAME`` or ``check all``.

    Returns:
        What to print, and the exit code: 1 if a check failed.

    Raises:
        ValueError: The words make no sense, or name no recipe.
    """
    if not words:
        return listing(), 0
    verb, *rest = words
    if verb == "diff":
        if len(rest) != 2:
            raise ValueError(
                f"recipes diff compares two recipes or files; got {len(rest)}: "
                f"bert-jax recipes diff bert-base roberta-base."
            )
        return differences(*rest), 0
    if verb == "check":
        if not rest:
            raise ValueError("recipes check needs a recipe's name, or all.")
        return checks(rest)
    if rest:
        raise ValueError(
            f"unexpected argument {rest[0]!r}; show one recipe at a time, or compare two: "
            f"bert-jax recipes diff {verb} {rest[0]}."
        )
    return shown(verb), 0


# --- list and show -------------------------------------------------------------------------------


def listing() -> str:
    """All recipes, a line each: size, tokens, phases, hardware, a published score.

    Parameters are those of the model that is trained and kept, the first of those that
    ``bert-jax recipes check`` counts.
    """
    rows = [list(_COLUMNS), *(_row(published(name)) for name in list_recipes())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    lines.append(
        textwrap.fill(
            f"encoders: {', '.join(list_presets())}", subsequent_indent="  ", break_on_hyphens=False
        )
    )
    return "\n".join(lines)


def _row(one: Recipe) -> list[str]:
    model = one.phases[0].model
    lengths = ", ".join(dict.fromkeys(str(phase.packing.seq_length) for phase in one.phases))
    usual = [score for score in one.scores if score.benchmark.split(" (")[0] in ("GLUE", "MNLI")]
    score = next(iter([*usual, *one.scores]), None)
    return [
        one.name,
        f"{EXPECTED[one.name].shape.counts[0].number / 1e6:.4g} M",
        f"{model.num_layers} x {model.hidden_size}",
        f"{_tokens(one.tokens)} at {lengths}",
        str(len(one.phases)),
        re.split(r"; |, | \(", one.hardware)[0],
        f"{score.benchmark} {score.value:g}" if score else "none",
    ]


def _tokens(number: float) -> str:
    """``2.1 T``, ``42.6 B``."""
    unit, size = ("T", 1e12) if number >= 1e12 else ("B", 1e9)
    return f"{number / size:.3g} {unit}"


def shown(name: str) -> str:
    """One recipe, or one of its phases (``bert-base:2``): what is known of it, and every field."""
    if ":" in name:
        return format_flat(recipe(name))
    one = published(name)
    parts = [f"{one.name}: {_tokens(one.tokens)} tokens; {one.hardware}"]
    counts = EXPECTED[one.name].shape.counts
    parts += _list("parameters", [f"{count.number:,} ({count.counted})" for count in counts])
    parts += _list("sources", one.sources)
    parts += _list("scores", [f"{s.benchmark} {s.value:g} ({s.source})" for s in one.scores])
    parts += _list("known deviations", one.deviations)
    parts += _list("stated by no source", one.unsourced)
    for number, sentence in enumerate(one.carries, start=2):
        parts += _list(f"from phase {number - 1} to {number}", [sentence])
    for number, phase in enumerate(one.phases, start=1):
        if number == 1:
            parts += ["", "phase 1:", format_flat(phase)]
        else:
            changed = diff(one.phases[number - 2], phase)
            parts += ["", f"phase {number} differs from phase {number - 1}:", _changes(changed)]
    return "\n".join(parts)


def _list(title: str, sentences: Sequence[str]) -> list[str]:
    if not sentences:
        return []
    wrapped = [
        textwrap.fill(one, width=100, initial_indent="  - ", subsequent_indent="    ")
        for one in sentences
    ]
    return [f"{title}:", *wrapped]


# --- diff ----------------------------------------------------------------------------------------


def differences(a: str, b: str) -> str:
    """Fields in which two recipes, phases or experiment files differ.

    Args:
        a: A recipe's name or the path of a Python file; ``:2`` behind it names its second phase.
        b: Likewise.
    """
    left, right = find_phases(a), find_phases(b)
    changed = [
        entry
        for entry in diff(left[0], right[0])
        if not any(entry[0] == name or entry[0].startswith(f"{name}.") for name in _UNEQUAL)
    ]
    a, b = (_first_of(name, len(phases)) for name, phases in ((a, left), (b, right)))
    if not changed:
        left_out = "names, paths, evaluation, checkpoints and logs left out"
        return f"{a} and {b} do not differ ({left_out})."
    return "\n".join([f"{'':{_width(changed)}}  {a} -> {b}", _changes(changed)])


def _first_of(name: str, phases: int) -> str:
    return name if phases == 1 else f"{name} (phase 1 of {phases})"


def _width(changed: Sequence[tuple[str, object, object]]) -> int:
    return max(len(name) for name, _, _ in changed)


def _changes(changed: Sequence[tuple[str, object, object]]) -> str:
    width = _width(changed)
    return "\n".join(f"{name:<{width}}  {old} -> {new}" for name, old, new in changed)


# --- check ---------------------------------------------------------------------------------------


def checks(names: Sequence[str]) -> tuple[str, int]:
    """Runs the fidelity checks of recipes.

    Args:
        names: Recipes; ``all`` means every one.

    Returns:
        A table of each, and 1 if anything failed, else 0.
    """
    from bert_jax.recipes.checks import check, table

    wanted = list_recipes() if list(names) == [ALL] else tuple(names)
    for name in wanted:
        published(name)  # an unknown name is told before anything runs
    blocks, failures = [], 0
    for name in wanted:
        found = check(name)
        failed = sum(not one.passed for one in found)
        failures += failed
        verdict = f"{failed} of {len(found)} failed" if failed else f"all {len(found)} hold"
        one = published(name)
        blocks.append(f"{name}: {verdict}")
        # With every recipe at once only what failed is shown.
        blocks.append(table(found if len(wanted) == 1 else [f for f in found if not f.passed]))
        if len(wanted) == 1:
            blocks += _list("known deviations, not checked", one.deviations)
            blocks += _list("stated by no source", one.unsourced)
    return "\n".join(block for block in blocks if block), int(failures > 0)
