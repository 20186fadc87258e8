"""DeBERTa (v1) and DeBERTa-v2 (v2, v3) in the Hugging Face layout.

Heads follow transformers' names. Microsoft's own checkpoints call the vocabulary head
``lm_predictions.lm_head`` (transformers: with ``legacy`` false) and hold the discriminator of v3 as
``mask_predictions``, for which transformers has no class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bert_jax.interop import bert, fields
from bert_jax.interop.family import Family, HeadMap
from bert_jax.interop.fields import Json
from bert_jax.interop.keys import Entry, Part, linear, norm
from bert_jax.models.axes import RelativeTerm
from bert_jax.models.config import (
    Biases,
    Convolution,
    DisentangledPositions,
    EncoderConfig,
    Heads,
    LearnedPositions,
    NoPositions,
    Pooler,
    Positions,
)
from bert_jax.models.heads import MaskedLM, ReplacedTokenDetector

_ATTENTION = f"{bert.LAYER}.attention.self"


# --------------------------------------------------------------------------------------- configs


def _v1_config(raw: Json) -> EncoderConfig:
    fields.refuse(raw, "talking_head", (False, None))
    positions = _positions(raw, buckets=0, projections="own", normed="none")
    return EncoderConfig(**_shape(raw), positions=positions, biases=Biases(attention="query_value"))


def _v2_config(raw: Json) -> EncoderConfig:
    shared = raw.get("share_att_key", False)
    norms = [part.strip() for part in (raw.get("norm_rel_ebd") or "none").lower().split("|")]
    positions = _positions(
        raw,
        buckets=max(raw.get("position_buckets", -1), 0),
        projections="shared" if shared else "own",
        normed="layer" if "layer_norm" in norms else "none",
    )
    convolution = None
    if (raw.get("conv_kernel_size") or 0) > 0:
        fields.refuse(raw, "conv_groups", (1, None))
        convolution = Convolution(
            raw["conv_kernel_size"], fields.activation(raw, "conv_act", "tanh")
        )
    return EncoderConfig(**_shape(raw), positions=positions, convolution=convolution)


def _shape(raw: Json) -> dict[str, Any]:
    """Arguments of our config that both versions name alike."""
    width = fields.required(raw, "hidden_size")
    fields.refuse(raw, "pooler_hidden_size", (width, None))
    size = fields.embedding_size(raw, width)
    return fields.bert_shape(raw, eps=1e-7) | {
        "type_vocab_size": raw.get("type_vocab_size", 0),
        "embedding_size": size,
        "embedding_projection": "after_norm" if size is None else "before_norm",
        "heads": Heads(
            vocabulary=fields.vocabulary(_tied_as_its_head(raw)),
            pooler=Pooler(
                activation=fields.activation(raw, "pooler_hidden_act"),
                input_dropout=raw.get("pooler_dropout", 0.0),
                output_dropout=raw.get("cls_dropout"),
            ),
            detector="token_and_context",
        ),
    }


def _tied_as_its_head(raw: Json) -> Json:
    """Without ``legacy`` the head multiplies by the token table, whatever config.json says."""
    return raw if raw.get("legacy", True) else {**raw, "tie_word_embeddings": True}


def _positions(raw: Json, *, buckets: int, projections: Any, normed: Any) -> Positions:
    longest = raw.get("max_position_embeddings", 512)
    absolute = raw.get("position_biased_input", True)
    terms = raw.get("pos_att_type") or ()
    if isinstance(terms, str):
        terms = [term.strip() for term in terms.lower().split("|") if term.strip()]
    unknown = [term for term in terms if term not in ("c2p", "p2c")]
    if unknown:
        raise ValueError(
            f"config.json has pos_att_type {', '.join(terms)}; {unknown[0]} is not implemented, "
            f"c2p and p2c are."
        )
    if bool(terms) != bool(raw.get("relative_attention", False)):
        raise ValueError(
            f"config.json has relative_attention {raw.get('relative_attention', False)} and "
            f"pos_att_type {list(terms)}; only both or neither are implemented."
        )
    if not terms:
        return LearnedPositions(longest) if absolute else NoPositions(longest)
    distance = raw.get("max_relative_positions", -1)
    return DisentangledPositions(
        max_length=longest,
        buckets=buckets,
        max_distance=longest if distance < 1 else distance,
        terms=cast(tuple[RelativeTerm, ...], tuple(terms)),
        projections=projections,
        norm=normed,
        at_input="absolute" if absolute else "none",
    )


def _json(config: EncoderConfig) -> dict[str, Any]:
    """Fields that both versions name alike."""
    positions, pooler = config.positions, config.heads.pooler
    relative = isinstance(positions, DisentangledPositions)
    absolute = isinstance(positions, LearnedPositions) or (
        relative and positions.at_input == "absolute"
    )
    return fields.bert_json(config) | {
        "type_vocab_size": config.type_vocab_size,
        "embedding_size": config.table_size,
        "max_position_embeddings": positions.max_length,
        "relative_attention": relative,
        "max_relative_positions": positions.max_distance if relative else -1,
        "pos_att_type": list(positions.terms) if relative else None,
        "position_biased_input": absolute,
        "pooler_hidden_size": config.hidden_size,
        "pooler_hidden_act": fields.activation_name(pooler.activation),
        "pooler_dropout": pooler.input_dropout,
        "cls_dropout": pooler.output_dropout,
        "legacy": True,
    }


def _v1_json(config: EncoderConfig) -> dict[str, Any]:
    return fields.said("deberta", config, _json(config), _v1_config)


def _v2_json(config: EncoderConfig) -> dict[str, Any]:
    out, positions = _json(config), config.positions
    if isinstance(positions, DisentangledPositions):
        out |= {
            "position_buckets": positions.buckets or -1,
            "share_att_key": positions.projections == "shared",
            "norm_rel_ebd": "layer_norm" if positions.norm == "layer" else "none",
        }
    if config.convolution is not None:
        out["conv_kernel_size"] = config.convolution.kernel_size
        out["conv_act"] = fields.activation_name(config.convolution.activation)
    return fields.said("deberta-v2", config, out, _v2_config)


# ------------------------------------------------------------------------------------------ body


def _embeddings(config: EncoderConfig) -> list[Entry]:
    positions = config.positions
    entries = bert.embeddings(config)
    if isinstance(positions, DisentangledPositions):
        entries.append(Entry("encoder/relative/embedding", "encoder.rel_embeddings.weight"))
        if positions.norm == "layer":
            entries += norm("encoder/relative_norm", "encoder.LayerNorm")
        if positions.at_input == "absolute":
            entries.append(Entry("encoder/embeddings/position/embedding", bert.POSITION_TABLE))
    if config.embedding_size is not None:
        entries += linear("encoder/embeddings/projection", "embeddings.embed_proj", bias=False)
    return entries


def _v1_body(config: EncoderConfig) -> list[Entry]:
    together = f"{_ATTENTION}.in_proj.weight"
    entries = _embeddings(config)
    for index, name in enumerate(("query", "key", "value")):
        part = Part(index, 3, "heads")
        entries.append(Entry(f"encoder/layers/{name}/kernel", together, "transpose", part))
    entries += [
        Entry("encoder/layers/query/bias", f"{_ATTENTION}.q_bias"),
        Entry("encoder/layers/value/bias", f"{_ATTENTION}.v_bias"),
    ]
    if isinstance(config.positions, DisentangledPositions):
        if "c2p" in config.positions.terms:
            entries += linear("encoder/layers/position_key", f"{_ATTENTION}.pos_proj", bias=False)
        if "p2c" in config.positions.terms:
            entries += linear("encoder/layers/position_query", f"{_ATTENTION}.pos_q_proj")
    return [*entries, *bert.after_attention()]


def _v2_body(config: EncoderConfig) -> list[Entry]:
    positions = config.positions
    entries = [
        *_embeddings(config),
        *linear("encoder/layers/query", f"{_ATTENTION}.query_proj"),
        *linear("encoder/layers/key", f"{_ATTENTION}.key_proj"),
        *linear("encoder/layers/value", f"{_ATTENTION}.value_proj"),
        *bert.after_attention(),
    ]
    if isinstance(positions, DisentangledPositions) and positions.projections == "own":
        if "c2p" in positions.terms:
            entries += linear("encoder/layers/position_key", f"{_ATTENTION}.pos_key_proj")
        if "p2c" in positions.terms:
            entries += linear("encoder/layers/position_query", f"{_ATTENTION}.pos_query_proj")
    if config.convolution is not None:
        taps = "encoder/convolution/taps"
        entries += [
            Entry(f"{taps}/kernel", "encoder.conv.conv.weight", "convolution"),
            Entry(f"{taps}/bias", "encoder.conv.conv.bias"),
            *norm("encoder/convolution/norm", "encoder.conv.LayerNorm"),
        ]
    return entries


# ----------------------------------------------------------------------------------------- heads


def _masked_lm(config: EncoderConfig) -> list[Entry]:
    transform = f"{bert.PREDICTIONS}.transform"
    return bert.vocabulary(
        config,
        f"{transform}.dense",
        f"{transform}.LayerNorm",
        f"{bert.PREDICTIONS}.decoder",
        f"{bert.PREDICTIONS}.bias",
    )


_TIED = {
    f"{bert.PREDICTIONS}.decoder.weight": f"deberta.{bert.WORD_TABLE}",
    f"{bert.PREDICTIONS}.decoder.bias": f"{bert.PREDICTIONS}.bias",
}
_SPELLINGS = {
    "lm_predictions.lm_head.dense.": f"{bert.PREDICTIONS}.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": f"{bert.PREDICTIONS}.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": f"{bert.PREDICTIONS}.bias",
}
_DETECTOR = [
    *norm("detector_norm", "mask_predictions.LayerNorm"),
    *linear("detector_dense", "mask_predictions.dense"),
    *linear("detector", "mask_predictions.classifier"),
]


def _heads(name: str) -> dict[str, HeadMap]:
    return {
        f"{name}ForMaskedLM": HeadMap(MaskedLM, _masked_lm, _TIED, _SPELLINGS),
        f"{name}ForSequenceClassification": bert.classifier("pooler.dense"),
        f"{name}ForTokenClassification": bert.tagger(),
        f"{name}ForQuestionAnswering": bert.spans(),
    }


_V2_HEADS: Mapping[str, HeadMap] = {
    **_heads("DebertaV2"),
    "DebertaV2ForMultipleChoice": bert.multiple_choice("pooler.dense"),
    # A name of this project: transformers has no such class.
    "DebertaV2ForReplacedTokenDetection": HeadMap(ReplacedTokenDetector, lambda _: _DETECTOR),
}
# Microsoft's checkpoints keep a position table that only their mask decoder reads.
_UNUSED = ("embeddings.position_ids", bert.POSITION_TABLE, "encoder.LayerNorm.")

FAMILIES = (
    Family(
        model_type="deberta",
        prefix="deberta.",
        base="DebertaModel",
        encoder_config=_v1_config,
        hf_config=_v1_json,
        body=_v1_body,
        heads=_heads("Deberta"),
        unused=_UNUSED,
    ),
    Family(
        model_type="deberta-v2",
        prefix="deberta.",
        base="DebertaV2Model",
        encoder_config=_v2_config,
        hf_config=_v2_json,
        body=_v2_body,
        heads=_V2_HEADS,
        unused=_UNUSED,
    ),
)
