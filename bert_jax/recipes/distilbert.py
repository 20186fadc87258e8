"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): half of BERT's layers, no types, no pooler."""

from __future__ import annotations

from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    Heads,
    LearnedPositions,
    Norm,
    Normal,
    Pooler,
)


def distilbert_encoder() -> EncoderConfig:
    """DistilBERT-base, uncased.

    Its position table starts as sinusoids and stays so while it is distilled
    (research_projects/distillation/train.py); a distillation freezes it.
    """
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=768,
        num_layers=6,
        num_heads=12,
        intermediate_size=3072,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),
        activation="gelu",
        dropout=Dropout(0.1, 0.1, attention_out=0.0),  # modeling_distilbert.py: none after out_lin
        initializer=Normal(0.02),
        heads=Heads(pooler=Pooler(activation="relu", output_dropout=0.2)),  # seq_classif_dropout
    )
