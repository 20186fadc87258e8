"""BERT in the Hugging Face layout; RoBERTa and ELECTRA share most of its key map."""

from __future__ import annotations

from typing import Any

from bert_jax.interop import fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, linear, norm
from bert_jax.models.config import EncoderConfig, Heads, LearnedPositions, Pooler
from bert_jax.models.heads import MaskedLM, PreTraining
from bert_jax.models.task_heads import (
    MultipleChoice,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

PREDICTIONS = "cls.predictions"


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``BertConfig``."""
    return EncoderConfig(
        **fields.bert_shape(raw),
        type_vocab_size=raw.get("type_vocab_size", 2),
        positions=LearnedPositions(raw.get("max_position_embeddings", 512)),
        heads=Heads(
            vocabulary=fields.vocabulary(raw),
            pooler=Pooler(output_dropout=raw.get("classifier_dropout")),
        ),
    )


def hf_config(config: EncoderConfig) -> dict[str, Any]:
    """config.json of our config."""
    out = fields.bert_json(config) | {
        "type_vocab_size": with_types("bert", config),
        "max_position_embeddings": config.positions.max_length,
        "classifier_dropout": config.heads.pooler.output_dropout,
    }
    return fields.said("bert", config, out, encoder_config)


def with_types(model_type: str, config: EncoderConfig) -> int:
    """Rows of the type table, which transformers' class always has."""
    if config.type_vocab_size < 1:
        raise ValueError(
            f"{model_type} has a type table, and type_vocab_size is {config.type_vocab_size}; "
            f"train with type_vocab_size 1 or more to export it."
        )
    return config.type_vocab_size


def embeddings(config: EncoderConfig) -> list[Entry]:
    """Tables and their norm."""
    tables = [Entry("encoder/embeddings/word/embedding", WORD_TABLE, "vocabulary")]
    if isinstance(config.positions, LearnedPositions):
        tables.append(Entry("encoder/embeddings/position/embedding", POSITION_TABLE))
    if config.type_vocab_size:
        tables.append(Entry("encoder/embeddings/type/embedding", TYPE_TABLE))
    return [*tables, *norm("encoder/embeddings/norm", "embeddings.LayerNorm")]


WORD_TABLE = "embeddings.word_embeddings.weight"
POSITION_TABLE = "embeddings.position_embeddings.weight"
TYPE_TABLE = "embeddings.token_type_embeddings.weight"
LAYER = "encoder.layer.{layer}"


def after_attention(layer: str = LAYER) -> list[Entry]:
    """A layer from attention's output on: the same in BERT, RoBERTa, ELECTRA and DeBERTa."""
    return [
        *linear("encoder/layers/attention_out", f"{layer}.attention.output.dense"),
        *norm("encoder/layers/attention_norm", f"{layer}.attention.output.LayerNorm"),
        *linear("encoder/layers/mlp_in", f"{layer}.intermediate.dense"),
        *linear("encoder/layers/mlp_out", f"{layer}.output.dense"),
        *norm("encoder/layers/mlp_norm", f"{layer}.output.LayerNorm"),
    ]


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``BertModel`` without its pooler."""
    return [
        *embeddings(config),
        *linear("encoder/layers/query", f"{LAYER}.attention.self.query"),
        *linear("encoder/layers/key", f"{LAYER}.attention.self.key"),
        *linear("encoder/layers/value", f"{LAYER}.attention.self.value"),
        *after_attention(),
    ]


def vocabulary(
    config: EncoderConfig, transform: str, layer_norm: str, decoder: str, bias: str
) -> list[Entry]:
    """Key map of a vocabulary head.

    Args:
        config: Of the encoder.
        transform: Their linear map.
        layer_norm: Their norm.
        decoder: Their output map; has a weight of its own only where it is untied, and is then
            the one whose bias counts.
        bias: Key of their bias.
    """
    entries = [*linear("head_dense", transform), *norm("head_norm", layer_norm)]
    if fields.tied(config):
        return [*entries, Entry("head_bias", bias, "vocabulary")]
    return [
        *entries,
        Entry("decoder/embedding", f"{decoder}.weight", "vocabulary"),
        Entry("head_bias", f"{decoder}.bias", "vocabulary"),
    ]


def classifier(pooler: str, out: str = "classifier") -> HeadMap:
    """A head of one pooler and one classifier."""
    entries = [*linear("pooler", pooler), *linear("classifier", out)]
    return HeadMap(SequenceClassifier, lambda _: entries)


def multiple_choice(pooler: str) -> HeadMap:
    """A head that scores choices."""
    entries = [*linear("pooler", pooler), *linear("classifier", "classifier")]
    return HeadMap(MultipleChoice, lambda _: entries)


def tagger() -> HeadMap:
    """A classifier of tokens."""
    return HeadMap(TokenClassifier, lambda _: linear("classifier", "classifier"))


def spans() -> HeadMap:
    """Starts and ends of answers."""
    return HeadMap(SpanExtractor, lambda _: linear("span", "qa_outputs"))


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    transform = f"{PREDICTIONS}.transform"
    return vocabulary(
        config,
        f"{transform}.dense",
        f"{transform}.LayerNorm",
        f"{PREDICTIONS}.decoder",
        f"{PREDICTIONS}.bias",
    )


def _pretraining(config: EncoderConfig) -> list[Entry]:
    return [
        *_masked_lm(config),
        *linear("pooler", "bert.pooler.dense"),
        *linear("pair", "cls.seq_relationship"),
    ]


_TIED = {
    f"{PREDICTIONS}.decoder.weight": f"bert.{WORD_TABLE}",
    f"{PREDICTIONS}.decoder.bias": f"{PREDICTIONS}.bias",
}

FAMILY = Family(
    model_type="bert",
    prefix="bert.",
    base="BertModel",
    encoder_config=encoder_config,
    hf_config=hf_config,
    body=body,
    heads={
        "BertForMaskedLM": HeadMap(MaskedLM, _masked_lm, _TIED),
        "BertForPreTraining": HeadMap(PreTraining, _pretraining, _TIED),
        "BertForSequenceClassification": classifier("bert.pooler.dense"),
        "BertForTokenClassification": tagger(),
        "BertForQuestionAnswering": spans(),
        "BertForMultipleChoice": multiple_choice("bert.pooler.dense"),
        "BertForNextSentencePrediction": classifier("bert.pooler.dense", "cls.seq_relationship"),
    },
    unused=("embeddings.position_ids", "embeddings.token_type_ids", "pooler."),
)
