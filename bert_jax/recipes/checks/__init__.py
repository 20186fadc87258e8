"""Fidelity checks of the recipes: what runs, against numbers written out by hand.

    from bert_jax.recipes.checks import check
    assert all(finding.passed for finding in check("bert-base"))

They need no data, no test files and one device, and take seconds a recipe: learning rates at named
moments; parameters, all and decayed; initial values; where norms stand, and their epsilon; what a
step minimises; how documents become rows; what masking does to them, in training and at evaluation;
and the optimizer's updates against the source's arithmetic in float64. ``expected`` holds the
numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.recipes import list_recipes, published
from bert_jax.recipes.checks.course import check_course
from bert_jax.recipes.checks.expected import EXPECTED
from bert_jax.recipes.checks.findings import Finding, table
from bert_jax.recipes.checks.initial import check_start
from bert_jax.recipes.checks.objective import check_objective
from bert_jax.recipes.checks.rows import check_rows
from bert_jax.recipes.checks.selection import check_held_out, check_masking
from bert_jax.recipes.checks.shape import check_shape
from bert_jax.recipes.checks.updates import check_updates

__all__ = ["Finding", "check", "checked_recipes", "table"]


def checked_recipes() -> tuple[str, ...]:
    """Names of the recipes that have expectations: all of them."""
    return tuple(name for name in list_recipes() if name in EXPECTED)


def check(name: str) -> tuple[Finding, ...]:
    """Holds a recipe against what its sources say.

    Args:
        name: One of `bert_jax.recipes.list_recipes`.

    Returns:
        What was compared; `Finding.passed` says with which result.

    Raises:
        ValueError: There is no such recipe, or it has no expectations.
    """
    recipe = published(name)
    if name not in EXPECTED:
        raise ValueError(f"{name} has no expectations in bert_jax.recipes.checks.expected.")
    expected, first = EXPECTED[name], recipe.phases[0]
    found = check_course(recipe, expected) + check_shape(first, expected.shape)
    found += check_start(first, expected) + check_objective(first, expected)
    done: list[Any] = []

    def new(*what: Any) -> bool:
        """Whether no phase before had it: what phases have alike is looked at once."""
        fresh = what not in done
        done.append(what)
        return fresh

    for number, (phase, wanted) in enumerate(zip(recipe.phases, expected.phases, strict=False)):
        label = f"phase {number + 1}"
        if new(dataclasses.replace(phase.packing, seq_length=first.packing.seq_length)):
            found += check_rows(phase.packing, expected.rows, label)
        if new(phase.masking, phase.packing.seq_length, wanted.masking):
            found += check_masking(phase.masking, phase, wanted.masking, label)
        if new("held out", phase.eval_masking):
            found += check_held_out(phase, expected.held_out, label)
        if new(phase.optimizer, wanted.optimizer):
            found += check_updates(phase, wanted.optimizer, label)
    return tuple(found)
