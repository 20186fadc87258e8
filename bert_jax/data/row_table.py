"""Where rows begin and end: each packing mode cuts the token stream into intervals.

A row is an interval of the stream of all documents' tokens; where it crosses the end of a document
a new segment begins. So a table of a few numbers a row says everything, whatever the documents
are, and neighbouring rows hold neighbouring text. The table is a function of the documents (for
``complete`` also of the sentences) and the packing alone: the same in every epoch and process.

Time is linear in rows + documents, in ``complete`` in tokens (their flags are read once); memory
is about 20 bytes a row.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64, Integer

from bert_jax.data.shards import SENTENCE_START
from bert_jax.data.windows import TokenSource

if TYPE_CHECKING:
    from bert_jax.data.packing import Packing

_BLOCK_TOKENS = 1 << 22  # flags looked at in one go by ``complete``


@dataclass(frozen=True, eq=False)
class RowTable:
    """The rows of a split.

    Attributes:
        starts: Place of each row's first token in the stream.
        lengths: Corpus tokens of each row, at least 1.
        documents: Index (into ``offsets``) of the document of each row's first token.
        segments: Number of documents each row touches, at least 1.
        offsets: Where each document that has tokens begins, and the stream's length.
        dropped: Corpus tokens in no row (``truncate`` only).
    """

    starts: Int64[np.ndarray, " rows"]
    lengths: Integer[np.ndarray, " rows"]
    documents: Integer[np.ndarray, " rows"]
    segments: Integer[np.ndarray, " rows"]
    offsets: Int64[np.ndarray, " documents_plus_1"]
    dropped: int = 0


def build_table(source: TokenSource, packing: Packing) -> RowTable:
    """Cuts a token stream into rows.

    Args:
        source: The split.
        packing: Mode and row length.

    Returns:
        The table; its rows cover every token once, in order, but for what ``truncate`` drops.
    """
    offsets = np.unique(np.asarray(source.document_offsets, np.int64))  # drops empty documents
    if len(offsets) < 2:
        starts = stops = np.zeros(0, np.int64)
    elif packing.mode == "fill":
        starts = _fill(offsets, packing)
        stops = np.append(starts[1:], offsets[-1])
    elif packing.mode == "complete":
        starts = _complete(source, offsets, packing)
        stops = np.append(starts[1:], offsets[-1])
    elif packing.mode == "document":
        rows = -(-np.diff(offsets) // packing.capacity)
        starts = _ranges(offsets[:-1], rows, packing.capacity)
        stops = np.minimum(starts + packing.capacity, np.repeat(offsets[1:], rows))
    else:
        starts = offsets[:-1]
        stops = np.minimum(starts + packing.capacity, offsets[1:])
    lengths = stops - starts
    first = np.searchsorted(offsets, starts, side="right") - 1
    last = np.searchsorted(offsets, stops - 1, side="right") - 1
    small = np.min_scalar_type(packing.seq_length)
    return RowTable(
        starts=starts,
        lengths=lengths.astype(small),
        documents=first.astype(np.min_scalar_type(len(offsets))),
        segments=(last - first + 1).astype(small),
        offsets=offsets,
        dropped=int(offsets[-1] - lengths.sum()) if len(offsets) > 1 else 0,
    )


def _ranges(starts, counts, step) -> Int64[np.ndarray, " n"]:
    """Concatenates ``start, start + step, ...`` of ``count`` numbers each."""
    ends = np.cumsum(counts)
    index = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(starts, counts) + index * step


def _fill(offsets: Int64[np.ndarray, " documents_plus_1"], packing: Packing):
    """Row starts of ``fill``: a row takes all that fits, and a cut part where that is worth it.

    The loop turns once for the end of a document or of a row, whichever is rarer: the rows that
    lie wholly inside one document are counted, not visited.
    """
    capacity, overhead = packing.capacity, packing.segment_overhead
    # filled[j] - filled[i]: positions that the whole documents i..j-1 take.
    filled = (offsets + overhead * np.arange(len(offsets))).data
    ends = offsets.data
    num_documents, room_of_row = len(ends) - 1, packing.seq_length - packing.row_overhead
    runs, counts = array("q"), array("q")
    place = document = 0
    while document < num_documents:
        left = ends[document + 1] - place
        if left > capacity:
            full = (left - 1) // capacity
            runs.append(place)
            counts.append(full)
            place += full * capacity
        # Now the rest of this document fits; so may some more.
        runs.append(place)
        counts.append(1)
        limit = room_of_row + place + overhead * document
        document += 1
        while document < num_documents and filled[document + 1] <= limit:
            document += 1
        place = ends[document]
        if document < num_documents:
            room = limit - filled[document] - overhead
            if room >= packing.shortest_cut:
                place += room
    return _ranges(np.frombuffer(runs, np.int64), np.frombuffer(counts, np.int64), capacity)


def _complete(source: TokenSource, offsets: Int64[np.ndarray, " documents_plus_1"], packing):
    """Row starts of ``complete``: a row takes as many whole sentences as fit.

    For each sentence of a block the first one that no longer fits in a row begun there is found
    by bisection, all at once; the rows are then the chain from one to the next.
    """
    num_tokens, place = int(offsets[-1]), 0
    starts = array("q")
    while place < num_tokens:
        stop = min(num_tokens, place + max(_BLOCK_TOKENS, 2 * packing.seq_length))
        bounds = _atoms(source, offsets, place, stop, packing.capacity)
        document = np.searchsorted(offsets, bounds[:-1], side="right") - 1
        # Positions used from the block's start to the end of each atom, and from atom i on.
        used = bounds[1:] + packing.segment_overhead * document
        limit = bounds[:-1] + packing.segment_overhead * document + packing.capacity
        following = np.searchsorted(used, limit, side="right").data
        index, end, places = 0, len(bounds) - 1, bounds.data
        # A row that reaches the block's end may go on behind it: the next block begins with it.
        while index < end and (following[index] < end or stop == num_tokens):
            starts.append(places[index])
            index = following[index]
        place = places[index]
    return np.frombuffer(starts, np.int64)


def _atoms(source: TokenSource, offsets, start: int, stop: int, capacity: int):
    """Bounds of what ``complete`` does not cut: sentences, the too long ones in full pieces."""
    flags = source.read_flags(start, stop)
    sentences = np.flatnonzero(flags & SENTENCE_START) + start
    documents = offsets[slice(*np.searchsorted(offsets, (start, stop)))]
    bounds = np.unique(np.concatenate([[start], sentences, documents, [stop]]))
    pieces = -(-np.diff(bounds) // capacity)
    return np.append(_ranges(bounds[:-1], pieces, capacity), stop)
