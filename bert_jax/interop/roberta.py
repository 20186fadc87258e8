"""RoBERTa, XLM-RoBERTa and CamemBERT in the Hugging Face layout: they differ by vocabulary only."""

from __future__ import annotations

from typing import Any

from bert_jax.interop import bert, fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, linear
from bert_jax.models.config import EncoderConfig, Heads, LearnedPositions, Pooler
from bert_jax.models.heads import MaskedLM
from bert_jax.models.task_heads import SequenceClassifier


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``RobertaConfig``.

    Row ``pad + 1`` of the position table is position 0, so of its rows ``pad + 1`` are not usable.
    """
    raw = {"pad_token_id": 1, **raw}
    if raw["pad_token_id"] is None:
        raise ValueError(
            "config.json has pad_token_id null; positions of a RoBERTa count from pad_token_id + 1."
        )
    shape = fields.bert_shape(raw)
    offset = raw["pad_token_id"] + 1
    rate = raw.get("classifier_dropout")
    return EncoderConfig(
        **shape,
        type_vocab_size=raw.get("type_vocab_size", 2),
        positions=LearnedPositions(raw.get("max_position_embeddings", 512) - offset, offset),
        heads=Heads(
            vocabulary=fields.vocabulary(raw, act="gelu"),
            pooler=Pooler(
                input_dropout=shape["dropout"].hidden if rate is None else rate,
                output_dropout=rate,
            ),
        ),
    )


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``RobertaModel`` without its pooler."""
    return bert.body(config)


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    return bert.vocabulary(
        config, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
    )


_CLASSIFIER = [
    *linear("pooler", "classifier.dense"),
    *linear("classifier", "classifier.out_proj"),
]
_TIED = {
    "lm_head.decoder.weight": f"roberta.{bert.WORD_TABLE}",
    "lm_head.decoder.bias": "lm_head.bias",
}


def _family(model_type: str, name: str) -> Family:
    def hf_config(config: EncoderConfig) -> dict[str, Any]:
        positions = config.positions
        offset = positions.offset if isinstance(positions, LearnedPositions) else 0
        out = fields.bert_json(config) | {
            "type_vocab_size": bert.with_types(model_type, config),
            "max_position_embeddings": positions.max_length + offset,
            "classifier_dropout": config.heads.pooler.output_dropout,
        }
        return fields.said(model_type, config, out, encoder_config)

    return Family(
        model_type=model_type,
        prefix="roberta.",
        base=f"{name}Model",
        encoder_config=encoder_config,
        hf_config=hf_config,
        body=body,
        heads={
            f"{name}ForMaskedLM": HeadMap(MaskedLM, _masked_lm, _TIED),
            f"{name}ForSequenceClassification": HeadMap(SequenceClassifier, lambda _: _CLASSIFIER),
            f"{name}ForTokenClassification": bert.tagger(),
            f"{name}ForQuestionAnswering": bert.spans(),
            f"{name}ForMultipleChoice": bert.multiple_choice("roberta.pooler.dense"),
        },
        unused=("embeddings.position_ids", "embeddings.token_type_ids", "pooler."),
    )


FAMILIES = (
    _family("roberta", "Roberta"),
    _family("xlm-roberta", "XLMRoberta"),
    _family("camembert", "Camembert"),
)
