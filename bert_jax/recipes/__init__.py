"""Published encoders and recipes, one file a family; every number stands beside its source.

`preset` gives the shape of an encoder, `recipe` a pre-training run (a phase of it), `published` all
of it: phases, sources, scores, and what differs from the source. `bert_jax.recipes.checks` holds
them against numbers written out by hand.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable

from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig
from bert_jax.recipes import (
    albert,
    bert,
    crammed,
    deberta,
    distilbert,
    electra,
    ettin,
    modernbert,
    mosaicbert,
    neobert,
    nomic_bert,
    roberta,
    wettig,
)
from bert_jax.recipes.record import Recipe, Score, one_phase

__all__ = [
    "Recipe",
    "Score",
    "list_presets",
    "list_recipes",
    "preset",
    "published",
    "recipe",
]

_bind = functools.partial

_RECIPES: dict[str, Callable[[], Recipe]] = {
    **{f"bert-{size}": _bind(bert.bert_recipe, size) for size in bert.SIZES},
    "bert-base-wwm": _bind(bert.bert_recipe, "base", "word"),
    "bert-large-wwm": _bind(bert.bert_recipe, "large", "word"),
    **{f"roberta-{size}": _bind(roberta.roberta_recipe, size) for size in roberta.SIZES},
    "roberta-base-fairseq": roberta.roberta_fairseq_recipe,
    **{
        f"albert-{size}-v{version}": _bind(albert.albert_recipe, size, version)
        for version in (1, 2)
        for size in albert.SIZES
    },
    "distilbert-base": distilbert.distilbert_recipe,
    **{f"electra-{size}": _bind(electra.electra_recipe, size) for size in electra.SIZES},
    "electra-small-owt": _bind(electra.electra_recipe, "small", "owt"),
    **{f"deberta-v3-{size}": _bind(deberta.deberta_v3_recipe, size) for size in deberta.V3_SIZES},
    **{
        f"deberta-v3-{size}-paper": _bind(deberta.deberta_v3_recipe, size, "paper")
        for size in ("small", "base", "large")
    },
    "modernbert-base": modernbert.modernbert_base,
    "modernbert-large": modernbert.modernbert_large,
    **{
        f"ettin-{size}": _bind(ettin.ettin_recipe, size)
        for size in ("17m", "32m", "68m", "150m", "400m")
    },
    "mosaicbert-base": mosaicbert.mosaicbert_recipe,
    "neobert": neobert.neobert_recipe,
    "neobert-paper": _bind(neobert.neobert_recipe, "paper"),
    "crammed-bert": crammed.crammed_recipe,
    "wettig-40": wettig.wettig_recipe,
}


def _sizes(
    name: str, build: Callable[[str], EncoderConfig], sizes: Iterable[str]
) -> dict[str, Callable[[], EncoderConfig]]:
    return {name.format(size): functools.partial(build, size) for size in sizes}


_PRESETS: dict[str, Callable[[], EncoderConfig]] = {
    **_sizes("bert-{}", bert.bert_encoder, bert.SIZES),
    **_sizes("roberta-{}", roberta.roberta_encoder, roberta.SIZES),
    **_sizes("albert-{}-v1", lambda size: albert.albert_encoder(size, 1), albert.SIZES),
    **_sizes("albert-{}-v2", lambda size: albert.albert_encoder(size, 2), albert.SIZES),
    "distilbert-base": distilbert.distilbert_encoder,
    **_sizes("electra-{}", electra.electra_encoder, electra.SIZES),
    **_sizes("electra-{}-generator", electra.electra_generator, electra.SIZES),
    **_sizes("deberta-{}", deberta.deberta_v1_encoder, deberta.V1_SIZES),
    **_sizes("deberta-v2-{}", deberta.deberta_v2_encoder, deberta.V2_SIZES),
    **_sizes("deberta-v3-{}", deberta.deberta_v3_encoder, deberta.V3_SIZES),
    **_sizes("deberta-v3-{}-generator", deberta.deberta_v3_generator, deberta.V3_SIZES),
    **_sizes("modernbert-{}", modernbert.modernbert_encoder, modernbert.SIZES),
    **_sizes("ettin-{}", ettin.ettin_encoder, ettin.SIZES),
    "neobert": neobert.neobert_encoder,
    "nomic-bert": nomic_bert.nomic_bert_encoder,
    "mosaicbert-base": mosaicbert.mosaicbert_encoder,
    "crammed-bert": crammed.crammed_encoder,
    "wettig-large": wettig.wettig_encoder,
}


def list_recipes() -> tuple[str, ...]:
    """Names that `recipe` and `published` know."""
    return tuple(_RECIPES)


def published(name: str) -> Recipe:
    """The published recipe ``name``: all its phases, sources, scores, deviations.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    _check_known("recipe", name, _RECIPES)
    return _RECIPES[name]()


def recipe(name: str, phase: int = 1) -> Experiment:
    """A phase of the published recipe ``name`` as an experiment over synthetic data.

    Give it data with ``dataclasses.replace(recipe(name), data="my-store")``. A later phase must
    also be told the run of the phase before it: ``init_from``.

    Args:
        name: One of `list_recipes`; ``bert-base:2`` names its second phase.
        phase: Number of the phase, from 1, where the name has none.

    Raises:
        ValueError: For an unknown name, with the nearest known one, or a phase that is not there.
    """
    base, colon, number = name.partition(":")
    return one_phase(base, published(base).phases, number if colon else str(phase))


def list_presets() -> tuple[str, ...]:
    """Names that `preset` knows."""
    return tuple(_PRESETS)


def preset(name: str) -> EncoderConfig:
    """The published encoder ``name``, float32; vary it with `dataclasses.replace`.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    _check_known("preset", name, _PRESETS)
    return _PRESETS[name]()


def _check_known(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
        raise ValueError(f"no {kind} is called {name!r}; {hint}")
