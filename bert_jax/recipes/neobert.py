"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587): deep and narrow, LLaMA's layer, both ways."""

from __future__ import annotations

from bert_jax.models.config import (
    Biases,
    Dropout,
    EncoderConfig,
    Heads,
    Norm,
    RotaryPositions,
    Uniform,
    VocabularyHead,
)


def neobert_encoder() -> EncoderConfig:
    """NeoBERT, 28 layers of 768; numbers from chandar-lab/NeoBERT, src/neobert/model and conf."""
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=768,
        num_layers=28,
        num_heads=12,
        intermediate_size=2048,  # two thirds of 3,072
        positions=RotaryPositions(max_length=4096),
        norm=Norm("pre", eps=1e-5, kind="rms"),
        activation="silu",
        mlp="gated",
        biases=Biases("none", "none"),
        dropout=Dropout(0.0, 0.0),
        initializer=Uniform(0.02),
        heads=Heads(vocabulary=VocabularyHead(transform="none", decoder="untied")),
    )
