"""ModernBERT in the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.interop import fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, Part, linear, norm
from bert_jax.models.config import (
    AttentionPattern,
    Biases,
    Dropout,
    EncoderConfig,
    GlobalAttention,
    Heads,
    LocalAttention,
    Norm,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.models.heads import MaskedLM
from bert_jax.models.task_heads import (
    MultipleChoice,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

_LAYER = "layers.{layer}"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: 160_000.0, _SLIDING: 10_000.0}  # ModernBertConfig.default_theta


# ---------------------------------------------------------------------------------------- config


def encoder_config(raw: Json) -> EncoderConfig:
    """Our config from config.json; defaults are those of transformers' ``ModernBertConfig``."""
    fields.refuse_strangers(raw)
    act = fields.activation(raw, "hidden_activation")
    head_act = fields.activation(raw, "classifier_activation")
    head_bias = raw.get("classifier_bias", False)
    attention = _attention(raw)
    global_theta, local_theta = (_theta(raw, name) for name in (_FULL, _SLIDING))
    is_local = isinstance(attention, LocalAttention)
    tied = raw.get("tie_word_embeddings", True)
    return EncoderConfig(
        vocab_size=fields.required(raw, "vocab_size"),
        hidden_size=fields.required(raw, "hidden_size"),
        num_layers=fields.required(raw, "num_hidden_layers"),
        num_heads=fields.required(raw, "num_attention_heads"),
        intermediate_size=fields.required(raw, "intermediate_size"),
        positions=RotaryPositions(
            max_length=raw.get("max_position_embeddings", 8192),
            theta=global_theta,
            local_theta=local_theta if is_local and local_theta != global_theta else None,
        ),
        attention=attention,
        norm=Norm(
            "pre",
            eps=raw.get("norm_eps", 1e-5),
            bias=raw.get("norm_bias", False),
            after_embeddings=True,
            skip_first=True,
        ),
        activation=act,
        mlp="gated",
        biases=Biases(
            attention="all" if raw.get("attention_bias", False) else "none",
            mlp="all" if raw.get("mlp_bias", False) else "none",
        ),
        dropout=Dropout(
            hidden=0.0,
            attention=raw.get("attention_dropout", 0.0),
            embedding=raw.get("embedding_dropout", 0.0),
            attention_out=raw.get("attention_dropout", 0.0),
            mlp_inner=raw.get("mlp_dropout", 0.0),
        ),
        initializer=TruncatedNormal(raw.get("initializer_range", 0.02), "by_depth"),
        heads=Heads(
            vocabulary=VocabularyHead(
                activation=None if head_act == act else head_act,
                bias=head_bias,
                decoder="tied" if tied else "untied",
                decoder_bias=raw.get("decoder_bias", True),
            ),
            pooler=Pooler(
                pooling=raw.get("classifier_pooling", "cls"),
                activation=head_act,
                bias=head_bias,
                norm="encoder",
                output_dropout=raw.get("classifier_dropout", 0.0),
                token_heads="transform",
            ),
        ),
        pad_id=_pad_id(raw),
    )


def _pad_id(raw: Json) -> int:
    pad = raw.get("pad_token_id", 50283)
    return 0 if pad is None else pad


def _attention(raw: Json) -> AttentionPattern:
    """Windows with a global layer every so often, or global layers only."""
    window, layers = raw.get("local_attention", 128), fields.required(raw, "num_hidden_layers")
    types = raw.get("layer_types")
    every = raw.get("global_attn_every_n_layers")
    if types is None:
        return LocalAttention(window, every or 3)
    if len(types) != layers:
        raise ValueError(
            f"config.json has {len(types)} layer_types for num_hidden_layers {layers}; give one "
            f"a layer."
        )
    if every is not None and list(types) == _types(every, layers):
        return LocalAttention(window, every)
    if all(kind == _FULL for kind in types):
        return GlobalAttention()
    found = _period(types)
    if list(types) != _types(found, layers):
        raise ValueError(
            f"config.json has layer_types {', '.join(types)}, which is not one {_FULL} layer "
            f"every so many, from the first on; no other pattern is implemented."
        )
    return LocalAttention(window, found)


def _types(every: int, layers: int) -> list[str]:
    return [_SLIDING if index % every else _FULL for index in range(layers)]


def _period(types: Sequence[str]) -> int:
    """Layers from the first global one to the next."""
    later = [index for index, kind in enumerate(types) if kind == _FULL and index]
    return later[0] if later else len(types)


def _theta(raw: Json, kind: str) -> float:
    """Base of the rotary wavelengths of one kind of layer, in today's fields or older ones."""
    fields.refuse(raw, "rope_scaling", (None,))
    parameters = raw.get("rope_parameters") or {}
    strangers = sorted(set(parameters) - set(_THETAS))
    if strangers:
        raise ValueError(
            f"config.json has rope_parameters for {', '.join(strangers)}; only {_FULL} and "
            f"{_SLIDING} are known."
        )
    own: Mapping[str, Any] = parameters.get(kind) or {}
    scheme = own.get("rope_type", own.get("type", "default"))
    if scheme != "default":
        raise ValueError(
            f"config.json has rope_type {scheme!r} for {kind}; only 'default' is implemented."
        )
    old = "global_rope_theta" if kind == _FULL else "local_rope_theta"
    value = own.get("rope_theta", raw.get(old, _THETAS[kind]))
    # Older configs: no local base of its own.
    return float(_theta(raw, _FULL) if value is None else value)


def hf_config(config: EncoderConfig) -> dict[str, Any]:
    """config.json of our config."""
    positions, attention, pooler = config.positions, config.attention, config.heads.pooler
    if not isinstance(positions, RotaryPositions):
        raise ValueError(f"modernbert has rotary positions; this encoder has {positions}.")
    head = config.heads.vocabulary
    is_local = isinstance(attention, LocalAttention)
    local_theta = positions.theta if positions.local_theta is None else positions.local_theta
    out = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_activation": fields.activation_name(config.activation),
        "max_position_embeddings": positions.max_length,
        "initializer_range": fields.spread(config.initializer),
        "initializer_cutoff_factor": 2.0,
        "norm_eps": config.norm.eps,
        "norm_bias": config.norm.bias,
        "attention_bias": config.biases.attention == "all",
        "mlp_bias": config.biases.mlp == "all",
        "attention_dropout": config.dropout.attention,
        "embedding_dropout": config.dropout.on_embeddings,
        "mlp_dropout": config.dropout.mlp_inner,
        "layer_types": _types(attention.global_every if is_local else 1, config.num_layers),
        "local_attention": attention.window if is_local else 128,
        "rope_parameters": {
            _FULL: {"rope_type": "default", "rope_theta": positions.theta},
            _SLIDING: {"rope_type": "default", "rope_theta": local_theta},
        },
        "decoder_bias": head.decoder_bias,
        "classifier_pooling": pooler.pooling,
        "classifier_dropout": pooler.output_dropout or 0.0,
        "classifier_bias": head.bias,
        "classifier_activation": fields.activation_name(head.activation or config.activation),
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": fields.tied(config),
    }
    if is_local:
        out["global_attn_every_n_layers"] = attention.global_every
    return fields.said("modernbert", config, out, encoder_config)


# ------------------------------------------------------------------------------------------ keys


def body(config: EncoderConfig) -> list[Entry]:
    """Key map of ``ModernBertModel``."""
    with_bias = config.norm.bias
    entries = [
        Entry(
            "encoder/embeddings/word/embedding", "embeddings.tok_embeddings.weight", "vocabulary"
        ),
        *norm("encoder/embeddings/norm", "embeddings.norm", bias=with_bias),
        *norm(
            "encoder/layers/attention_norm", f"{_LAYER}.attn_norm", bias=with_bias, first_layer=1
        ),
        *norm("encoder/layers/mlp_norm", f"{_LAYER}.mlp_norm", bias=with_bias),
        *norm("encoder/final_norm", "final_norm", bias=with_bias),
    ]
    bias = config.biases.attention == "all"
    entries += _shares(("query", "key", "value"), f"{_LAYER}.attn.Wqkv", bias)
    entries += linear("encoder/layers/attention_out", f"{_LAYER}.attn.Wo", bias=bias)
    bias = config.biases.mlp == "all"
    entries += _shares(("mlp_in", "mlp_gate"), f"{_LAYER}.mlp.Wi", bias)
    return [*entries, *linear("encoder/layers/mlp_out", f"{_LAYER}.mlp.Wo", bias=bias)]


def _shares(names: Sequence[str], theirs: str, bias: bool) -> list[Entry]:
    """Linear maps that lie below each other in one array."""
    entries = []
    for index, name in enumerate(names):
        part, ours = Part(index, len(names)), f"encoder/layers/{name}"
        entries.append(Entry(f"{ours}/kernel", f"{theirs}.weight", "transpose", part))
        if bias:
            entries.append(Entry(f"{ours}/bias", f"{theirs}.bias", part=part))
    return entries


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    entries = [
        *linear("head_dense", "head.dense", bias=config.heads.vocabulary.bias),
        *norm("head_norm", "head.norm", bias=config.norm.bias),
    ]
    if config.heads.vocabulary.decoder_bias:
        entries.append(Entry("head_bias", "decoder.bias", "vocabulary"))
    if not fields.tied(config):
        entries.append(Entry("decoder/embedding", "decoder.weight", "vocabulary"))
    return entries


def _transform(config: EncoderConfig) -> list[Entry]:
    return [
        *linear("pooler", "head.dense", bias=config.heads.pooler.bias),
        *norm("pooler_norm", "head.norm", bias=config.norm.bias),
    ]


def _classifier(config: EncoderConfig) -> list[Entry]:
    return [*_transform(config), *linear("classifier", "classifier")]


def _spans(config: EncoderConfig) -> list[Entry]:
    return [*_transform(config), *linear("span", "classifier")]


FAMILY = Family(
    model_type="modernbert",
    prefix="model.",
    base="ModernBertModel",
    encoder_config=encoder_config,
    hf_config=hf_config,
    body=body,
    heads={
        "ModernBertForMaskedLM": HeadMap(
            MaskedLM, _masked_lm, {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
        ),
        "ModernBertForSequenceClassification": HeadMap(SequenceClassifier, _classifier),
        "ModernBertForTokenClassification": HeadMap(TokenClassifier, _classifier),
        "ModernBertForQuestionAnswering": HeadMap(SpanExtractor, _spans),
        "ModernBertForMultipleChoice": HeadMap(MultipleChoice, _classifier),
    },
)
