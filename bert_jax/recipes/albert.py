"""ALBERT (Lan et al. 2020, arXiv:1909.11942): one layer's parameters for all, narrow embeddings."""

from __future__ import annotations

from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    LayerSharing,
    LearnedPositions,
    Norm,
    TruncatedNormal,
)

VOCAB_SIZE = 30_000  # SentencePiece unigram; README of google-research/albert
# (layers, width, heads). Layers and widths: paper, table 1; heads: config.json of the releases.
SIZES = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}


def albert_encoder(size: str, version: int) -> EncoderConfig:
    """ALBERT version 1 or 2; they differ in dropout (and in data and steps)."""
    layers, width, heads = SIZES[size]
    # README: "no dropout" in all of version 2, and in xxlarge.
    rate = 0.1 if version == 1 and size != "xxlarge" else 0.0
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        embedding_size=128,  # paper, section 3.2
        type_vocab_size=2,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),  # modeling.py through tf.contrib
        activation="gelu_tanh",  # modeling.py, gelu()
        sharing=LayerSharing(groups=1, inner=1),
        dropout=Dropout(hidden=rate, attention=rate),
        initializer=TruncatedNormal(0.02),
    )
