"""ALBERT in the Hugging Face layout."""

from __future__ import annotations

from typing import Any

from bert_jax.interop import bert, fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, linear, norm
from bert_jax.models.config import EncoderConfig, Heads, LayerSharing, LearnedPositions, Pooler
from bert_jax.models.heads import MaskedLM, PreTraining

_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{inner}"


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``AlbertConfig``."""
    raw = {"hidden_act": "gelu_new", **raw}
    sharing = LayerSharing(raw.get("num_hidden_groups", 1), raw.get("inner_group_num", 1))
    _check_groups(fields.required(raw, "num_hidden_layers"), sharing.groups)
    return EncoderConfig(
        **fields.bert_shape(raw, rate=0.0),
        embedding_size=raw.get("embedding_size") or 128,  # a projection even if it is hidden_size
        type_vocab_size=raw.get("type_vocab_size", 2),
        positions=LearnedPositions(raw.get("max_position_embeddings", 512)),
        sharing=sharing,
        heads=Heads(
            vocabulary=fields.vocabulary(raw),
            pooler=Pooler(output_dropout=raw.get("classifier_dropout_prob", 0.1)),
        ),
    )


def _check_groups(layers: int, groups: int) -> None:
    """In transformers a layer's group is found in floating point, which may round down."""
    if not (0 < groups <= layers < 10_000):
        raise ValueError(
            f"config.json has num_hidden_groups {groups} for {layers} layers; a group has at least "
            f"one layer, and fewer than 10,000 layers are read."
        )
    if any(int(i / (layers / groups)) != i * groups // layers for i in range(layers)):
        raise ValueError(
            f"config.json has num_hidden_groups {groups} for {layers} layers, which transformers "
            f"rounds to uneven groups; choose a divisor of {layers}."
        )


def hf_config(config: EncoderConfig) -> dict[str, Any]:
    """config.json of our config."""
    if config.sharing is None or config.embedding_size is None:
        raise ValueError(
            "albert shares layers and projects its embeddings; set sharing and embedding_size."
        )
    rate = config.heads.pooler.output_dropout
    out = fields.bert_json(config) | {
        "embedding_size": config.table_size,
        "type_vocab_size": bert.with_types("albert", config),
        "max_position_embeddings": config.positions.max_length,
        "num_hidden_groups": config.sharing.groups,
        "inner_group_num": config.sharing.inner,
        "classifier_dropout_prob": config.dropout.hidden if rate is None else rate,
    }
    return fields.said("albert", config, out, encoder_config)


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``AlbertModel`` without its pooler."""
    return [
        *bert.embeddings(config),
        *linear("encoder/embeddings/projection", "encoder.embedding_hidden_mapping_in"),
        *linear("encoder/layers/query", f"{_LAYER}.attention.query"),
        *linear("encoder/layers/key", f"{_LAYER}.attention.key"),
        *linear("encoder/layers/value", f"{_LAYER}.attention.value"),
        *linear("encoder/layers/attention_out", f"{_LAYER}.attention.dense"),
        *norm("encoder/layers/attention_norm", f"{_LAYER}.attention.LayerNorm"),
        *linear("encoder/layers/mlp_in", f"{_LAYER}.ffn"),
        *linear("encoder/layers/mlp_out", f"{_LAYER}.ffn_output"),
        *norm("encoder/layers/mlp_norm", f"{_LAYER}.full_layer_layer_norm"),
    ]


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    return bert.vocabulary(
        config,
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions.decoder",
        "predictions.bias",
    )


def _pretraining(config: EncoderConfig) -> list[Entry]:
    return [
        *_masked_lm(config),
        *linear("pooler", "albert.pooler"),
        *linear("pair", "sop_classifier.classifier"),
    ]


_TIED = {
    "predictions.decoder.weight": f"albert.{bert.WORD_TABLE}",
    "predictions.decoder.bias": "predictions.bias",
}

FAMILY = Family(
    model_type="albert",
    prefix="albert.",
    base="AlbertModel",
    encoder_config=encoder_config,
    hf_config=hf_config,
    body=body,
    heads={
        "AlbertForMaskedLM": HeadMap(MaskedLM, _masked_lm, _TIED),
        "AlbertForPreTraining": HeadMap(PreTraining, _pretraining, _TIED),
        "AlbertForSequenceClassification": bert.classifier("albert.pooler"),
        "AlbertForTokenClassification": bert.tagger(),
        "AlbertForQuestionAnswering": bert.spans(),
        "AlbertForMultipleChoice": bert.multiple_choice("albert.pooler"),
    },
    unused=("embeddings.position_ids", "embeddings.token_type_ids", "pooler."),
)
