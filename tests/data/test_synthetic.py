"""synthetic: rows that look like text to a trainer, without a store."""

import numpy as np
import pytest

from bert_jax.data.packing import Packing
from bert_jax.data.pairs import PairRows, Pairs
from bert_jax.data.pipeline import Batches
from bert_jax.data.synthetic import SyntheticRows, synthetic_rows, synthetic_split
from bert_jax.data.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.mark.parametrize("length", [32, 128, 512])
@pytest.mark.parametrize("mode, attend", [("fill", "document"), ("complete", "row")])
def test_several_documents_a_row(length, mode, attend):
    rows = SyntheticRows(1000, SPECIAL, Packing(length, mode, attend), 0)
    assert 2 < rows.num_segments / len(rows) < 6
    batch = Batches(rows, batch_size=64, seed=0, words=True).batch(3)
    assert batch["input_ids"].shape == (64, length)
    inside = batch["word_ids"] >= 0
    assert batch["input_ids"][inside].min() >= 5 and batch["input_ids"].max() < 1000
    assert set(np.unique(batch["input_ids"][~inside])) <= {0, 2, 3}


@pytest.mark.parametrize("kind", ["next", "order", "order_or_next", "contiguous"])
def test_pairs_without_a_corpus(kind):
    rows = synthetic_rows(1000, SPECIAL, Pairs(64, kind), 3)
    assert isinstance(rows, PairRows)
    table = rows.table
    assert len(rows) > 5_000 and rows.efficiency > 0.8
    if kind != "contiguous":
        assert 0.4 < table.labels.mean() < 0.75  # half, and those of chunks of one sentence
    batch = Batches(rows, batch_size=16, seed=0, words=True).batch(3)
    assert batch["input_ids"].shape == (16, 64) and batch["input_ids"].max() < 1000
    same = synthetic_rows(1000, SPECIAL, Pairs(64, kind), 3)
    index = np.arange(50)
    assert np.array_equal(same.take(index)["input_ids"], rows.take(index)["input_ids"])


def test_packing_decides_which_rows():
    packed = synthetic_rows(1000, SPECIAL, Packing(32), 0)
    expected = SyntheticRows(1000, SPECIAL, Packing(32), 0)
    index = np.arange(9)
    assert np.array_equal(packed.take(index)["input_ids"], expected.take(index)["input_ids"])


def test_tokens_follow_zipf_and_half_are_predictable():
    split = synthetic_split(1000, SPECIAL, mean_document=40, seed=0)
    first = split.tokens[::2]
    counts = np.sort(np.bincount(first, minlength=1000))[::-1]
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.1)
    follower = {}
    for token, following in zip(
        first[:5000].tolist(), split.tokens[1:10_000:2].tolist(), strict=True
    ):
        assert follower.setdefault(token, following) == following
    assert len(set(follower.values())) == len(follower)
    lengths = np.diff(split.document_offsets)
    assert lengths.min() >= 1 and lengths.mean() == pytest.approx(40, rel=0.05)


def test_seed_decides():
    def tokens(seed):
        return synthetic_split(500, SPECIAL, mean_document=9, seed=seed).tokens

    assert np.array_equal(tokens(1), tokens(1))
    assert not np.array_equal(tokens(1), tokens(2))


def test_special_tokens_anywhere_and_large_vocabularies():
    special = SpecialTokens(pad=9, unk=70_000, cls=7, sep=3, mask=8)
    tokens = synthetic_split(100_000, special, mean_document=50, seed=0).tokens
    assert not np.isin(tokens, special.ids).any()
    assert 65_535 < tokens.max() < 100_000


def test_refuses_a_vocabulary_of_specials():
    with pytest.raises(ValueError, match="all 5 of the vocabulary"):
        SyntheticRows(5, SPECIAL, Packing(8), 0)
