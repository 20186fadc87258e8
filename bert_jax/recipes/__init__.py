"""Published encoders and recipes, one file a family; every number stands beside its source.

`preset` gives the shape of an encoder, `recipe` a whole pre-training run.
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
    deberta,
    distilbert,
    electra,
    modernbert,
    neobert,
    nomic_bert,
    roberta,
)

_RECIPES: dict[str, Callable[[], Experiment]] = {
    "bert-base": bert.bert_base,
    "roberta-base": roberta.roberta_base,
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
    **_sizes("ettin-{}", modernbert.ettin_encoder, modernbert.ETTIN_SIZES),
    "neobert": neobert.neobert_encoder,
    "nomic-bert": nomic_bert.nomic_bert_encoder,
}


def list_recipes() -> tuple[str, ...]:
    """Names that `recipe` knows."""
    return tuple(_RECIPES)


def recipe(name: str) -> Experiment:
    """The published recipe ``name`` as an experiment over synthetic data.

    Give it data with ``dataclasses.replace(recipe(name), data="my-store")``.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    _check_known("recipe", name, _RECIPES)
    return _RECIPES[name]()


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
