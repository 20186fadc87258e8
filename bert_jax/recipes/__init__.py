"""Published recipes, one file a family; every number stands beside its source."""

from __future__ import annotations

import difflib

from bert_jax.experiment import Experiment
from bert_jax.recipes.bert import bert_base
from bert_jax.recipes.roberta import roberta_base

_RECIPES = {"bert-base": bert_base, "roberta-base": roberta_base}


def list_recipes() -> tuple[str, ...]:
    """Names that `recipe` knows."""
    return tuple(_RECIPES)


def recipe(name: str) -> Experiment:
    """The published recipe ``name`` as an experiment over synthetic data.

    Give it data with ``dataclasses.replace(recipe(name), data="my-store")``.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    if name not in _RECIPES:
        near = difflib.get_close_matches(name, _RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_RECIPES)}."
        raise ValueError(f"no recipe is called {name!r}; {hint}")
    return _RECIPES[name]()
