"""Which class of transformers an encoder of ours is: the family that can say its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert_jax.flat import did_you_mean, flatten, join
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.family import Family
from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    Heads,
    LearnedPositions,
    NoPositions,
    Pooler,
    RotaryPositions,
    VocabularyHead,
)
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import (
    MultipleChoice,
    SentenceEncoder,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

# Names of this project, for heads that transformers has no class for.
_OURS = ("DebertaV2ForReplacedTokenDetection",)


@dataclass(frozen=True)
class Choice:
    """A class of transformers.

    Attributes:
        family: Its family.
        architecture: Its name, such as ``BertForMaskedLM``.
        config: What it computes: our config, without what it has not.
        fields: The fields of config.json that say ``config``.
        lost: Parts of the model it has not, a sentence each.
        unsaid: Settings that its config.json has no field for, a sentence each.
    """

    family: Family
    architecture: str
    config: EncoderConfig
    fields: Mapping[str, Any]
    lost: tuple[str, ...]
    unsaid: tuple[str, ...]


def choose(model: EncoderModel, name: str | None = None) -> Choice:
    """The class of transformers for a model.

    Args:
        model: The model.
        name: ``model_type`` of the family; None: the first that can say the config.

    Raises:
        ValueError: No family, or not the named one, can say the config or has such a head, with
            the reason (of the nearest).
    """
    if name is not None and name not in FAMILIES:
        near = did_you_mean(name, FAMILIES, f"known are {join(list(FAMILIES))}.")
        raise ValueError(f"no family is called {name!r}; {near}")
    config, lost = _sayable(model.config)
    reasons: dict[str, ValueError] = {}
    fitting: list[Choice] = []
    for candidate in FAMILIES if name is None else [name]:
        family = FAMILIES[candidate]
        try:
            architecture = _architecture(family, model)
            fields, unsaid = _fields(family, config, model)
        except ValueError as error:
            reasons[candidate] = error
            continue
        fitting.append(Choice(family, architecture, config, fields, lost, unsaid))
    if fitting:
        # One that says everything; of those, and else of all, the first.
        choice = min(fitting, key=lambda choice: bool(choice.unsaid))
        return dataclasses.replace(choice, lost=(*lost, *_without_class(choice.architecture)))
    if name is not None:
        raise reasons[name]
    nearest = _nearest(config, model)
    raise ValueError(
        f"transformers has no family for this {type(model).__name__}; in the nearest, {nearest}: "
        f"{reasons[nearest]}"
    ) from reasons[nearest]


def _without_class(architecture: str) -> tuple[str, ...]:
    if architecture not in _OURS:
        return ()
    return (
        f"transformers has no {architecture}: it reads the encoder of this export, and "
        f"bert_jax.import_hf the head too.",
    )


def _nearest(config: EncoderConfig, model: EncoderModel) -> str:
    """The family whose reason is worth telling: the one with the same positions and layers."""
    positions = config.positions
    if isinstance(positions, RotaryPositions):
        return "modernbert"
    if isinstance(positions, DisentangledPositions):
        return "deberta-v2" if positions.buckets else "deberta"
    if isinstance(positions, NoPositions):
        return "deberta-v2"
    if config.sharing is not None:
        return "albert"
    if isinstance(model, ReplacedTokenDetector) or config.embedding_size is not None:
        return "electra"
    if isinstance(positions, LearnedPositions) and positions.offset:
        return "roberta"
    return "bert" if config.type_vocab_size else "distilbert"  # which has no types


def _sayable(config: EncoderConfig) -> tuple[EncoderConfig, tuple[str, ...]]:
    """The config as families put it, without the mask decoder that none has."""
    head = config.heads.vocabulary
    if head.mask_decoder == "none":
        return config, ()
    plain = dataclasses.replace(head, mask_decoder="none")
    heads = dataclasses.replace(config.heads, vocabulary=plain)
    return dataclasses.replace(config, heads=heads), (
        "transformers has no enhanced mask decoder: this export is without it and its position "
        "table, so masked tokens are predicted worse than here; the encoder is unchanged.",
    )


def _architecture(family: Family, model: EncoderModel) -> str:
    kind = type(model)
    if kind in (EncoderModel, SentenceEncoder):
        return family.base
    for name, head in family.heads.items():
        if head.model is kind:
            return name
    raise ValueError(
        f"{family.model_type} has no class for a {kind.__name__}; export the encoder alone, or "
        f"another family."
    )


def _fields(
    family: Family, config: EncoderConfig, model: EncoderModel
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Of config.json, and what they leave unsaid; ValueError if they would say something else."""
    fields = _first_said(family, config, model)
    back = family.encoder_config(fields)
    wanted = flatten(_used(config, model), "heads.") | _rates(config)
    said = flatten(_used(back, model), "heads.") | _rates(back)
    differing = [name for name in wanted if wanted[name] != said[name]]
    for name in differing:
        if "dropout" not in name:
            raise ValueError(
                f"{family.model_type} has no way to say {name} {wanted[name]}; the nearest it has "
                f"is {said[name]}."
            )
    unsaid = tuple(
        f"config.json cannot say {name} {wanted[name]} and says {said[name]}, which only further "
        f"training would notice."
        for name in differing
    )
    return fields, unsaid


def _first_said(family: Family, config: EncoderConfig, model: EncoderModel) -> dict[str, Any]:
    """Fields of the config; of a model without a vocabulary head, with whichever can be said."""
    vocabularies = [config.heads.vocabulary]
    if not isinstance(model, MaskedLM):
        vocabularies += [VocabularyHead(), VocabularyHead(activation="gelu")]
    refusals = []
    for vocabulary in vocabularies:
        heads = dataclasses.replace(config.heads, vocabulary=vocabulary)
        try:
            return family.hf_config(dataclasses.replace(config, heads=heads))
        except ValueError as error:
            refusals.append(error)
    raise refusals[0]


def _rates(config: EncoderConfig) -> dict[str, float]:
    d = config.dropout
    return {
        "dropout.hidden": d.hidden,
        "dropout.attention": d.attention,
        "dropout.embedding": d.on_embeddings,
        "dropout.attention_out": d.on_attention_out,
        "dropout.mlp_inner": d.mlp_inner,
        "dropout.mlp_out": d.on_mlp_out,
    }


def _used(config: EncoderConfig, model: EncoderModel) -> Heads:
    """The pooler and the detector, as far as the model has them; of the rest, defaults.

    The encoder and the vocabulary head are compared by the family itself.
    """
    pooler = config.heads.pooler
    rate = config.dropout.hidden if pooler.output_dropout is None else pooler.output_dropout
    pooler = dataclasses.replace(pooler, output_dropout=rate)
    if isinstance(model, ReplacedTokenDetector):
        return Heads(detector=config.heads.detector)
    if isinstance(model, PreTraining):  # has no dropout before its pair classifier
        return Heads(pooler=dataclasses.replace(pooler, output_dropout=None))
    if isinstance(model, SequenceClassifier | MultipleChoice):
        return Heads(pooler=dataclasses.replace(pooler, token_heads="none"))
    if isinstance(model, TokenClassifier | SpanExtractor):
        transformed = pooler.token_heads == "transform"
        return Heads(pooler=pooler if transformed else Pooler(output_dropout=rate))
    return Heads()
