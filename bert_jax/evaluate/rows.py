"""Texts as rows for a model, checked against its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.evaluate.run import LanguageModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM

_MULTIPLE = 32  # lengths are rounded up to it, so that few shapes are compiled


def tokenizer_of(source: LanguageModel) -> Tokenizer:
    """The source's tokenizer; ValueError if it has none, or is no masked language model."""
    if not isinstance(source.model, MaskedLM):
        raise ValueError(
            f"this model is a {type(source.model).__name__}, which predicts no words; import it "
            f"with import_hf(..., model=MaskedLM) if its checkpoint has a vocabulary head."
        )
    if source.tokenizer is None:
        raise ValueError(
            "this model has no tokenizer (it was trained on synthetic data, or no tokenizer files "
            "lie beside it), so it cannot read text."
        )
    return source.tokenizer


def encode_text(text: str, tokenizer: Tokenizer, config: EncoderConfig) -> list[int]:
    """Ids of a text with its special tokens; ValueError if the model is too short for it."""
    ids = list(tokenizer.encode(text).ids)
    longest = config.positions.max_length
    if len(ids) > longest:
        raise ValueError(
            f"the text beginning {text[:40]!r} has {len(ids)} tokens; the model has {longest} "
            f"positions; split it."
        )
    return ids


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int, config: EncoderConfig
) -> tuple[Int[np.ndarray, "rows length"], Int[np.ndarray, "rows length"]]:
    """Rows padded to one length, and their segment ids (1 for tokens, 0 for padding)."""
    longest = max(len(row) for row in rows)
    length = min(-(-longest // _MULTIPLE) * _MULTIPLE, config.positions.max_length)
    ids = np.full((len(rows), length), pad, np.int32)
    segments = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        segments[i, : len(row)] = 1
    return ids, segments
