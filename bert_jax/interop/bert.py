"""BERT in the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.interop.keys import Entry, linear, norm, transformer
from bert_jax.models.config import EncoderConfig, LearnedPositions

PREFIX = "bert."
TIED = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
DECODER_BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
# Not part of a masked-LM model: the pooler and the next-sentence head of pre-training checkpoints.
UNUSED = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids")


def positions(config: Mapping[str, Any]) -> LearnedPositions:
    """BERT counts positions from row 0."""
    return LearnedPositions(max_length=config["max_position_embeddings"])


def entries(config: EncoderConfig) -> list[Entry]:
    """Key map of ``BertForMaskedLM``."""
    return [
        *transformer(PREFIX, type_table=config.type_vocab_size > 0),
        *linear("head_dense", "cls.predictions.transform.dense"),
        *norm("head_norm", "cls.predictions.transform.LayerNorm"),
        Entry("head_bias", DECODER_BIASES[0], "vocabulary"),
    ]
