"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): discriminators and their generators."""

from __future__ import annotations

import dataclasses

from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    Heads,
    LearnedPositions,
    Norm,
    Pooler,
    TruncatedNormal,
    VocabularyHead,
)

# (layers, width, heads, embedding width, generator's share of the width); configure_pretraining.py
# and paper, table 6. The released small++ has a generator of full width.
SIZES = {
    "small": (12, 256, 4, 128, 1 / 4),
    "base": (12, 768, 12, 768, 1 / 3),
    "large": (24, 1024, 16, 1024, 1 / 4),
}


def electra_encoder(size: str) -> EncoderConfig:
    """The discriminator, which is what is fine-tuned."""
    layers, width, heads, embedding, _ = SIZES[size]
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        embedding_size=None if embedding == width else embedding,
        type_vocab_size=2,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),
        activation="gelu",  # modeling.py, gelu(): erf
        dropout=Dropout(0.1, 0.1),
        initializer=TruncatedNormal(0.02),
        heads=Heads(
            # The generator's head has gelu whatever the encoder has.
            vocabulary=VocabularyHead(activation="gelu"),
            pooler=Pooler(activation="gelu", input_dropout=0.1, output_dropout=0.1),
        ),
    )


def electra_generator(size: str) -> EncoderConfig:
    """The generator: as deep, narrower, with the discriminator's embedding width."""
    discriminator = electra_encoder(size)
    width = round(discriminator.hidden_size * SIZES[size][4])
    return dataclasses.replace(
        discriminator,
        hidden_size=width,
        num_heads=max(1, width // 64),  # configure_pretraining.py: heads of 64
        intermediate_size=4 * width,
        embedding_size=discriminator.table_size,
    )
