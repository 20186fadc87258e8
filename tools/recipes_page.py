"""Writes docs/reference/recipes.md from the recipes themselves.

    python tools/recipes_page.py

``tests/tools/test_recipes_page.py`` compares the committed page with what this gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bert_jax.recipes import Recipe, list_recipes, published
from bert_jax.recipes_command import listing

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "recipes.md"

INTRO = """\
# Recipes

Written by `tools/recipes_page.py` from the recipes in `bert_jax/recipes/`, where every number has
its source beside it.

    bert-jax recipes                               # this list
    bert-jax recipes bert-base                     # one: sources, scores, deviations, every field
    bert-jax recipes diff roberta-base my_run.py   # field by field; bert-base:2 is a second phase
    bert-jax recipes check bert-base               # held against numbers written out by hand
    bert-jax train bert-base runs/bert --data STORE

A recipe is data: `bert_jax.recipes.published(name)` gives all of it, `recipe(name, phase)` an
`Experiment`. Phases run one after the other in `phase-1`, `phase-2` ... of the run's directory.
Where a paper and its code disagree the code counts, since it made the released models; variants
carry the other's numbers under a name of their own (`-fairseq`, `-paper`).

`bert-jax recipes check` compares, for every recipe: steps, batches, tokens; learning rates at
named moments; parameters, and how many of them are decayed, of generators too; standard deviations
and bounds of initial values, as drawn; where norms stand and their epsilon, by what runs through a
small model; the activation; what becomes of documents (rows, pairs and their labels, what is cut,
what attends to what); what masking does to full, short and held-out rows (share, [MASK], random and
unchanged tokens, special and unknown ones, whole words, range of replacements); the losses, their
factors, the generator or the teacher; and the optimizer's updates against the source's arithmetic
in float64. The expected numbers are literals
in `bert_jax/recipes/checks/expected/`. What is not checked is what needs the original's data or a
finished run: no run of this project has been made at these sizes.
"""


def page() -> str:
    """The page's text."""
    recipes = [published(name) for name in list_recipes()]
    lines = [line for line in listing().splitlines() if not line.startswith(("encoders:", "  "))]
    parts = [INTRO, "## The list", "", "```", *(line.rstrip() for line in lines), "```", ""]
    parts += ["## Phases", "", "What each change of phase carries over and what it resets.", ""]
    parts += _grouped(recipes, lambda one: tuple(dict.fromkeys(one.carries)))
    parts += ["## Known deviations", "", "What differs from the source, and is left so.", ""]
    parts += _grouped(recipes, lambda one: one.deviations)
    parts += [
        "## Stated by no source",
        "",
        "Numbers that no source at hand states, and what stands there instead.",
        "",
    ]
    parts += _grouped(recipes, lambda one: one.unsourced)
    return "\n".join(parts).rstrip() + "\n"


def _grouped(
    recipes: Iterable[Recipe], sentences: Callable[[Recipe], tuple[str, ...]]
) -> list[str]:
    """Sentences under the names of the recipes that share them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in recipes:
        if found := sentences(one):
            groups.setdefault(found, []).append(one.name)
    lines = []
    for found, names in groups.items():
        lines += [", ".join(f"`{name}`" for name in names) + ":", ""]
        lines += [f"- {sentence}" for sentence in found]
        lines.append("")
    return lines


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
