"""RoBERTa (and XLM-RoBERTa, which differs by its vocabulary) in the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.interop.keys import Entry, linear, norm, transformer
from bert_jax.models.config import EncoderConfig, LearnedPositions

PREFIX = "roberta."
TIED = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight"}
DECODER_BIASES = ("lm_head.bias", "lm_head.decoder.bias")
UNUSED = ("roberta.pooler.", "roberta.embeddings.position_ids")


def positions(config: Mapping[str, Any]) -> LearnedPositions:
    """Row ``pad + 1`` is position 0, so of the table's rows ``pad + 1`` are not usable."""
    offset = config["pad_token_id"] + 1
    return LearnedPositions(max_length=config["max_position_embeddings"] - offset, offset=offset)


def entries(config: EncoderConfig) -> list[Entry]:
    """Key map of ``RobertaForMaskedLM``."""
    return [
        *transformer(PREFIX, type_table=config.type_vocab_size > 0),
        *linear("head_dense", "lm_head.dense"),
        *norm("head_norm", "lm_head.layer_norm"),
        Entry("head_bias", DECODER_BIASES[0], "vocabulary"),
    ]
