"""packing: every array of every mode against a row-by-row, token-by-token reference."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from bert_jax.data import packing as packing_module
from bert_jax.data import row_table
from bert_jax.data.packing import Packing, Rows
from bert_jax.data.prepare import prepare
from bert_jax.data.tokenizer import SpecialTokens, Tokenizer
from bert_jax.data.windows import MemorySplit

MODES = ("fill", "complete", "document", "truncate")
ATTENDS = ("document", "row")
PAD, CLS, SEP = 9, 7, 3  # not 0: padding must be written, not left
SPECIAL = SpecialTokens(pad=PAD, unk=5, cls=CLS, sep=SEP, mask=0)
FIRST_ID = 10


class ShardedSplit(MemorySplit):
    """A split in several shards, which answers as a store's does: a copy across shards."""

    shards = ()

    @property
    def shard_offsets(self):
        return np.array([0, *self.shards, self.num_tokens], np.int64)


def make_split(seed, *, num_documents, longest, num_shards=1, dtype=np.uint16):
    """Random documents whose token ids are their places in the stream, plus FIRST_ID."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, longest + 1, num_documents)
    counts[rng.random(num_documents) < 0.3] = rng.integers(0, 4)  # many short or empty ones
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    num_tokens = int(offsets[-1])
    # Sentence and word marks are independent of the documents: a document may lack the first mark.
    flags = (rng.random(num_tokens) < 0.6) + 2 * (rng.random(num_tokens) < rng.choice([0.05, 0.3]))
    tokens = np.arange(FIRST_ID, FIRST_ID + num_tokens).astype(dtype)
    split = ShardedSplit(tokens, flags.astype(np.uint8), offsets)
    inner = np.unique(offsets[(offsets > 0) & (offsets < num_tokens)])
    cuts = rng.choice(inner, min(num_shards - 1, len(inner)), replace=False) if len(inner) else []
    object.__setattr__(split, "shards", tuple(sorted(int(cut) for cut in cuts)))
    return split


@dataclass
class Piece:
    """A segment: tokens of one document by their places in the stream."""

    document: int
    places: list[int]


def reference_rows(split, packing) -> list[list[Piece]]:
    """Cuts the documents into rows the slow way, one decision after the other."""
    length = packing.seq_length
    row_cost, piece_cost = (1, 1) if packing.attend == "row" else (0, 2)
    shortest = 1 if packing.attend == "row" else min(8, length - 2)
    bounds = split.document_offsets.tolist()
    documents = [list(range(a, b)) for a, b in itertools.pairwise(bounds) if b > a]
    rows: list[list[Piece]] = []

    def room():
        return length - row_cost - sum(len(p.places) + piece_cost for p in rows[-1]) - piece_cost

    if packing.mode == "fill":
        rows.append([])
        for number, rest in enumerate(documents):
            while rest:
                if len(rest) <= room() or room() >= shortest:
                    part, rest = rest[: room()], rest[room() :]
                    rows[-1].append(Piece(number, part))
                else:
                    rows.append([])
    elif packing.mode == "complete":
        rows.append([])
        for number, places in enumerate(documents):
            for sentence in sentences_of(split, places):
                for part in chunks(sentence, length - 2):
                    goes_on = bool(rows[-1]) and rows[-1][-1].document == number
                    if len(part) > room() + (piece_cost if goes_on else 0):
                        rows.append([])
                        goes_on = False
                    if goes_on:
                        rows[-1][-1].places.extend(part)
                    else:
                        rows[-1].append(Piece(number, list(part)))
    else:
        for number, places in enumerate(documents):
            parts = chunks(places, length - 2)
            rows += [
                [Piece(number, p)] for p in (parts if packing.mode == "document" else parts[:1])
            ]
    return [row for row in rows if row]


def sentences_of(split, places):
    sentences = []
    for place in places:
        if place == places[0] or split.flags[place] & 2:
            sentences.append([])
        sentences[-1].append(place)
    return sentences


def chunks(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]


def reference_arrays(split, packing, row):
    """One row's arrays, position by position."""
    ids, segments, positions, words = [], [], [], []

    def put(token, segment, word):
        ids.append(token)
        segments.append(segment)
        words.append(word)

    word = -1
    for number, piece in enumerate(row, start=1):
        if packing.attend == "document":
            positions += range(len(piece.places) + 2)
        segment = number if packing.attend == "document" else 1
        if number == 1 or packing.attend == "document":
            put(CLS, segment, -1)
        for index, place in enumerate(piece.places):
            word += index == 0 or bool(split.flags[place] & 1)
            put(int(split.tokens[place]), segment, word)
        put(SEP, segment, -1)
    if packing.attend == "row":
        positions = list(range(len(ids)))
    padding = packing.seq_length - len(ids)
    assert padding >= 0 and len(positions) == len(ids)
    return {
        "input_ids": ids + [PAD] * padding,
        "segment_ids": segments + [0] * padding,
        "position_ids": positions + [0] * padding,
        "word_ids": words + [-1] * padding,
    }


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("blocks", ["small", "default"])
def test_rows_equal_the_reference(mode, attend, blocks, monkeypatch):
    if blocks == "small":  # every seam between blocks and chunks is met
        monkeypatch.setattr(row_table, "_BLOCK_TOKENS", 1)
        monkeypatch.setattr(packing_module, "_CHUNK_POSITIONS", 40)
    for seed in range(24):
        length = (3, 4, 5, 8, 11, 13, 24, 64)[seed % 8]
        split = make_split(
            seed, num_documents=1 + 2 * seed, longest=(3, 10, 90)[seed % 3], num_shards=1 + seed % 5
        )
        packing = Packing(length, mode, attend)
        rows = Rows.build(split, packing, SPECIAL)
        expected = [reference_arrays(split, packing, row) for row in reference_rows(split, packing)]
        assert len(rows) == len(expected)
        taken = rows.take(np.arange(len(rows)), words=True)
        for name, array in taken.items():
            assert array.dtype == np.int32 and array.shape == (len(rows), length)
            assert array.tolist() == [row[name] for row in expected], (name, seed)


def corpus_tokens(taken):
    ids = taken["input_ids"]
    return ids[ids >= FIRST_ID]


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [16, 128])
def test_every_token_once_and_in_order(mode, attend, length):
    split = make_split(1, num_documents=3000, longest=2 * length, num_shards=7, dtype=np.uint32)
    rows = Rows.build(split, Packing(length, mode, attend), SPECIAL)
    tokens = corpus_tokens(rows.take(np.arange(len(rows))))
    if mode == "truncate":
        counts = np.diff(split.document_offsets)
        assert rows.dropped == np.maximum(counts - (length - 2), 0).sum() > 0
        assert len(tokens) == split.num_tokens - rows.dropped
        assert len(rows) == np.count_nonzero(counts)
        assert np.all(np.diff(tokens) > 0)
    else:
        assert rows.dropped == 0
        assert np.array_equal(tokens, split.tokens)


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("mode", MODES)
def test_what_each_row_promises(mode, attend):
    """Properties that hold for any right packing, read off the arrays alone."""
    split = make_split(2, num_documents=500, longest=100, num_shards=3)
    taken = (rows := Rows.build(split, Packing(32, mode, attend), SPECIAL)).take(
        np.arange(len(rows)), words=True
    )
    ids, segments, positions = (taken[k] for k in ("input_ids", "segment_ids", "position_ids"))
    assert np.array_equal(ids == PAD, segments == 0)
    assert np.all(np.diff((segments == 0).astype(int), axis=1) >= 0)  # padding only at the end
    assert np.all(positions[segments == 0] == 0)
    assert np.all((taken["word_ids"] == -1) == (ids < FIRST_ID))
    for row_ids, row_segments, row_positions in zip(ids, segments, positions, strict=True):
        for segment in range(1, row_segments.max() + 1):
            inside = row_ids[row_segments == segment]
            assert inside[0] == CLS and inside[-1] == SEP and len(inside) >= 3
            assert row_positions[row_segments == segment].tolist() == list(range(len(inside)))


def test_fill_never_leaves_a_short_cut_and_row_attention_is_full():
    split = make_split(3, num_documents=800, longest=200)
    apart = Rows.build(split, Packing(64, "fill", "document"), SPECIAL)
    # A segment of fewer than 8 tokens is a whole document's end, never a part before a cut.
    segments = list(itertools.chain(*reference_rows(split, apart.packing)))
    ends = set(split.document_offsets.tolist())
    cut = [len(s.places) for s in segments if s.places[-1] + 1 not in ends]
    assert cut and min(cut) == 8
    together = Rows.build(split, Packing(64, "fill", "row"), SPECIAL)
    # With one token enough, at most one position (of a separator alone) is left in each row.
    padding = (together.take(np.arange(len(together) - 1))["segment_ids"] == 0).sum(axis=1)
    assert padding.max() <= 1


def test_complete_cuts_only_sentences_longer_than_a_row():
    split = make_split(4, num_documents=300, longest=150)
    rows = Rows.build(split, Packing(32, "complete", "row"), SPECIAL)
    starts = set(rows.table.starts.tolist())
    sentence_bounds = [
        (s[0], s[-1] + 1)
        for a, b in itertools.pairwise(split.document_offsets.tolist())
        if b > a
        for s in sentences_of(split, list(range(a, b)))
    ]
    inside = [
        (start - a, b - a)
        for a, b in sentence_bounds
        for start in range(a + 1, b)
        if start in starts
    ]
    assert inside and all(size > 30 and offset % 30 == 0 for offset, size in inside)


def test_take_in_any_order_equals_take_in_order():
    split = make_split(5, num_documents=400, longest=90, num_shards=4)
    rows = Rows.build(split, Packing(24), SPECIAL)
    whole = rows.take(np.arange(len(rows)), words=True)
    indices = np.random.default_rng(0).integers(0, len(rows), 700)  # with repeats
    taken = rows.take(indices, words=True)
    for name, array in whole.items():
        assert np.array_equal(taken[name], array[indices])
    assert set(rows.take(indices[:3])) == {"input_ids", "segment_ids", "position_ids"}
    assert rows.take(np.zeros(0, np.int64))["input_ids"].shape == (0, 24)


def test_a_word_that_a_row_cuts_begins_again():
    split = MemorySplit(np.arange(10, 16), np.array([3, 0, 0, 1, 0, 0], np.uint8), np.array([0, 6]))
    taken = Rows.build(split, Packing(4), SPECIAL).take(np.arange(3), words=True)
    assert taken["word_ids"].tolist() == [[-1, 0, 0, -1], [-1, 0, 1, -1], [-1, 0, 0, -1]]


def test_large_token_ids_survive():
    split = MemorySplit(
        np.array([70_000, 250_000], np.uint32), np.zeros(2, np.uint8), np.array([0, 2])
    )
    taken = Rows.build(split, Packing(4), SPECIAL).take(np.array([0]))
    assert taken["input_ids"].tolist() == [[CLS, 70_000, 250_000, SEP]]


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("mode", MODES)
def test_efficiency_counts_positions(mode, attend):
    split = make_split(6, num_documents=200, longest=100)
    rows = Rows.build(split, Packing(32, mode, attend), SPECIAL)
    taken = rows.take(np.arange(len(rows)))
    assert rows.efficiency == pytest.approx(np.mean(taken["segment_ids"] > 0), abs=1e-12)
    assert rows.token_efficiency == pytest.approx(
        np.mean(taken["input_ids"] >= FIRST_ID), abs=1e-12
    )
    assert rows.num_tokens == np.sum(taken["input_ids"] >= FIRST_ID)
    line = rows.summary()
    assert line.startswith(f"{len(rows):,} rows of 32 ({mode}, attend {attend})")
    assert f"{100 * rows.efficiency:.1f} % full" in line
    assert ("dropped" in line) == (mode == "truncate")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_no_tokens_no_rows(mode, counts):
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    split = MemorySplit(np.zeros(0, np.uint16), np.zeros(0, np.uint8), offsets)
    rows = Rows.build(split, Packing(8, mode), SPECIAL)
    assert len(rows) == 0 and rows.efficiency == 0 and rows.dropped == 0
    assert rows.summary().startswith("0 rows")
    assert rows.take(np.zeros(0, np.int64))["input_ids"].shape == (0, 8)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The bundled corpus as a store of ten shards, with a vocabulary of 4096."""
    path = Path(packing_module.__file__).parent / "corpora/state_of_the_union.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 0, None, 5)]
    tokenizer = Tokenizer.train(texts=texts, kind="wordpiece", vocab_size=4096)
    out = tmp_path_factory.mktemp("bundled") / "store"
    return prepare(
        path, out, tokenizer=tokenizer, workers=1, shard_bytes=1 << 20, say=lambda line: None
    )


@pytest.mark.parametrize(
    "length, mode, least, most",
    [
        (128, "fill", 0.95, 1.0),
        (512, "fill", 0.95, 1.0),
        # What whole sentences cost with this vocabulary: 81 and 94 % are full.
        (128, "complete", 0.80, 0.82),
        (512, "complete", 0.93, 0.95),
    ],
)
@pytest.mark.parametrize("attend", ATTENDS)
def test_efficiency_on_the_bundled_corpus(bundled, length, mode, least, most, attend):
    split, special = bundled.split("train"), bundled.tokenizer().special
    rows = Rows.build(split, Packing(length, mode, attend), special)
    assert least < rows.efficiency <= most
    assert rows.num_tokens == split.num_tokens


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("mode", ["fill", "complete", "document"])
def test_a_store_gives_the_rows_of_its_tokens(bundled, mode, attend):
    """Read from memory maps of several shards, or from one array: the same."""
    split, special = bundled.split("train"), bundled.tokenizer().special
    assert len(split.shard_offsets) > 5
    copy = MemorySplit(
        split.read(0, split.num_tokens),
        split.read_flags(0, split.num_tokens),
        split.document_offsets,
    )
    rows, expected = (Rows.build(s, Packing(128, mode, attend), special) for s in (split, copy))
    assert len(rows) == len(expected)
    taken = rows.take(np.arange(len(rows)), words=True)
    for name, array in expected.take(np.arange(len(rows)), words=True).items():
        assert np.array_equal(taken[name], array)
    corpus = taken["input_ids"][taken["word_ids"] >= 0]
    assert np.array_equal(corpus, copy.tokens)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"seq_length": 2}, "at least 3 .* got 2"),
        ({"seq_length": 2**20}, r"below 2\*\*20; got 1048576"),
        ({"mode": "stuff"}, "got 'stuff'"),
        ({"attend": "all"}, "got 'all'"),
    ],
)
def test_packing_refuses(arguments, words, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(ValueError, match=words):
        Packing(**arguments)


@pytest.mark.parametrize("indices", [[-1], [0, 10_000]])
def test_take_refuses_rows_that_are_not_there(indices):
    rows = Rows.build(make_split(7, num_documents=9, longest=9), Packing(8), SPECIAL)
    with pytest.raises(ValueError, match=rf"\[0, {len(rows)}\)"):
        rows.take(np.array(indices))
