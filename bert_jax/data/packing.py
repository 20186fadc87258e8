"""Rows of fixed length out of documents: what a row holds, and how it is laid out in arrays.

A row's positions with ``attend="document"`` and with ``attend="row"`` (A, B: two documents)::

    document   [CLS] A A A [SEP] [CLS] B B B B [SEP] [PAD]      segment_ids  1 1 1 1 1 2 2 2 2 2 2 0
                                                                position_ids 0 1 2 3 4 0 1 2 3 4 5 0
    row        <s> A A A </s> B B B B </s> <pad> <pad>          segment_ids  1 1 1 1 1 1 1 1 1 1 0 0
                                                                position_ids 0 1 2 3 4 5 6 7 8 9 0 0

The second is RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2): attention crosses documents,
a separator stands between them. ``row_table`` says which tokens a row has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt8

from bert_jax.data.row_table import RowTable, build_table
from bert_jax.data.shards import WORD_START
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.data.windows import TokenSource, Windows

# Positions worked on in one go: large enough that numpy's calls are few, small enough that the
# memory of its temporary arrays is used again.
_CHUNK_POSITIONS = 1 << 17

Mode = Literal["fill", "complete", "document", "truncate"]
Attend = Literal["document", "row"]


@dataclass(frozen=True)
class Packing:
    """How documents become rows.

    Attributes:
        seq_length: Positions a row, special tokens included; at least 3.
        mode: What may be cut.
            ``fill``: running text; a document is cut where the row ends and goes on in the next
            row, as a segment of its own. A cut leaves at least ``shortest_cut`` tokens of the
            document in the row; if less room is left the rest of the row is padding.
            ``complete``: like it, but cut only between sentences (fairseq's mode of this name). A
            sentence longer than ``capacity`` begins a row and is cut into full pieces.
            ``document``: each row holds one document; a longer one continues in rows of its own.
            ``truncate``: one row a document; what does not fit is dropped, and counted.
            In all but ``truncate`` every token is in exactly one row.
        attend: ``document``: each segment is ``[CLS] tokens [SEP]``, with its own segment id and
            positions from 0. ``row``: ``<s>`` once, ``</s>`` at the end of each document and of
            the row; one segment id, positions run through.
    """

    seq_length: int = 512
    mode: Mode = "fill"
    attend: Attend = "document"

    def __post_init__(self):
        if self.mode not in get_args(Mode):
            raise ValueError(f"packing mode must be one of {get_args(Mode)}; got {self.mode!r}.")
        if self.attend not in get_args(Attend):
            raise ValueError(
                f"packing attend must be one of {get_args(Attend)}; got {self.attend!r}."
            )
        if not 3 <= self.seq_length < 2**20:
            raise ValueError(
                f"packing seq_length must be at least 3 (a token between two specials) and below "
                f"2**20; got {self.seq_length}."
            )

    @property
    def row_overhead(self) -> int:
        """Special tokens a row has however many segments it holds."""
        return 1 if self.attend == "row" else 0

    @property
    def segment_overhead(self) -> int:
        """Special tokens each segment adds to its row."""
        return 1 if self.attend == "row" else 2

    @property
    def capacity(self) -> int:
        """Corpus tokens in a row of one segment, at most."""
        return self.seq_length - 2

    @property
    def shortest_cut(self) -> int:
        """Tokens of a document that ``fill`` puts before a cut, at least.

        Eight in a segment on its own: with fewer there is hardly one to mask, nor a context for
        it. With ``attend="row"`` the whole row is the context, so one is worth its place.
        """
        return min(8, self.capacity) if self.attend == "document" else 1


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where the segments of a few rows lie; "place" counts positions over all those rows.

    Attributes:
        segment_ids: Number of each segment in its row, from 1 (with ``attend="row"`` always 1).
        origins: Place whose position id is 0, for each segment.
        first: Place of each segment's first corpus token.
        sources: Where in the rows' token windows, laid end to end, that token is.
        cls: Places of the classification tokens.
        sep: Places of the separators.
        pad: Places of the padding.
        run_lengths: Positions of each segment and, after a row's last, of its padding.
        run_of_segment: Which of the runs each segment is.
    """

    segment_ids: Int64[np.ndarray, " segments"]
    origins: Int64[np.ndarray, " segments"]
    first: Int64[np.ndarray, " segments"]
    sources: Int64[np.ndarray, " segments"]
    cls: Int64[np.ndarray, " cls"]
    sep: Int64[np.ndarray, " segments"]
    pad: Int64[np.ndarray, " pad"]
    run_lengths: Int64[np.ndarray, " runs"]
    run_of_segment: Int64[np.ndarray, " segments"]

    def spread(self, values, dtype) -> np.ndarray:
        """One value a segment to one a position; zero on padding."""
        runs = np.zeros(len(self.run_lengths), dtype)
        runs[self.run_of_segment] = values
        return np.repeat(runs, self.run_lengths)


class Rows:
    """The rows of a split: a fixed sequence of them, of which any may be taken.

    Attributes:
        packing: How they were cut.
        special: The ids of the special tokens.
        table: Which tokens each row has.
    """

    def __init__(
        self, source: TokenSource, packing: Packing, special: SpecialTokens, table: RowTable
    ):
        self.packing = packing
        self.special = special
        self.table = table
        self._windows = Windows(source)

    @classmethod
    def build(cls, source: TokenSource, packing: Packing, special: SpecialTokens) -> Rows:
        """Cuts a split into rows.

        Args:
            source: A split of a store, or anything else with its attributes.
            packing: Row length and mode.
            special: The tokenizer's special tokens.
        """
        return cls(source, packing, special, build_table(source, packing))

    def __len__(self) -> int:
        return len(self.table.starts)

    @property
    def copies(self) -> int | None:
        """After how many epochs the same rows come again: they are the same in each."""
        return 1

    def copy(self, index: int) -> Rows:
        """The rows of an epoch, which are these."""
        del index
        return self

    def size(self, index: int) -> int:
        """The number of rows of an epoch."""
        del index
        return len(self)

    def take(
        self, indices: Int64[np.ndarray, " n"], *, words: bool = False
    ) -> dict[str, Int32[np.ndarray, "n seq_length"]]:
        """Returns the rows of the given numbers, in the order given.

        A thousand rows or more a call are fastest.

        Args:
            indices: Row numbers in ``[0, len(self))``; the same one may come twice.
            words: Whether to return ``word_ids`` as well.

        Returns:
            ``input_ids``; ``segment_ids``, 0 on padding; ``position_ids``, 0 on padding; and
            ``word_ids``, which count words from 0 in the row (-1 on special tokens and padding).
            What follows a cut inside a word counts as a word of its own in its row.

        Raises:
            ValueError: If an index is out of range.
        """
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise ValueError(
                f"Row numbers must lie in [0, {len(self)}); got {indices.min()} to {indices.max()}."
            )
        names = ["input_ids", "segment_ids", "position_ids"] + ["word_ids"] * words
        length, capacity = self.packing.seq_length, self.packing.capacity
        out = {name: np.empty((len(indices), length), np.int32) for name in names}
        if not len(indices):
            return out
        starts = self.table.starts[indices]
        tokens = self._windows.tokens(starts, capacity)
        flags = self._windows.flags(starts, capacity) if words else None
        step = max(1, _CHUNK_POSITIONS // length)
        for start in range(0, len(indices), step):
            part = slice(start, start + step)
            self._write(
                {name: array[part].reshape(-1) for name, array in out.items()},
                self._layout(indices[part]),
                tokens[part].reshape(-1),
                None if flags is None else flags[part].reshape(-1),
            )
        return out

    def _write(
        self,
        out: dict[str, Int32[np.ndarray, " positions"]],
        layout: _Layout,
        tokens: Integer[np.ndarray, " sources"],
        flags: UInt8[np.ndarray, " sources"] | None,
    ) -> None:
        """Writes the arrays of a few rows, flat, from their windows of the stream."""
        places = np.arange(len(out["input_ids"]))
        sources = places + layout.spread(layout.sources - layout.first, np.int64)
        # mode="clip": at special tokens and padding the source is arbitrary, and overwritten below.
        input_ids = out["input_ids"]
        input_ids[:] = tokens.take(sources, mode="clip")
        input_ids[layout.cls] = self.special.cls
        input_ids[layout.sep] = self.special.sep
        input_ids[layout.pad] = self.special.pad
        out["segment_ids"][:] = layout.spread(layout.segment_ids, np.int32)
        np.subtract(
            places.astype(np.int32),
            layout.spread(layout.origins, np.int32),
            out=out["position_ids"],
        )
        out["position_ids"][layout.pad] = 0
        if flags is not None:
            begins = flags.take(sources, mode="clip") & WORD_START
            self._write_word_ids(out["word_ids"], begins, layout)

    def _layout(self, rows: Int64[np.ndarray, " n"]) -> _Layout:
        """Cuts each row's interval of the stream at the ends of documents and places the parts."""
        table, packing = self.table, self.packing
        length, capacity = packing.seq_length, packing.capacity
        counts = table.segments[rows].astype(np.int64)
        head = np.cumsum(counts) - counts  # the first segment of each row
        row = np.repeat(np.arange(len(rows)), counts)
        ordinal = np.arange(len(row)) - head[row]
        document = table.documents[rows][row].astype(np.int64) + ordinal
        row_start = table.starts[rows]
        row_stop = row_start + table.lengths[rows]
        start = np.maximum(table.offsets[document], row_start[row])
        tokens = np.minimum(table.offsets[document + 1], row_stop[row]) - start

        alone = packing.attend == "document"
        before = np.ones_like(row) if alone else (ordinal == 0).astype(np.int64)
        width = before + tokens + 1
        end = np.cumsum(width)
        begin = end - width
        begin += row * length - begin[head][row]
        used = begin[head + counts - 1] + width[head + counts - 1] - np.arange(len(rows)) * length
        padding = length - used

        run_of_segment = np.arange(len(row)) + row
        run_lengths = np.empty(len(row) + len(rows), np.int64)
        run_lengths[run_of_segment] = width
        run_lengths[head + counts + np.arange(len(rows))] = padding
        pad = np.arange(padding.sum()) + np.repeat(
            np.arange(1, len(rows) + 1) * length - np.cumsum(padding), padding
        )
        return _Layout(
            segment_ids=ordinal + 1 if alone else np.ones_like(row),
            origins=begin if alone else row * length,
            first=begin + before,
            sources=row * capacity + start - row_start[row],
            cls=begin[before == 1],
            sep=begin + width - 1,
            pad=pad,
            run_lengths=run_lengths,
            run_of_segment=run_of_segment,
        )

    def _write_word_ids(
        self,
        out: Int32[np.ndarray, " positions"],
        begins: UInt8[np.ndarray, " positions"],
        layout: _Layout,
    ) -> None:
        """Counts the words of each row from the marks at their first tokens."""
        nowhere = np.concatenate([layout.cls, layout.sep, layout.pad])
        begins[nowhere] = 0
        begins[layout.first] = 1  # also where a cut went through a word
        shape = (-1, self.packing.seq_length)
        np.cumsum(begins.reshape(shape), axis=1, out=out.reshape(shape))
        out -= 1
        out[nowhere] = -1

    @property
    def num_tokens(self) -> int:
        """Corpus tokens in all rows."""
        return int(self.table.lengths.sum(dtype=np.int64))

    @property
    def num_segments(self) -> int:
        """Segments in all rows."""
        return int(self.table.segments.sum(dtype=np.int64))

    @property
    def dropped(self) -> int:
        """Corpus tokens in no row; 0 unless the mode is ``truncate``."""
        return self.table.dropped

    @property
    def efficiency(self) -> float:
        """Fraction of all positions that hold corpus or special tokens, not padding."""
        specials = self.num_segments * self.packing.segment_overhead
        specials += len(self) * self.packing.row_overhead
        return (self.num_tokens + specials) / max(1, len(self) * self.packing.seq_length)

    @property
    def token_efficiency(self) -> float:
        """Fraction of all positions that hold corpus tokens."""
        return self.num_tokens / max(1, len(self) * self.packing.seq_length)

    def summary(self) -> str:
        """One line for the log: how many rows, and how full."""
        packing = self.packing
        line = (
            f"{len(self):,} rows of {packing.seq_length} ({packing.mode}, attend "
            f"{packing.attend}), {100 * self.efficiency:.1f} % full "
            f"({100 * self.token_efficiency:.1f} % corpus tokens), "
            f"{self.num_segments / max(1, len(self)):.2f} segments a row"
        )
        return line + (f"; {self.dropped:,} tokens dropped" if self.dropped else "")
