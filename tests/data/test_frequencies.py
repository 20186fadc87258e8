"""Frequencies of tokens, block by block."""

import numpy as np

from bert_jax.data import frequencies
from bert_jax.data.frequencies import token_counts, unigram_counts
from bert_jax.data.windows import MemorySplit


def test_blocks_add():
    blocks = [np.asarray([0, 1, 1], np.uint16), np.asarray([3], np.uint16)]
    assert unigram_counts(blocks, 5).tolist() == [1, 2, 0, 1, 0]


def test_every_token_of_a_split_counts_once(monkeypatch):
    monkeypatch.setattr(frequencies, "_BLOCK", 3)  # the last block is cut short
    tokens = np.asarray([2, 2, 4, 0, 2, 1, 4], np.uint32)
    split = MemorySplit(tokens, np.zeros(7, np.uint8), np.asarray([0, 5, 7]))
    assert token_counts(split, 6).tolist() == [1, 1, 3, 0, 2, 0]
