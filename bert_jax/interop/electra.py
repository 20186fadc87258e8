"""ELECTRA in the Hugging Face layout: generator (a masked LM) and discriminator (a detector)."""

from __future__ import annotations

from typing import Any

from bert_jax.interop import bert, fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, linear
from bert_jax.models.config import EncoderConfig, Heads, LearnedPositions, Pooler
from bert_jax.models.heads import MaskedLM, ReplacedTokenDetector
from bert_jax.models.task_heads import SequenceClassifier


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``ElectraConfig``.

    Generator and classifier use the exact gelu, whatever the encoder's activation is.
    """
    fields.refuse(raw, "summary_type", ("first",))
    fields.refuse(raw, "summary_use_proj", (True,))
    fields.refuse(raw, "summary_activation", ("gelu",))
    fields.refuse(raw, "summary_proj_to_labels", (False, None))
    shape = fields.bert_shape(raw)
    rate = raw.get("classifier_dropout")
    return EncoderConfig(
        **shape,
        embedding_size=fields.embedding_size(raw, 128),
        type_vocab_size=raw.get("type_vocab_size", 2),
        positions=LearnedPositions(raw.get("max_position_embeddings", 512)),
        heads=Heads(
            vocabulary=fields.vocabulary(raw, act="gelu"),
            pooler=Pooler(
                activation="gelu",
                input_dropout=shape["dropout"].hidden if rate is None else rate,
                output_dropout=rate,
            ),
            detector="token",
        ),
    )


def hf_config(config: EncoderConfig) -> dict[str, Any]:
    """config.json of our config."""
    out = fields.bert_json(config) | {
        "embedding_size": config.table_size,
        "type_vocab_size": bert.with_types("electra", config),
        "max_position_embeddings": config.positions.max_length,
        "classifier_dropout": config.heads.pooler.output_dropout,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    }
    return fields.said("electra", config, out, encoder_config)


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``ElectraModel``."""
    entries = bert.body(config)
    if config.embedding_size is not None:
        entries += linear("encoder/embeddings/projection", "embeddings_project")
    return entries


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    return bert.vocabulary(
        config,
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        "generator_lm_head.bias",
    )


_DETECTOR = [
    *linear("detector_dense", "discriminator_predictions.dense"),
    *linear("detector", "discriminator_predictions.dense_prediction"),
]
_CLASSIFIER = [
    *linear("pooler", "classifier.dense"),
    *linear("classifier", "classifier.out_proj"),
]

FAMILY = Family(
    model_type="electra",
    prefix="electra.",
    base="ElectraModel",
    encoder_config=encoder_config,
    hf_config=hf_config,
    body=body,
    heads={
        "ElectraForMaskedLM": HeadMap(
            MaskedLM, _masked_lm, {"generator_lm_head.weight": f"electra.{bert.WORD_TABLE}"}
        ),
        "ElectraForPreTraining": HeadMap(ReplacedTokenDetector, lambda _: _DETECTOR),
        "ElectraForSequenceClassification": HeadMap(SequenceClassifier, lambda _: _CLASSIFIER),
        "ElectraForTokenClassification": bert.tagger(),
        "ElectraForQuestionAnswering": bert.spans(),
        "ElectraForMultipleChoice": bert.multiple_choice("sequence_summary.summary"),
    },
    unused=("embeddings.position_ids", "embeddings.token_type_ids"),
)
