"""DeBERTa v1 (arXiv:2006.03654), v2 and v3 (arXiv:2111.09543): disentangled relative positions.

The encoders that are pre-trained as masked language models (v1, v2, and v3's generator) have the
enhanced mask decoder; v3's discriminator has none. Numbers of the v2 sizes are those of the
releases' config.json as remembered; all others are read from microsoft/DeBERTa.
"""

from __future__ import annotations

import dataclasses

from bert_jax.models.config import (
    Biases,
    Convolution,
    DisentangledPositions,
    Dropout,
    EncoderConfig,
    Heads,
    Norm,
    Normal,
    Pooler,
    VocabularyHead,
)

# (layers, width, heads)
V1_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}
V2_SIZES = {"xlarge": (24, 1536, 24), "xxlarge": (48, 1536, 24)}
V3_SIZES = {
    "xsmall": (12, 384, 6),
    "small": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
_HEADS = Heads(
    vocabulary=VocabularyHead(mask_decoder="enhanced"),
    pooler=Pooler(activation="gelu"),  # ContextPooler, pooler_dropout 0
    detector="token_and_context",  # rtd_task.py: the first token's state is added
)


def _encoder(layers: int, width: int, heads: int) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=128_100,  # SentencePiece of v2 and v3
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        type_vocab_size=0,
        positions=DisentangledPositions(max_length=512, buckets=256, max_distance=512),
        norm=Norm("post", eps=1e-7),
        activation="gelu",
        dropout=Dropout(0.1, 0.1),
        initializer=Normal(0.02),
        heads=_HEADS,
    )


def deberta_v1_encoder(size: str) -> EncoderConfig:
    """Version 1: clipped distances, position maps of their own, no key biases, RoBERTa's BPE."""
    positions = DisentangledPositions(
        max_length=512, buckets=0, max_distance=512, projections="own", norm="none"
    )
    return dataclasses.replace(
        _encoder(*V1_SIZES[size]),
        vocab_size=50265,
        positions=positions,
        biases=Biases(attention="query_value"),
    )


def deberta_v2_encoder(size: str) -> EncoderConfig:
    """Version 2: log buckets, shared maps, a convolution beside the first layer."""
    return dataclasses.replace(
        _encoder(*V2_SIZES[size]), convolution=Convolution(kernel_size=3, activation="gelu")
    )


def deberta_v3_encoder(size: str) -> EncoderConfig:
    """Version 3: the discriminator of replaced-token detection."""
    plain = dataclasses.replace(_HEADS, vocabulary=VocabularyHead())
    return dataclasses.replace(_encoder(*V3_SIZES[size]), heads=plain)


def deberta_v3_generator(size: str) -> EncoderConfig:
    """Version 3's generator: as wide, half as deep."""
    layers, width, heads = V3_SIZES[size]
    return _encoder(layers // 2, width, heads)
