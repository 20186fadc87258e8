"""How often each token occurs in the training text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int

from bert_jax.data.windows import TokenSource

_BLOCK = 1 << 22  # tokens read at a time


def token_counts(source: TokenSource, vocab_size: int) -> Int[np.ndarray, "vocab"]:
    """Frequency of every id in a split of a store."""
    return unigram_counts(_blocks(source), vocab_size)


def unigram_counts(tokens: Iterable[np.ndarray], vocab_size: int) -> Int[np.ndarray, "vocab"]:
    """Frequency of every id in blocks of tokens."""
    counts = np.zeros(vocab_size, np.int64)
    for block in tokens:
        counts += np.bincount(block, minlength=vocab_size)
    return counts


def _blocks(source: TokenSource) -> Iterator[np.ndarray]:
    for start in range(0, source.num_tokens, _BLOCK):
        yield source.read(start, min(start + _BLOCK, source.num_tokens))
