"""Fidelity checks of the recipes: what runs, against numbers written out by hand.

    from bert_jax.recipes.checks import check
    assert all(finding.passed for finding in check("bert-base"))

They need no data, no test files and one device, and take seconds a recipe: learning rates at named
moments; parameters, all and decayed; initial values; where norms stand; what masking does; and the
optimizer's updates against the source's arithmetic in float64. ``expected`` holds the numbers.
"""

from __future__ import annotations

from bert_jax.recipes import list_recipes, published
from bert_jax.recipes.checks.course import check_course
from bert_jax.recipes.checks.expected import EXPECTED
from bert_jax.recipes.checks.findings import Finding, table
from bert_jax.recipes.checks.selection import check_masking
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
    expected = EXPECTED[name]
    found = check_course(recipe, expected) + check_shape(recipe.phases[0], expected)
    done = []
    for number, (phase, wanted) in enumerate(zip(recipe.phases, expected.phases, strict=False)):
        label = f"phase {number + 1}"
        # Phases that mask, or update, alike are looked at once.
        masks = (phase.masking, phase.packing.seq_length, wanted.masking)
        if masks not in done:
            done.append(masks)
            found += check_masking(phase, wanted.masking, label)
        updates = (phase.optimizer, wanted.optimizer)
        if updates not in done:
            done.append(updates)
            found += check_updates(phase, wanted.optimizer, label)
    return tuple(found)
