"""pair_table: every pair of every kind against the scripts' control flow, sentence by sentence."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from bert_jax.data import pair_table
from bert_jax.data.draws import Draws
from bert_jax.data.pair_table import (
    PairTables,
    Sentences,
    Stream,
    build_pairs,
    truncate,
)
from bert_jax.data.pairs import Pairs
from bert_jax.data.windows import MemorySplit

KINDS = ("next", "order", "order_or_next", "contiguous")


def make_split(seed, *, num_documents, longest=30, sentence=9, shortest=0):
    """Documents of 0 to ``longest`` sentences of 1 to ``2 * sentence`` tokens, some much longer."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(shortest, longest + 1, num_documents)
    counts[rng.random(num_documents) < 0.2] = max(1, shortest)
    sizes = rng.integers(1, 2 * sentence, counts.sum())
    sizes[rng.random(len(sizes)) < 0.03] *= 20
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    flags = np.ones(starts[-1], np.uint8)
    flags[starts[:-1]] |= 2
    offsets = starts[np.concatenate([[0], np.cumsum(counts)])]
    return MemorySplit(np.arange(starts[-1], dtype=np.uint32), flags, offsets)


def documents_of(split):
    """Lists of documents, of sentences, of places in the stream."""
    documents = []
    for begin, end in itertools.pairwise(split.document_offsets.tolist()):
        sentences = []
        for place in range(begin, end):
            if place == begin or split.flags[place] & 2:
                sentences.append([])
            sentences[-1].append(place)
        if sentences:
            documents.append(sentences)
    return documents


class Addressed:
    """Random numbers of the code under test, one at a time."""

    def __init__(self, seed, copy, limit):
        self._draws = Draws(seed, copy)
        self._index = np.arange(limit)
        self._uniform = [self._draws.uniform(s, self._index).tolist() for s in Stream]
        self._words = {}

    def uniform(self, stream, index):
        return self._uniform[stream][index]

    def randint(self, stream, index, low, high):
        """From ``low`` to ``high``, both included."""
        return low + int(self.uniform(stream, index) * (high - low + 1))

    def toss(self, stream, index, number):
        word = (stream, number // 64)
        if word not in self._words:
            self._words[word] = self._draws.bits(stream, self._index, number // 64).tolist()
        return bool(self._words[word][index] >> (63 - number % 64) & 1)


class Independent:
    """Random numbers that have nothing to do with the code under test."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def uniform(self, stream, index):
        return self._rng.random()

    def randint(self, stream, index, low, high):
        return self._rng.randint(low, high)

    def toss(self, stream, index, number):
        return self._rng.random() < 0.5


@dataclass
class Script:
    """What the scripts of BERT, ALBERT and ELECTRA do, one sentence after the other."""

    split: MemorySplit
    pairs: Pairs
    overhead: int
    random: Addressed | Independent
    made: list = field(default_factory=list)  # (places of A, places of B, label, document)
    skipped_tokens: int = 0
    truncated_tokens: int = 0

    def run(self):
        self.documents = documents_of(self.split)
        first = 0
        for number, document in enumerate(self.documents):
            if self.pairs.kind == "contiguous":
                self.contiguous(number, document, first)
            else:
                self.document(number, document, first)
            first += len(document)
        return self

    def document(self, number, document, first):
        room = self.pairs.seq_length - self.overhead
        target = room
        if self.random.uniform(Stream.SHORT, number) < self.pairs.short_prob:
            target = self.random.randint(Stream.TARGET, number, 2, room)
        least = 2 if self.pairs.kind == "order" else 1
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            full = sum(map(len, chunk)) >= target and len(chunk) >= least
            if i == len(document) - 1 or full:
                key = first + i + 1 - len(chunk)
                i -= self.chunk(number, chunk, target, key)
                chunk = []
            i += 1

    def chunk(self, number, chunk, target, key):
        """Makes a pair; returns the number of sentences to put back."""
        kind, draw = self.pairs.kind, self.random
        put_back = label = 0
        a_end = 1
        if len(chunk) >= 2:
            a_end = draw.randint(Stream.SPLIT, key, 1, len(chunk) - 1)
        elif kind == "order":
            self.skipped_tokens += len(chunk[0])
            return 0
        a = list(itertools.chain(*chunk[:a_end]))
        b = list(itertools.chain(*chunk[a_end:]))
        if len(chunk) == 1 or (kind == "next" and draw.uniform(Stream.NEXT, key) < 0.5):
            label = 1
            b = self.random_next(number, target - len(a), key)
            put_back = len(chunk) - a_end
        elif kind != "next" and draw.uniform(Stream.SWAP, key) < 0.5:
            label = 1
            a, b = b, a
        tossed = [0, 0]
        while len(a) + len(b) > self.pairs.seq_length - self.overhead:
            which = 0 if len(a) > len(b) else 1
            longer = (a, b)[which]
            stream = (Stream.FRONT_A, Stream.FRONT_B)[which]
            front = draw.toss(stream, key, tossed[which])
            tossed[which] += 1
            # Which token of A goes when does not matter, only how many go at the front; so B's
            # and A's tosses may be counted apart.
            longer.pop(0 if front else -1)
            self.truncated_tokens += 1
        self.made.append((a, b, label, number))
        return put_back

    def random_next(self, number, wanted, key):
        others = [d for n, d in enumerate(self.documents) if n != number]
        other = others[self.random.randint(Stream.DOCUMENT, key, 0, len(others) - 1)]
        b = []
        for j in range(self.random.randint(Stream.START, key, 0, len(other) - 1), len(other)):
            b.extend(other[j])
            if len(b) >= wanted:
                break
        return b

    def target_of_chunk(self, key):
        longest = self.pairs.seq_length
        if self.random.uniform(Stream.SHORT, key) < self.pairs.short_prob:
            return self.random.randint(Stream.TARGET, key, 5, longest)
        return longest

    def contiguous(self, number, document, first):
        chunk = []
        target = self.target_of_chunk(first)
        for i, sentence in enumerate(document):
            chunk.append(sentence)
            if sum(map(len, chunk)) >= target or i == len(document) - 1:
                self.halves(number, chunk, target, first + i + 1 - len(chunk))
                chunk = []
                target = self.target_of_chunk(first + i + 1)

    def halves(self, number, chunk, target, key):
        single = self.random.uniform(Stream.SINGLE, key) < self.pairs.single_prob
        half = 100_000 if single else (target - 3) // 2
        a, b = [], []
        for sentence in chunk:
            # ELECTRA's script also appends a sentence to A that fits after B has begun.
            fits = not b and len(a) + len(sentence) < half
            over = not b and len(a) < half
            if not a or fits or (over and self.random.uniform(Stream.OVER, key) < 0.5):
                a += sentence
            else:
                b += sentence
        whole = len(a) + len(b)
        a = a[: self.pairs.seq_length - 2]
        b = b[: max(0, self.pairs.seq_length - len(a) - self.overhead)]
        self.truncated_tokens += whole - len(a) - len(b)
        self.made.append((a, b, 0, number))


def pairs_of(kind, length=32, **values):
    return Pairs(length, kind, masks="fresh", **values)


def make_table(split, pairs, *, overhead=3, seed=0, copy=0):
    return PairTables(split, pairs, overhead, seed).table(copy)


def listed(table):
    """Pairs as lists of places, since tokens are numbered by them."""
    return [
        (list(range(a, a + n)), list(range(b, b + m)), label)
        for a, n, b, m, label in zip(
            *(
                column.tolist()
                for column in (
                    table.a_start,
                    table.a_len,
                    table.b_start,
                    table.b_len,
                    table.labels,
                )
            ),
            strict=True,
        )
    ]


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(pair_table, "_BLOCK_SENTENCES", 7)
        monkeypatch.setattr(pair_table, "_BLOCK_TOKENS", 50)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "length, overhead, short_prob, seed",
    [(32, 3, 0.1, 0), (32, 4, 0.5, 1), (8, 3, 0.1, 2), (128, 3, 1.0, 3), (128, 4, 0.0, 4)],
)
@pytest.mark.usefixtures("blocks")
def test_pairs_are_those_of_the_script(kind, length, overhead, short_prob, seed):
    """The same random numbers, looked up one at a time, give the same pairs exactly."""
    split = make_split(seed, num_documents=12)
    pairs = pairs_of(kind, length, short_prob=short_prob)
    limit = len(Sentences.find(split).bounds)
    for copy in (0, 3):
        table = make_table(split, pairs, overhead=overhead, seed=seed, copy=copy)
        script = Script(split, pairs, overhead, Addressed(seed, copy, limit)).run()
        expected = [(a, b or [], label) for a, b, label, _ in script.made]
        found = listed(table)
        if kind == "contiguous":  # where there is no B, its place says nothing
            found = [(a, b if b else [], label) for a, b, label in found]
        assert found == expected
        assert table.truncated_tokens == script.truncated_tokens
        assert table.skipped_tokens == script.skipped_tokens
        with_pairs = len({number for *_, number in script.made})
        assert table.skipped_documents == len(script.documents) - with_pairs
        assert table.num_tokens == sum(len(a) + len(b) for a, b, *_ in script.made)


def statistics(made, pairs, overhead):
    """Pairs, and of a pair the means of label, tokens, tokens of A, and rows nearly full."""
    a, b = (np.array([len(pair[i]) for pair in made]) for i in (0, 1))
    label = np.array([pair[2] for pair in made])
    full = a + b >= 0.9 * (pairs.seq_length - overhead)
    return {"label": label, "tokens": a + b, "a": a, "single": b == 0, "full": full}


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_distributed_as_the_scripts(kind):
    """Against random numbers that have nothing to do with ours.

    Means differ by less than five deviations of a difference; a document's pairs share a target,
    so that twenty pairs are counted as one.
    """
    split = make_split(0, num_documents=600, longest=60)
    pairs = pairs_of(kind, 64)
    ours = listed(make_table(split, pairs, seed=5))
    theirs = Script(split, pairs, 3, Independent(0)).run().made
    assert len(ours) == pytest.approx(len(theirs), rel=0.05)
    expected = statistics(theirs, pairs, 3)
    for name, values in statistics(ours, pairs, 3).items():
        bound = 5 * np.sqrt(2 * values.var() / (len(values) / 20)) + 1e-9
        assert abs(values.mean() - expected[name].mean()) < bound, name


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_fit_and_are_not_empty(kind):
    split = make_split(7, num_documents=60)
    for length, overhead in ((8, 3), (8, 4), (33, 3)):
        table = make_table(split, pairs_of(kind, length), overhead=overhead)
        a, b = table.a_len.astype(int), table.b_len.astype(int)
        assert a.min() >= 1
        if kind != "contiguous":
            assert b.min() >= 1
        assert (a + b + np.where(b > 0, overhead, 2)).max() == length  # some are full


def test_a_tenth_of_documents_has_a_shorter_target():
    """Documents of 40 sentences of 5 tokens: full pairs reach the target of 61, others do not."""
    sizes = np.full(2000 * 40, 5)
    offsets = np.arange(2001) * 200
    flags = np.zeros(sizes.sum(), np.uint8)
    flags[::5] = 2
    split = MemorySplit(np.arange(len(flags)), flags, offsets.astype(np.int64))
    table = make_table(split, pairs_of("order", 64))
    document = table.a_start.astype(int) // 200
    longest = np.zeros(2000, int)
    np.maximum.at(longest, document, table.a_len.astype(int) + table.b_len)
    # 61 are 12.2 sentences: a target above 60 fills 13, which are cut to 61. Of targets from 2 to
    # 61 one sixtieth does too.
    short = np.count_nonzero(longest < 61)
    expected = 2000 * 0.1 * 59 / 60
    assert abs(short - expected) < 5 * np.sqrt(2000 * 0.1 * 0.9)


@pytest.mark.parametrize("kind", ["next", "order_or_next"])
def test_every_sentence_is_a_first_segment_or_was_put_back(kind):
    """Without truncation each sentence stands in A, or in a B that follows its A, exactly once."""
    split = make_split(3, num_documents=50, sentence=4)
    table = make_table(split, pairs_of(kind, 2048, short_prob=0.0))
    seen = np.zeros(split.num_tokens, int)
    documents = np.searchsorted(split.document_offsets, table.a_start, side="right")
    for (a, b, _), own in zip(listed(table), documents.tolist(), strict=True):
        seen[a] += 1
        if np.searchsorted(split.document_offsets, b[0], side="right") == own:
            seen[b] += 1
    assert set(seen.tolist()) <= {0, 1}
    assert np.count_nonzero(seen == 0) <= table.truncated_tokens < 0.1 * split.num_tokens


def test_put_back_sentences_begin_the_next_chunk():
    """One document of four sentences that never fill a row: all chunks end at its end."""
    flags = np.zeros(12, np.uint8)
    flags[[0, 3, 6, 9]] = 2
    split = MemorySplit(np.arange(12), flags, np.array([0, 9, 12], np.int64))
    for copy in range(20):
        table = make_table(split, pairs_of("next", 64), copy=copy)
        place = 0
        for a, b, label in listed(table):
            if a[0] >= 9:
                break
            assert a[0] == place
            place = a[-1] + 1 if label else b[-1] + 1
        assert place == 9


# P11: labels of next sentence prediction


@pytest.mark.parametrize("kind", ["next", "order_or_next"])
@pytest.mark.parametrize("offsets", [[0, 40], [0, 0, 40, 40]])
def test_one_document_is_refused_where_b_is_of_another(kind, offsets):
    flags = np.tile(np.array([2, 0, 0, 0], np.uint8), 10)
    split = MemorySplit(np.arange(40), flags, np.array(offsets, np.int64))
    with pytest.raises(ValueError, match=f"'{kind}' .* only 1 document"):
        PairTables(split, pairs_of(kind), 3, 0)
    for other in ("order", "contiguous"):
        assert len(PairTables(split, pairs_of(other), 3, 0).table(0)) > 0


def test_of_two_documents_a_random_b_is_of_the_other():
    """And half of the pairs are random: chunks of one sentence are few here."""
    flags = np.zeros(40_000, np.uint8)
    flags[::4] = 2
    offsets = np.array([0, 15_000, 15_000, 40_000], np.int64)  # with an empty one between
    split = MemorySplit(np.arange(40_000), flags, offsets)
    labels = []
    for copy in range(5):
        table = make_table(split, pairs_of("next", 128, short_prob=0.0), copy=copy)
        assert table.skipped_documents == 0
        of_a, of_b = table.a_start >= 15_000, table.b_start >= 15_000
        assert np.array_equal(of_a != of_b, table.labels == 1)
        follows = table.labels == 0
        assert np.all(table.a_start[follows] < table.b_start[follows])
        labels.append(table.labels)
    assert abs(np.concatenate(labels).mean() - 0.5) < 0.02


def test_label_1_of_next_is_half_and_what_is_forced():
    """Sentences that fill a row on their own are always followed by a random B."""
    split = make_split(11, num_documents=300, sentence=60)
    pairs = pairs_of("next", 64, short_prob=0.0)
    table = make_table(split, pairs)
    sentences = Sentences.find(split)
    chunks = list(pair_table.walk(sentences, pairs, 3, Draws(0, 0)))
    lone = np.concatenate([made.end - made.first == 1 for made in chunks])
    assert 0.2 < lone.mean() < 0.9
    assert np.all(table.labels[lone] == 1)
    rest = table.labels[~lone]
    assert abs(rest.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(rest))  # five deviations


def test_every_other_document_is_as_likely():
    flags = np.tile(np.array([2, 0], np.uint8), 10_000)
    offsets = np.array([0, 18_000, 18_200, 19_000, 20_000], np.int64)
    split = MemorySplit(np.arange(20_000), flags, offsets)
    table = make_table(split, pairs_of("next", 16))
    at = (table.labels == 1) & (table.a_start < 18_000)
    counts = np.bincount(np.searchsorted(offsets, table.b_start[at], side="right") - 1, minlength=4)
    assert counts[0] == 0
    third = counts.sum() / 3
    assert np.all(np.abs(counts[1:] - third) < 5 * np.sqrt(third * 2 / 3))


# P12: labels of sentence order


def test_order_pairs_follow_each_other_in_one_document():
    split = make_split(2, num_documents=400, longest=40)
    table = make_table(split, pairs_of("order", 2048, short_prob=0.3))
    a, b = (column.astype(int) for column in (table.a_start, table.b_start))
    assert table.truncated_tokens < 0.1 * table.num_tokens
    of_a, of_b = (np.searchsorted(split.document_offsets, at, side="right") for at in (a, b))
    assert np.array_equal(of_a, of_b)
    swapped = table.labels == 1
    assert np.all((b < a) == swapped)
    end = np.where(swapped, b + table.b_len, a + table.a_len)
    assert np.mean(end == np.maximum(a, b)) > 0.8  # those that lost nothing touch
    assert abs(swapped.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(table))  # five deviations


def test_documents_of_one_sentence_are_skipped_by_order_and_counted():
    """Two such documents, and one of three sentences of which every chunk takes two or three."""
    flags = np.zeros(40, np.uint8)
    flags[[0, 8, 20, 24, 28]] = 2
    offsets = np.array([0, 8, 8, 20, 40], np.int64)
    split = MemorySplit(np.arange(40), flags, offsets)
    table = make_table(split, pairs_of("order", 128, short_prob=0.0))
    assert (len(table), table.skipped_documents, table.skipped_tokens) == (1, 2, 20)
    mixed = make_table(split, pairs_of("order_or_next", 128, short_prob=0.0))
    assert (len(mixed), mixed.skipped_documents, mixed.skipped_tokens) == (3, 0, 0)
    assert mixed.labels[:2].tolist() == [1, 1]


# Contiguous halves


def test_contiguous_covers_the_text_in_order():
    split = make_split(4, num_documents=80)
    table = make_table(split, pairs_of("contiguous", 2048, short_prob=0.0))
    starts = [a for a, _, _ in listed(table)]
    assert all(x[-1] < y[0] for x, y in itertools.pairwise(starts))
    assert table.num_tokens + table.truncated_tokens == split.num_tokens
    assert not table.labels.any()
    two = table.b_len > 0
    assert np.array_equal((table.a_start + table.a_len)[two], table.b_start[two])


def test_a_tenth_of_contiguous_rows_has_one_segment():
    flags = np.tile(np.array([2, 0, 0, 0], np.uint8), 100_000)
    split = MemorySplit(np.arange(len(flags)), flags, np.array([0, len(flags)], np.int64))
    table = make_table(split, pairs_of("contiguous", 64, short_prob=0.0))
    single = np.mean(table.b_len == 0)
    assert abs(single - 0.1) < 5 * np.sqrt(0.09 / len(table))  # five deviations


# Truncation


@pytest.mark.parametrize("room", [5, 6, 29])
def test_truncate_is_the_scripts_loop(room):
    a, b = (array.reshape(-1) for array in np.mgrid[1:45, 1:45])
    a_front, a_keep, b_front, b_keep = truncate(Draws(0, 0), np.arange(len(a)), a, b, room)
    for i in range(len(a)):
        lengths = [int(a[i]), int(b[i])]
        while sum(lengths) > room:
            lengths[0 if lengths[0] > lengths[1] else 1] -= 1
        assert [a_keep[i], b_keep[i]] == lengths
    assert np.all((a_front >= 0) & (a_front <= a - a_keep))
    assert np.all((b_front >= 0) & (b_front <= b - b_keep))
    lost = (a - a_keep).sum() + (b - b_keep).sum()
    front = a_front.sum() + b_front.sum()
    assert abs(front / lost - 0.5) < 5 * 0.5 / np.sqrt(lost)  # five deviations


# Copies


@pytest.mark.parametrize("kind", KINDS)
def test_seed_and_copy_decide(kind):
    split = make_split(1, num_documents=50)
    tables = PairTables(split, pairs_of(kind), 3, 4)
    first = listed(tables.table(1))
    assert listed(make_table(split, pairs_of(kind), seed=4, copy=1)) == first
    assert listed(tables.table(0)) != first
    assert listed(make_table(split, pairs_of(kind), seed=5, copy=1)) != first


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_known_without_tables(kind):
    split = make_split(6, num_documents=30)
    tables = PairTables(split, pairs_of(kind), 3, 0)
    sizes = [tables.size(copy) for copy in range(6)]
    assert not tables._tables
    assert sizes == [len(tables.table(copy)) for copy in range(6)]
    assert len(set(sizes)) > 1
    assert list(tables._tables) == [0, 1, 2, 3, 4, 5]  # small ones


def test_few_large_tables_are_kept(monkeypatch):
    monkeypatch.setattr(pair_table, "_KEPT_PAIRS", 10)
    tables = PairTables(make_split(6, num_documents=30), pairs_of("next"), 3, 0)
    for copy in (0, 1, 2, 1, 3):
        again = tables.table(copy)
    assert list(tables._tables) == [1, 3]
    assert tables.table(3) is again


def test_no_documents_no_pairs():
    split = MemorySplit(np.zeros(0, np.uint16), np.zeros(0, np.uint8), np.array([0], np.int64))
    for kind in KINDS:
        table = make_table(split, pairs_of(kind))
        assert (len(table), table.num_tokens, table.skipped_documents) == (0, 0, 0)


def test_a_document_begins_a_sentence_even_if_unmarked():
    flags = np.array([0, 0, 2, 0, 0, 0], np.uint8)
    split = MemorySplit(np.arange(6), flags, np.array([0, 4, 4, 6], np.int64))
    sentences = Sentences.find(split)
    assert sentences.bounds.tolist() == [0, 2, 4, 6]
    assert sentences.documents.tolist() == [0, 2, 3]


def test_places_need_no_more_bytes_than_they_have():
    table = make_table(make_split(0, num_documents=20), pairs_of("next", 128))
    assert [c.dtype.itemsize for c in (table.a_start, table.a_len, table.labels)] == [4, 1, 1]
    assert build_pairs(
        Sentences.find(make_split(0, num_documents=20)), pairs_of("next", 512), 3, Draws(0, 0)
    ).a_len.dtype == np.dtype(np.uint16)
