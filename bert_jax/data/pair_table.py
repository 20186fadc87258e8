"""Which tokens the sentences A and B of each pair are: the arithmetic of BERT's data script.

BERT (google-research/bert, create_pretraining_data.py) walks through a document sentence by
sentence. A chunk is closed when it holds the target length; A is a random number of its sentences,
from the front; B is the rest, or comes from another document, in which case the rest is *put back*
and begins the next chunk. Said as a function of the sentence a chunk begins with: where the chunk
ends, how it is cut and where the next one begins follow from that sentence and its own random
numbers. So numpy computes this for all sentences at once, a few million a second, and only the
chain from one chunk to the next is walked.

ALBERT (google-research/albert, the file of the same name) differs in that A and B are swapped
instead of B being random. ELECTRA (google-research/electra, build_pretraining_dataset.py) cuts
contiguous text in two near the middle, and gives it no label. Its script also appends to A a later
sentence that still fits, after B has begun (in a tenth to a third of its rows, simulated); here
A and B are in the order of the text.

A table is a function of (sentences, pairs, seed, copy) alone. Time is linear in sentences; memory
is 4 bytes a sentence and 11 to 13 a pair (twice the 4 of each place from 2**32 tokens on).
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8

from bert_jax.data.draws import Draws
from bert_jax.data.shards import SENTENCE_START
from bert_jax.data.windows import TokenSource

if TYPE_CHECKING:
    from bert_jax.data.pairs import Pairs

_BLOCK_TOKENS = 1 << 22  # flags looked at in one go
_BLOCK_SENTENCES = 1 << 18  # sentences worked on in one go, rounded to whole documents
_KEPT_TABLES = 2  # at least: the copy in use and, where an epoch ends, the next
_KEPT_PAIRS = 1 << 22  # in more tables than that: some 50 MB


class Stream(IntEnum):
    """What random numbers are drawn for; by sentence, but for the first two by document."""

    SHORT = 0  # whether the target is shorter
    TARGET = 1  # by how much
    SPLIT = 2  # sentences of A
    NEXT = 3  # whether B is random
    DOCUMENT = 4  # whence
    START = 5  # from which of its sentences
    SWAP = 6  # whether A and B change places
    FRONT_A = 7  # of the tokens that A loses, those from its front
    FRONT_B = 8
    SINGLE = 9  # whether there is no B (contiguous)
    OVER = 10  # whether A takes the sentence that fills it (contiguous)


@dataclass(frozen=True, eq=False)
class Sentences:
    """Where sentences and documents begin.

    Attributes:
        bounds: Place in the stream of each sentence's first token, and the stream's length.
        documents: Each document's first sentence, and the number of sentences. Documents without
            a token are left out.
    """

    bounds: Integer[np.ndarray, " sentences_plus_1"]
    documents: Int64[np.ndarray, " documents_plus_1"]

    @classmethod
    def find(cls, source: TokenSource) -> Sentences:
        """Reads the marks of a split once."""
        offsets = np.unique(np.asarray(source.document_offsets, np.int64))
        length = int(offsets[-1])
        small = np.uint32 if length < 2**32 else np.int64
        parts = []
        for start in range(0, length, _BLOCK_TOKENS):
            stop = min(start + _BLOCK_TOKENS, length)
            marked = np.flatnonzero(source.read_flags(start, stop) & SENTENCE_START) + start
            documents = offsets[slice(*np.searchsorted(offsets, (start, stop)))]
            parts.append(np.union1d(marked, documents).astype(small))
        bounds = np.concatenate([*parts, np.array([length], small)])
        return cls(bounds, np.searchsorted(bounds, offsets.astype(small)).astype(np.int64))

    @property
    def num_documents(self) -> int:
        """Documents that have a token."""
        return len(self.documents) - 1

    def places(self, sentences: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Places of the sentences' first tokens."""
        return self.bounds[sentences].astype(np.int64)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of documents, of about equal numbers of sentences."""
        low = 0
        while low < self.num_documents:
            limit = self.documents[low] + _BLOCK_SENTENCES
            high = max(low + 1, int(np.searchsorted(self.documents, limit, side="right")) - 1)
            yield low, high
            low = high


@dataclass(frozen=True, eq=False)
class PairTable:
    """The pairs of one copy.

    Attributes:
        a_start: Place of A's first token in the stream.
        a_len: Its tokens, at least 1.
        b_start: Likewise of B.
        b_len: At least 1, but for pairs of kind "contiguous", where 0 says that there is no B.
        labels: 1 where B is random or A and B are swapped; 0 else.
        skipped_documents: Documents with a token that are A in no pair.
        skipped_tokens: Tokens of chunks that made no pair.
        truncated_tokens: Tokens that pairs lost to the length of the row.
    """

    a_start: Integer[np.ndarray, " pairs"]
    a_len: Integer[np.ndarray, " pairs"]
    b_start: Integer[np.ndarray, " pairs"]
    b_len: Integer[np.ndarray, " pairs"]
    labels: UInt8[np.ndarray, " pairs"]
    skipped_documents: int = 0
    skipped_tokens: int = 0
    truncated_tokens: int = 0

    def __len__(self) -> int:
        return len(self.a_start)

    @property
    def num_tokens(self) -> int:
        """Corpus tokens in all pairs."""
        return int(self.a_len.sum(dtype=np.int64) + self.b_len.sum(dtype=np.int64))


class PairTables:
    """The tables of all copies, each made when it is asked for; the last few are kept.

    Args:
        source: The split.
        pairs: How pairs are made.
        overhead: Special tokens of a row with two segments.
        seed: Data seed, in ``[0, 2**63)``.

    Raises:
        ValueError: If B would come from another document, and there is only one; or the seed is
            outside its range.
    """

    def __init__(self, source: TokenSource, pairs: Pairs, overhead: int, seed: int):
        self.sentences = Sentences.find(source)
        self._pairs = pairs
        self._overhead = overhead
        self._seed = seed
        self._sizes: dict[int, int] = {}
        self._tables: OrderedDict[int, PairTable] = OrderedDict()
        self._lock = threading.Lock()
        if pairs.kind in ("next", "order_or_next") and self.sentences.num_documents == 1:
            raise ValueError(
                f"packing kind {pairs.kind!r} takes random sentences from other documents, but "
                f"the split has only 1 document: prepare more, or choose kind 'order'."
            )

    def table(self, copy: int) -> PairTable:
        """The pairs of a copy; a pass over the sentences, unless they are still there."""
        with self._lock:
            kept = self._tables
            if copy not in kept:
                kept[copy] = build_pairs(
                    self.sentences, self._pairs, self._overhead, Draws(self._seed, copy)
                )
                self._sizes[copy] = len(kept[copy])
                while len(kept) > _KEPT_TABLES and sum(map(len, kept.values())) > _KEPT_PAIRS:
                    kept.popitem(last=False)
            kept.move_to_end(copy)
            return kept[copy]

    def size(self, copy: int) -> int:
        """The number of pairs of a copy, remembered; cheaper than its table."""
        with self._lock:
            if copy not in self._sizes:
                draws = Draws(self._seed, copy)
                chunks = walk(self.sentences, self._pairs, self._overhead, draws)
                self._sizes[copy] = sum(len(made.kept(self._pairs)) for made in chunks)
            return self._sizes[copy]


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of sentences in the order of the text; every number is of a sentence.

    Attributes:
        first: First of A.
        split: First that is not of A.
        end: First behind the chunk.
        document: Number of the chunk's document.
        target: Tokens that were wanted.
        random: Whether B comes from another document, and ``split`` to ``end`` are put back.
    """

    first: Int64[np.ndarray, " chunks"]
    split: Int64[np.ndarray, " chunks"]
    end: Int64[np.ndarray, " chunks"]
    document: Int64[np.ndarray, " chunks"]
    target: Int64[np.ndarray, " chunks"]
    random: Bool[np.ndarray, " chunks"]

    def take(self, at: Int64[np.ndarray, " n"]) -> Chunks:
        """Some of them."""
        return Chunks(*(array[at] for array in vars(self).values()))

    def kept(self, pairs: Pairs) -> Int64[np.ndarray, " n"]:
        """Which of them make a pair: of kind "order" those that have two sentences."""
        if pairs.kind == "order":
            return np.flatnonzero(self.split < self.end)
        return np.arange(len(self.first))


def build_pairs(sentences: Sentences, pairs: Pairs, overhead: int, draws: Draws) -> PairTable:
    """Makes the pairs of a copy.

    Args:
        sentences: Of the split.
        pairs: How pairs are made.
        overhead: Special tokens of a row with two segments.
        draws: The copy's random numbers.
    """
    place = sentences.bounds.dtype
    small = np.min_scalar_type(pairs.seq_length)
    dtypes = (place, small, place, small, np.dtype(np.uint8))
    parts: list[list[np.ndarray]] = [[np.zeros(0, dtype)] for dtype in dtypes]
    with_pairs = skipped_tokens = truncated_tokens = 0
    for chunks in walk(sentences, pairs, overhead, draws):
        whole = sentences.places(chunks.end) - sentences.places(chunks.first)
        kept = chunks.kept(pairs)
        skipped_tokens += int(whole.sum() - whole[kept].sum())
        chunks = chunks.take(kept)
        if len(kept):
            with_pairs += 1 + int(np.count_nonzero(np.diff(chunks.document)))
        *columns, lost = _segments(sentences, pairs, overhead, draws, chunks)
        truncated_tokens += int(lost.sum())
        for part, column, dtype in zip(parts, columns, dtypes, strict=True):
            part.append(column.astype(dtype))
    return PairTable(
        *(np.concatenate(part) for part in parts),
        skipped_documents=sentences.num_documents - with_pairs,
        skipped_tokens=skipped_tokens,
        truncated_tokens=truncated_tokens,
    )


def walk(sentences: Sentences, pairs: Pairs, overhead: int, draws: Draws) -> Iterator[Chunks]:
    """The chunks of all documents, in blocks."""
    for low, high in sentences.blocks():
        starts = sentences.documents[low : high + 1]
        index = np.arange(starts[0], starts[-1])
        document = np.repeat(np.arange(low, high), np.diff(starts))
        chunks = _chunk_of_each(sentences, pairs, overhead, draws, index, document)
        following = np.where(chunks.random, chunks.split, chunks.end) - index[0]
        yield chunks.take(_chain(following))


def _chain(following: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    """0, the one following it, the one following that ..., up to the end of the array."""
    index, end, after = 0, len(following), following.data
    chain = array("q")
    while index < end:
        chain.append(index)
        index = after[index]
    return np.frombuffer(chain, np.int64)


def _chunk_of_each(
    sentences: Sentences,
    pairs: Pairs,
    overhead: int,
    draws: Draws,
    index: Int64[np.ndarray, " n"],
    document: Int64[np.ndarray, " n"],
) -> Chunks:
    """The chunk that begins with each of a block's sentences, if one does."""
    bounds = sentences.bounds[index[0] : index[-1] + 2].astype(np.int64)
    last = sentences.documents[document + 1]
    target = _targets(pairs, overhead, draws, index, document)
    full = index[0] + np.searchsorted(bounds, bounds[:-1] + target)
    end = np.minimum(full, last)
    random = np.zeros(len(index), bool)
    if pairs.kind == "contiguous":
        split = _halfway(pairs, draws, index, bounds, target)
        return Chunks(index, np.minimum(split, end), end, document, target, random)
    if pairs.kind == "order":  # a chunk is not closed before its second sentence
        end = np.maximum(end, np.minimum(index + 2, last))
    split = index + 1 + draws.below(Stream.SPLIT, index, end - index - 1)
    if pairs.kind != "order":
        random = end == index + 1
    if pairs.kind == "next":
        random |= draws.uniform(Stream.NEXT, index) < 0.5
    return Chunks(index, split, end, document, target, random)


def _targets(pairs: Pairs, overhead: int, draws: Draws, index, document):
    """Tokens at which the chunk that begins with each sentence is closed."""
    if pairs.kind == "contiguous":  # drawn for each chunk; specials count, as in ELECTRA's script
        where, shortest, longest = index, 5, pairs.seq_length
    else:  # drawn once a document; specials do not count
        where, shortest, longest = document, 2, pairs.seq_length - overhead
    shorter = shortest + draws.below(Stream.TARGET, where, longest - shortest + 1)
    return np.where(draws.uniform(Stream.SHORT, where) < pairs.short_prob, shorter, longest)


def _halfway(pairs: Pairs, draws: Draws, index, bounds, target):
    """Where ELECTRA's second segment begins: with or behind the sentence that fills the first."""
    half = (target - 3) // 2
    reached = np.searchsorted(bounds, bounds[:-1] + half)  # behind the sentence that fills it
    taken = draws.uniform(Stream.OVER, index) < 0.5
    split = np.maximum(index + 1, index[0] + reached - 1 + taken)
    single = draws.uniform(Stream.SINGLE, index) < pairs.single_prob
    return np.where(single, index[-1] + 1, split)


def _segments(sentences: Sentences, pairs: Pairs, overhead: int, draws: Draws, chunks: Chunks):
    """Columns of the table for some chunks, and the tokens that each lost."""
    a_start, b_start = sentences.places(chunks.first), sentences.places(chunks.split)
    a_stop, b_stop = b_start.copy(), sentences.places(chunks.end)
    at = np.flatnonzero(chunks.random)
    if at.size:
        b_start[at], b_stop[at] = _random_next(sentences, draws, chunks.take(at))
    labels = chunks.random.copy()
    if pairs.kind in ("order", "order_or_next"):
        swap = ~chunks.random & (draws.uniform(Stream.SWAP, chunks.first) < 0.5)
        labels |= swap
        a_start, b_start = np.where(swap, b_start, a_start), np.where(swap, a_start, b_start)
        a_stop, b_stop = np.where(swap, b_stop, a_stop), np.where(swap, a_stop, b_stop)
    a_len, b_len = a_stop - a_start, b_stop - b_start
    before = a_len + b_len
    room = pairs.seq_length - overhead
    if pairs.kind == "contiguous":  # from the back; without B one special token fewer is needed
        a_len = np.minimum(a_len, pairs.seq_length - 2)
        b_len = np.minimum(b_len, np.maximum(room - a_len, 0))
    else:
        a_front, a_len, b_front, b_len = truncate(draws, chunks.first, a_len, b_len, room)
        a_start, b_start = a_start + a_front, b_start + b_front
    return a_start, a_len, b_start, b_len, labels, before - a_len - b_len


def _random_next(sentences: Sentences, draws: Draws, chunks: Chunks):
    """Places of a random B: sentences of another document, until they fill what A has left.

    BERT draws a document ten times at most until it is another; here each other one is drawn with
    equal probability.
    """
    other = draws.below(Stream.DOCUMENT, chunks.first, sentences.num_documents - 1)
    other += other >= chunks.document
    begin, last = sentences.documents[other], sentences.documents[other + 1]
    begin = begin + draws.below(Stream.START, chunks.first, last - begin)
    start = sentences.places(begin)
    wanted = chunks.target - (sentences.places(chunks.split) - sentences.places(chunks.first))
    end = begin + 1
    at = np.arange(len(begin))
    while at.size:  # as often as the longest B has sentences
        at = at[(end[at] < last[at]) & (sentences.places(end[at]) - start[at] < wanted[at])]
        end[at] += 1
    return start, sentences.places(end)


def truncate(
    draws: Draws,
    index: Int64[np.ndarray, " n"],
    a_len: Int64[np.ndarray, " n"],
    b_len: Int64[np.ndarray, " n"],
    room: int,
) -> tuple[Int64[np.ndarray, " n"], ...]:
    """Shortens pairs as BERT's ``truncate_seq_pair`` does.

    While a pair is too long, the longer segment (B of two equal ones) loses a token, from its
    front or its back as a coin falls. The lengths that this ends with do not depend on the coin.

    Args:
        draws: For the coins.
        index: Their addresses.
        a_len: Tokens of A.
        b_len: Tokens of B.
        room: Tokens that a pair may have, at least 2.

    Returns:
        Tokens that A loses at its front, that it keeps, and the same of B.
    """
    shorter = np.minimum(a_len, b_len)
    balanced = 2 * shorter > room
    keep_a = np.where(balanced, (room + 1) // 2, np.where(a_len <= b_len, a_len, room - b_len))
    keep_a = np.where(a_len + b_len > room, keep_a, a_len)
    keep_b = np.where(a_len + b_len > room, room - keep_a, b_len)
    a_front = draws.heads(Stream.FRONT_A, index, a_len - keep_a)
    b_front = draws.heads(Stream.FRONT_B, index, b_len - keep_b)
    return a_front, keep_a, b_front, keep_b
