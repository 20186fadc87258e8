"""pairs: every array of a row against a layout token by token."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.data import pairs as pairs_module
from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pairs import HELD_OUT_SEED, PairRows, Pairs, build_rows, pair_overhead
from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.data.windows import MemorySplit
from bert_jax.flat import flatten

PAD, CLS, SEP, FIRST = 9, 7, 3, 10  # not 0: padding must be written, not left
BERT = SpecialTokens(pad=PAD, unk=5, cls=CLS, sep=SEP, mask=0)
ROBERTA = SpecialTokens(pad=PAD, unk=5, cls=CLS, sep=SEP, mask=0, family="roberta")
KINDS = ("next", "order", "order_or_next", "contiguous")


class ShardedSplit(MemorySplit):
    """A split in three shards, which answers as a store's does: a copy across shards."""

    @property
    def shard_offsets(self):
        documents = self.document_offsets
        return documents[[0, len(documents) // 3, len(documents) // 2, -1]]


def make_split(seed, *, num_documents=30, dtype=np.uint16):
    """Documents whose token ids are their places in the stream, plus FIRST."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 150, num_documents))])
    length = int(offsets[-1])
    flags = (rng.random(length) < 0.6) + 2 * (rng.random(length) < 0.12)
    tokens = np.arange(FIRST, FIRST + length).astype(dtype)
    return ShardedSplit(tokens, flags.astype(np.uint8), offsets.astype(np.int64))


def laid_out(split, special, length, a, b, kind):
    """The arrays of one row, from the places of A and B."""
    second = int(special.family == "bert")
    row = [(CLS, 0, -1), *((FIRST + place, 0, place) for place in a), (SEP, 0, -1)]
    if b:
        row += [(SEP, 0, -1)] * (special.family == "roberta")
        row += [*((FIRST + place, second, place) for place in b), (SEP, second, -1)]
    words, count = [], -1
    for number, (_, _, place) in enumerate(row):
        first = place >= 0 and (row[number - 1][2] < 0 or split.flags[place] & 1)
        count += bool(first)
        words.append(count if place >= 0 else -1)
    rest = length - len(row)
    assert rest >= 0
    return {
        "input_ids": [token for token, _, _ in row] + [PAD] * rest,
        "segment_ids": [1] * len(row) + [0] * rest,
        "position_ids": [*range(len(row))] + [0] * rest,
        "token_type_ids": [kind for _, kind, _ in row] + [0] * rest,
        "word_ids": words + [-1] * rest,
    }


def places(table, row):
    a, n, b, m = (
        int(column[row]) for column in (table.a_start, table.a_len, table.b_start, table.b_len)
    )
    return list(range(a, a + n)), list(range(b, b + m))


@pytest.mark.parametrize("special", [BERT, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length, dtype", [(8, np.uint16), (40, np.uint32), (512, np.uint16)])
@pytest.mark.parametrize("chunk", [1, 1 << 17])
def test_rows_are_laid_out(special, kind, length, dtype, chunk, monkeypatch):
    monkeypatch.setattr(pairs_module, "_CHUNK_POSITIONS", chunk)
    split = make_split(length, dtype=dtype)
    rows = PairRows.build(split, Pairs(length, kind), special, seed=1).copy(2)
    indices = np.random.default_rng(0).integers(0, len(rows), 70)
    found = rows.take(indices, words=True)
    for name, array in found.items():
        assert array.dtype == (np.uint32 if name == "mask_ids" else np.int32)
    for number, index in enumerate(indices.tolist()):
        a, b = places(rows.table, index)
        for name, values in laid_out(split, special, length, a, b, kind).items():
            assert found[name][number].tolist() == values, (name, index)
    assert ("pair_labels" in found) == (kind != "contiguous")
    if kind != "contiguous":
        assert np.array_equal(found["pair_labels"], rows.table.labels[indices])
        assert set(found["pair_labels"].tolist()) == {0, 1}
    without = rows.take(indices)
    assert without.keys() == found.keys() - {"word_ids"}
    assert all(np.array_equal(without[name], found[name]) for name in without)


def test_an_example_of_both_families():
    """The row that the module's docstring shows."""
    flags = np.array([3, 1, 0, 3, 1], np.uint8)
    split = MemorySplit(np.arange(FIRST, FIRST + 5), flags, np.array([0, 5], np.int64))
    for copy in range(20):
        rows = PairRows.build(split, Pairs(9, "order", short_prob=0.0), BERT, seed=0).copy(copy)
        row = {name: array[0].tolist() for name, array in rows.take(np.array([0])).items()}
        if not row["pair_labels"]:
            break
    assert row["input_ids"] == [7, 10, 11, 12, 3, 13, 14, 3, 9]
    assert row["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1, 0]
    rows = PairRows.build(split, Pairs(10, "order", short_prob=0.0), ROBERTA, seed=0).copy(copy)
    row = {name: array[0].tolist() for name, array in rows.take(np.array([0])).items()}
    assert row["input_ids"] == [7, 10, 11, 12, 3, 3, 13, 14, 3, 9]
    assert row["token_type_ids"] == [0] * 10
    assert row["segment_ids"] == [1] * 9 + [0]


def test_masks_are_numbered_over_all_copies():
    """So that a pair that comes again is masked alike, and no two pairs by one number."""
    rows = PairRows.build(make_split(0), Pairs(16, copies=3), BERT, seed=0)
    ids = []
    for copy in range(3):
        of_copy = rows.copy(copy)
        assert len(of_copy) == rows.size(copy)
        ids.append(of_copy.take(np.arange(len(of_copy)))["mask_ids"])
    assert np.array_equal(np.concatenate(ids), np.arange(sum(map(len, ids))))
    fresh = PairRows.build(make_split(0), Pairs(16, masks="fresh"), BERT, seed=0)
    assert "mask_ids" not in fresh.take(np.array([0]))


def test_copies_are_reproducible_and_differ():
    rows = PairRows.build(make_split(0), Pairs(32), BERT, seed=3)
    other = PairRows.build(make_split(0), Pairs(32), BERT, seed=3)
    index = np.arange(20)
    for copy in (4, 0, 9, 4):
        again = other.copy(copy).copy(0).copy(copy)
        for name, array in rows.copy(copy).take(index).items():
            assert np.array_equal(again.take(index)[name], array)
    assert rows.copy(0) is rows
    ids = [rows.copy(copy).take(index)["input_ids"].tolist() for copy in range(10)]
    assert all(x != y for x, y in itertools.combinations(ids, 2))
    assert (
        PairRows.build(make_split(0), Pairs(32), BERT, seed=4).take(index)["input_ids"].tolist()
        != ids[0]
    )


@pytest.mark.parametrize("special", [BERT, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize("kind", KINDS)
def test_efficiency_is_what_is_not_padding(special, kind):
    rows = PairRows.build(make_split(5), Pairs(64, kind), special, seed=0)
    taken = rows.take(np.arange(len(rows)), words=True)
    assert rows.efficiency == pytest.approx(taken["segment_ids"].mean(), abs=1e-12)  # rounding
    assert rows.token_efficiency == pytest.approx((taken["word_ids"] >= 0).mean(), abs=1e-12)
    assert rows.efficiency > 0.5


def test_summary_counts():
    flags = np.zeros(60, np.uint8)
    flags[[0, 20, 30, 40, 50]] = 2
    split = MemorySplit(np.arange(FIRST, FIRST + 60), flags, np.array([0, 20, 60], np.int64))
    rows = PairRows.build(split, Pairs(35, "order", short_prob=0.0, copies=4), BERT, seed=0)
    swapped = 100 * int(rows.table.labels.sum())
    assert rows.summary() == (
        f"1 pairs of 35 (order, 1 of 4 copies), {swapped}.0 % swapped, 100.0 % full (91.4 % corpus "
        f"tokens, 32.0 a pair); 8 tokens truncated; 1 of 2 documents and 20 tokens skipped, as one "
        f"sentence is no pair"
    )
    rows = PairRows.build(split, Pairs(512, "next", copies=None, masks="fresh"), BERT, seed=0)
    assert "(next, new every epoch)" in rows.summary() and "% random" in rows.summary()
    assert "skipped" not in rows.summary() and "truncated" not in rows.summary()
    rows = PairRows.build(split, Pairs(512, "contiguous"), BERT, seed=0)
    assert "(contiguous, 1 of 10 copies), 100.0 % with one segment, " in rows.summary()


def test_overhead_is_the_familys():
    assert (pair_overhead(BERT), pair_overhead(ROBERTA)) == (3, 4)


def test_rows_of_either_packing():
    split = make_split(0)
    packed = build_rows(split, Packing(16), BERT, seed=5)
    assert isinstance(packed, Rows) and packed.copies == 1
    assert packed.copy(3) is packed and packed.size(3) == len(packed)
    built = build_rows(split, Pairs(16), BERT, seed=5)
    assert isinstance(built, PairRows) and built.copies == 10
    same = PairRows.build(split, Pairs(16), BERT, seed=5)
    assert np.array_equal(built.table.a_start, same.table.a_start)
    assert HELD_OUT_SEED == 0  # another one changes every held-out score of pairs


def test_no_rows_are_rows():
    rows = PairRows.build(make_split(0), Pairs(16, "next"), BERT, seed=0)
    empty = rows.take(np.zeros(0, np.int64), words=True)
    assert {name: array.shape for name, array in empty.items()} == {
        **dict.fromkeys(
            ("input_ids", "segment_ids", "position_ids", "token_type_ids", "word_ids"), (0, 16)
        ),
        "pair_labels": (0,),
        "mask_ids": (0,),
    }
    nothing = MemorySplit(np.zeros(0, np.uint16), np.zeros(0, np.uint8), np.array([0], np.int64))
    rows = PairRows.build(nothing, Pairs(16), BERT, seed=0)
    assert len(rows) == 0 and rows.efficiency == 0 and rows.summary().startswith("0 pairs of 16")


def test_pairs_is_flat():
    assert flatten(Pairs()) == {
        "seq_length": 128,
        "kind": "next",
        "short_prob": 0.1,
        "single_prob": 0.1,
        "copies": 10,
        "masks": "fixed",
    }


@pytest.mark.parametrize(
    "values, words",
    [
        ({"seq_length": 7}, "at least 8 .* got 7"),
        ({"seq_length": 2**20}, "below 2\\*\\*20; got 1048576"),
        ({"kind": "previous"}, "kind .* got 'previous'"),
        ({"masks": "static"}, "masks .* got 'static'"),
        ({"short_prob": 1.5}, "short_prob .* got 1.5"),
        ({"single_prob": -0.1}, "single_prob .* got -0.1"),
        ({"copies": 0}, "copies must be at least 1.* got 0"),
        ({"copies": None}, "set masks to 'fresh'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refuses(values, words):
    with pytest.raises(ValueError, match=words):
        Pairs(**values)


@pytest.mark.parametrize("index", [-1, 10**6])
def test_refuses_rows_that_are_not_there(index):
    rows = PairRows.build(make_split(0), Pairs(16), BERT, seed=0)
    with pytest.raises(ValueError, match=f"Row numbers .* got {index} to {index}"):
        rows.take(np.array([index]))


def test_refuses_bad_seeds():
    with pytest.raises(ValueError, match=r"seed .* got -1"):
        PairRows.build(make_split(0), Pairs(16), BERT, seed=-1)
