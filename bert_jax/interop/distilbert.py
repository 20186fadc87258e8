"""DistilBERT in the Hugging Face layout."""

from __future__ import annotations

from typing import Any

from bert_jax.interop import bert, fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, linear, norm
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    Heads,
    LearnedPositions,
    Norm,
    Normal,
    Pooler,
    VocabularyHead,
)
from bert_jax.models.heads import MaskedLM

_LAYER = "transformer.layer.{layer}"


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``DistilBertConfig``.

    With ``sinusoidal_pos_embds`` the table of sinusoids lies in the checkpoint like any other, so
    positions are a table here in both cases. After attention there is no dropout.
    """
    fields.refuse_strangers(raw)
    tied = raw.get("tie_word_embeddings", True)
    return EncoderConfig(
        vocab_size=fields.required(raw, "vocab_size"),
        hidden_size=fields.required(raw, "dim", "hidden_size"),
        num_layers=fields.required(raw, "n_layers", "num_hidden_layers"),
        num_heads=fields.required(raw, "n_heads", "num_attention_heads"),
        intermediate_size=fields.required(raw, "hidden_dim"),
        positions=LearnedPositions(raw.get("max_position_embeddings", 512)),
        norm=Norm("post", eps=1e-12),
        activation=fields.activation(raw, "activation"),
        dropout=Dropout(
            hidden=raw.get("dropout", 0.1),
            attention=raw.get("attention_dropout", 0.1),
            attention_out=0.0,
        ),
        initializer=Normal(raw.get("initializer_range", 0.02)),
        heads=Heads(
            vocabulary=VocabularyHead(decoder="tied" if tied else "untied"),
            pooler=Pooler(activation="relu", output_dropout=raw.get("seq_classif_dropout", 0.2)),
        ),
        pad_id=raw.get("pad_token_id", 0) or 0,
    )


def hf_config(config: EncoderConfig) -> dict[str, Any]:
    """config.json of our config."""
    rate = config.heads.pooler.output_dropout
    out = {
        "vocab_size": config.vocab_size,
        "dim": config.hidden_size,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "hidden_dim": config.intermediate_size,
        "max_position_embeddings": config.positions.max_length,
        "sinusoidal_pos_embds": False,
        "activation": fields.activation_name(config.activation),
        "dropout": config.dropout.hidden,
        "attention_dropout": config.dropout.attention,
        "initializer_range": fields.spread(config.initializer),
        "seq_classif_dropout": config.dropout.hidden if rate is None else rate,
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": fields.tied(config),
    }
    return fields.said("distilbert", config, out, encoder_config)


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``DistilBertModel``."""
    return [
        *bert.embeddings(config),
        *linear("encoder/layers/query", f"{_LAYER}.attention.q_lin"),
        *linear("encoder/layers/key", f"{_LAYER}.attention.k_lin"),
        *linear("encoder/layers/value", f"{_LAYER}.attention.v_lin"),
        *linear("encoder/layers/attention_out", f"{_LAYER}.attention.out_lin"),
        *norm("encoder/layers/attention_norm", f"{_LAYER}.sa_layer_norm"),
        *linear("encoder/layers/mlp_in", f"{_LAYER}.ffn.lin1"),
        *linear("encoder/layers/mlp_out", f"{_LAYER}.ffn.lin2"),
        *norm("encoder/layers/mlp_norm", f"{_LAYER}.output_layer_norm"),
    ]


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    return bert.vocabulary(
        config, "vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"
    )


FAMILY = Family(
    model_type="distilbert",
    prefix="distilbert.",
    base="DistilBertModel",
    encoder_config=encoder_config,
    hf_config=hf_config,
    body=body,
    heads={
        "DistilBertForMaskedLM": HeadMap(
            MaskedLM, _masked_lm, {"vocab_projector.weight": f"distilbert.{bert.WORD_TABLE}"}
        ),
        "DistilBertForSequenceClassification": bert.classifier("pre_classifier"),
        "DistilBertForTokenClassification": bert.tagger(),
        "DistilBertForQuestionAnswering": bert.spans(),
        "DistilBertForMultipleChoice": bert.multiple_choice("pre_classifier"),
    },
    unused=("embeddings.position_ids",),
)
