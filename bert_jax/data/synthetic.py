"""Rows without a corpus: for smoke tests, compile checks and throughput measurements."""

from __future__ import annotations

import numpy as np

from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pairs import PairRows, Pairs
from bert_jax.data.row_table import build_table
from bert_jax.data.shards import SENTENCE_START, WORD_START
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.data.windows import MemorySplit

_NUM_TOKENS = 1 << 20
_TOKENS_PER_WORD = 1.4  # usual of a vocabulary of 30,000 on English
_TOKENS_PER_SENTENCE = 25
_DOCUMENTS_PER_ROW = 3
_PAIRS_PER_DOCUMENT = 8


class SyntheticRows(Rows):
    """Rows of a synthetic split, with about three documents in the length of a row.

    Args:
        vocab_size: Size of the vocabulary.
        special: Its special tokens.
        packing: Row length and mode.
        seed: Another one gives other tokens.
    """

    def __init__(self, vocab_size: int, special: SpecialTokens, packing: Packing, seed: int):
        mean = max(2.0, packing.seq_length / _DOCUMENTS_PER_ROW)
        split = synthetic_split(vocab_size, special, mean_document=mean, seed=seed)
        super().__init__(split, packing, special, build_table(split, packing))


def synthetic_rows(
    vocab_size: int, special: SpecialTokens, packing: Packing | Pairs, seed: int
) -> Rows | PairRows:
    """Rows of a synthetic split, packed or of pairs; these with about eight pairs a document.

    Args:
        vocab_size: Size of the vocabulary.
        special: Its special tokens.
        packing: Row length and mode, or kind of pairs.
        seed: Another one gives other tokens, and other pairs.
    """
    if isinstance(packing, Packing):
        return SyntheticRows(vocab_size, special, packing, seed)
    mean = float(packing.seq_length * _PAIRS_PER_DOCUMENT)
    split = synthetic_split(vocab_size, special, mean_document=mean, seed=seed)
    return PairRows.build(split, packing, special, seed=seed)


def synthetic_split(
    vocab_size: int, special: SpecialTokens, *, mean_document: float, seed: int
) -> MemorySplit:
    """Draws a million tokens that look a little like text.

    Their frequencies follow Zipf's law, and every second one is determined by the one before, so
    that a model has something to learn. Words, sentences and documents have geometric lengths.

    Args:
        vocab_size: Size of the vocabulary.
        special: Its special tokens, none of which is drawn.
        mean_document: Mean tokens of a document, at least 1.
        seed: Another one gives another stream.

    Raises:
        ValueError: If the vocabulary has no tokens but special ones.
    """
    usable = np.setdiff1d(np.arange(vocab_size), special.ids)
    if not len(usable):
        raise ValueError(
            f"Synthetic data needs a token that is not special, but all {vocab_size} of the "
            f"vocabulary are: raise vocab_size."
        )
    rng = np.random.default_rng(seed)
    cumulative = np.cumsum(1 / np.arange(1, len(usable) + 1))
    ranks = np.searchsorted(cumulative, rng.random(_NUM_TOKENS) * cumulative[-1], side="right")
    ranks = np.minimum(ranks, len(usable) - 1)  # the product may round up to the last sum
    ranks[1::2] = rng.permutation(len(usable))[ranks[::2]]
    # Geometric gaps: each token begins a document, sentence or word with a fixed probability.
    draws = rng.random((3, _NUM_TOKENS))
    documents = draws[0] < 1 / mean_document
    documents[0] = True
    sentences = documents | (draws[1] < 1 / _TOKENS_PER_SENTENCE)
    words = sentences | (draws[2] < 1 / _TOKENS_PER_WORD)
    return MemorySplit(
        tokens=usable[ranks].astype(np.uint32),
        flags=(words * WORD_START + sentences * SENTENCE_START).astype(np.uint8),
        document_offsets=np.append(np.flatnonzero(documents), _NUM_TOKENS).astype(np.int64),
    )
