"""NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): BERT with rotary positions and SwiGLU."""

from __future__ import annotations

from bert_jax.models.config import (
    Biases,
    Dropout,
    EncoderConfig,
    Heads,
    Norm,
    RotaryPositions,
    VocabularyHead,
)


def nomic_bert_encoder() -> EncoderConfig:
    """NomicBERT for 2,048 tokens; numbers from nomic-ai/contrastors, configs/train/mlm.yaml."""
    return EncoderConfig(
        vocab_size=30522,  # padded to a multiple of 64 there, of 128 here
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        intermediate_size=3072,
        type_vocab_size=2,
        positions=RotaryPositions(max_length=2048),
        norm=Norm("post", eps=1e-12),
        activation="silu",
        mlp="gated",
        biases=Biases("none", "none"),
        dropout=Dropout(0.0, 0.0),
        heads=Heads(vocabulary=VocabularyHead(bias=False)),
    )
