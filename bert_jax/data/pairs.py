"""Rows of two segments: next sentence prediction, sentence order, or two halves of a text.

A row, of the BERT and of the RoBERTa family::

    bert     [CLS] A A A [SEP] B B [SEP] [PAD]      token_type_ids 0 0 0 0 0 1 1 1 0
    roberta  <s> A A A </s> </s> B B </s> <pad>     token_type_ids 0 0 0 0 0 0 0 0 0 0
                                                    segment_ids    1 1 1 1 1 1 1 1 1 0

A row is one pair, and the rest of it padding. ``pair_table`` says which tokens A and B are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int64, Integer, Shaped

from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pair_table import PairTable, PairTables
from bert_jax.data.shards import WORD_START
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.data.windows import TokenSource, Windows

Kind = Literal["next", "order", "order_or_next", "contiguous"]
Masks = Literal["fixed", "fresh"]

# Of pairs that are held out: the same in every run, whatever its seed.
HELD_OUT_SEED = 0
_CHUNK_POSITIONS = 1 << 17  # worked on in one go, so that temporary arrays stay in the cache
_LABELLED = {"next": "random", "order": "swapped", "order_or_next": "swapped or random"}


@dataclass(frozen=True)
class Pairs:
    """How documents become pairs of segments. The defaults are BERT's.

    Attributes:
        seq_length: Positions a row, special tokens included; at least 8.
        kind: What B is, and what the label of the pair says.
            ``next`` (BERT): label 0, B follows A; label 1, B is of another document. A chunk of
            one sentence always gets a random B, so labels of 1 are a little more than half.
            ``order``: A and B follow each other in one document; label 1, they are swapped. A
            chunk is not closed before its second sentence; documents of one sentence are skipped.
            ``order_or_next`` (ALBERT as it was released): like it, but a chunk of one sentence
            gets a random B, and label 1 as well.
            ``contiguous`` (ELECTRA): text cut in two near its middle, without a label.
        short_prob: Chance of a shorter target length, uniform from 2 tokens up: of a document, as
            in BERT's and ALBERT's scripts; of a pair, and from 5 up, if ``contiguous`` (.05 in
            ELECTRA's script).
        single_prob: Chance of a row with one segment, in ``contiguous`` only.
        copies: How many times the corpus is cut into pairs (``dupe_factor``: 10 in BERT, 40 in
            ALBERT; ELECTRA's script makes one); epoch e has the pairs of copy e modulo copies.
            None: new pairs in every epoch; to resume in one, those of the epochs before it are
            counted, a few million sentences a second.
        masks: ``fixed``: a pair is masked in the same way each time it comes, as where masks are
            written with the data (BERT, ALBERT). ``fresh``: anew each time (ELECTRA).
    """

    seq_length: int = 128
    kind: Kind = "next"
    short_prob: float = 0.1
    single_prob: float = 0.1
    copies: int | None = 10
    masks: Masks = "fixed"

    def __post_init__(self):
        for name, value, choices in (("kind", self.kind, Kind), ("masks", self.masks, Masks)):
            if value not in get_args(choices):
                raise ValueError(
                    f"packing {name} must be one of {get_args(choices)}; got {value!r}."
                )
        if not 8 <= self.seq_length < 2**20:
            raise ValueError(
                f"packing seq_length of pairs must be at least 8 (two segments and their special "
                f"tokens) and below 2**20; got {self.seq_length}."
            )
        for name in ("short_prob", "single_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"packing {name} is a probability, in [0, 1]; got {getattr(self, name)}."
                )
        if self.copies is not None and self.copies < 1:
            raise ValueError(
                f"packing copies must be at least 1, or None for new pairs in every epoch; got "
                f"{self.copies}."
            )
        if self.copies is None and self.masks == "fixed":
            raise ValueError(
                "packing masks cannot be 'fixed' with copies None, as no pair comes twice: set "
                "masks to 'fresh', or copies to a number."
            )

    @property
    def labelled(self) -> bool:
        """Whether pairs have a label."""
        return self.kind != "contiguous"


def pair_overhead(special: SpecialTokens) -> int:
    """Special tokens of a row with two segments: RoBERTa's family has two between them."""
    return 3 if special.family == "bert" else 4


class PairRows:
    """The pairs of a split, of one copy: a fixed sequence, of which any may be taken.

    Attributes:
        packing: How they were made.
        special: The ids of the special tokens.
        table: Which tokens each pair has.
    """

    def __init__(
        self,
        source: TokenSource,
        packing: Pairs,
        special: SpecialTokens,
        tables: PairTables,
        copy: int,
    ):
        """Use `PairRows.build`."""
        self.packing = packing
        self.special = special
        self.table: PairTable = tables.table(copy)
        self._source = source
        self._windows = Windows(source)
        self._tables = tables
        self._copy = copy
        fixed = packing.masks == "fixed"
        self._first_id = sum(tables.size(c) for c in range(copy)) if fixed else 0

    @classmethod
    def build(
        cls, source: TokenSource, packing: Pairs, special: SpecialTokens, *, seed: int
    ) -> PairRows:
        """Cuts a split into pairs, and returns those of copy 0.

        Args:
            source: A split of a store, or anything else with its attributes.
            packing: Row length and kind of pairs.
            special: The tokenizer's special tokens.
            seed: Another one gives other pairs; `HELD_OUT_SEED` for a held-out split.

        Raises:
            ValueError: If B would come from another document, and there is only one; or the seed
                is not in [0, 2**63).
        """
        tables = PairTables(source, packing, pair_overhead(special), seed)
        return cls(source, packing, special, tables, 0)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def copies(self) -> int | None:
        """After how many epochs the same pairs come again; None: never."""
        return self.packing.copies

    def copy(self, index: int) -> PairRows:
        """The pairs of another copy; a pass over the sentences, unless it was one of the last."""
        if index == self._copy:
            return self
        return PairRows(self._source, self.packing, self.special, self._tables, index)

    def size(self, index: int) -> int:
        """The number of pairs of a copy, without making them."""
        return self._tables.size(index)

    def take(
        self, indices: Int64[np.ndarray, " n"], *, words: bool = False
    ) -> dict[str, Shaped[np.ndarray, "n ..."]]:
        """Returns the pairs of the given numbers, in the order given.

        Args:
            indices: Numbers in ``[0, len(self))``; the same one may come twice.
            words: Whether to return ``word_ids`` as well.

        Returns:
            int32 [n, seq_length]: ``input_ids``; ``segment_ids``, 1, and 0 on padding;
            ``position_ids``, 0 on padding; ``token_type_ids``, 1 on B and its separator (0 in
            RoBERTa's family); and ``word_ids``, which count words from 0 in the row (-1 on special
            tokens and padding). If there are labels: ``pair_labels``, int32 [n]. If masks are
            fixed: ``mask_ids``, uint32 [n], the number of the pair among those of all copies.

        Raises:
            ValueError: If an index is out of range.
        """
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise ValueError(
                f"Row numbers must lie in [0, {len(self)}); got {indices.min()} to {indices.max()}."
            )
        names = ["input_ids", "segment_ids", "position_ids", "token_type_ids"]
        shape = (len(indices), self.packing.seq_length)
        out = {name: np.empty(shape, np.int32) for name in names + ["word_ids"] * words}
        step = max(1, _CHUNK_POSITIONS // shape[1])
        for start in range(0, len(indices), step):
            part = slice(start, start + step)
            self._write({name: array[part] for name, array in out.items()}, indices[part])
        if self.packing.labelled:
            out["pair_labels"] = self.table.labels[indices].astype(np.int32)
        if self.packing.masks == "fixed":
            return out | {"mask_ids": (self._first_id + indices).astype(np.uint32)}
        return out

    def _write(
        self, out: dict[str, Integer[np.ndarray, "n seq_length"]], rows: Int64[np.ndarray, " n"]
    ) -> None:
        """Writes the arrays of a few rows."""
        length, table = self.packing.seq_length, self.table
        a_len, b_len = (array[rows].astype(np.int32) for array in (table.a_len, table.b_len))
        # Places: of the separator behind A, of B's first token, of the last separator.
        middle = 1 + a_len
        begin = middle + pair_overhead(self.special) - 2
        end = np.where(b_len > 0, begin + b_len, middle)
        column = np.arange(length, dtype=np.int32)
        of_a = (column > 0) & (column < middle[:, None])
        of_b = (column >= begin[:, None]) & (column < end[:, None])
        real = column <= end[:, None]
        # Tokens from the windows of A and B side by side; elsewhere the source is arbitrary.
        width = max(1, int(max(a_len.max(), b_len.max())))
        shift = np.where(column < middle[:, None], np.int32(-1), (width - begin)[:, None])
        shift += column
        sources = (np.arange(len(rows)) * (2 * width))[:, None] + shift
        starts = [array[rows].astype(np.int64) for array in (table.a_start, table.b_start)]

        def gather(windows) -> np.ndarray:
            both = np.concatenate([windows(start, width) for start in starts], axis=1)
            return both.reshape(-1).take(sources, mode="clip")

        inside = of_a | of_b
        input_ids = out["input_ids"]
        input_ids[:] = np.where(real, self.special.sep, self.special.pad)
        np.copyto(input_ids, gather(self._windows.tokens), where=inside, casting="unsafe")
        input_ids[:, 0] = self.special.cls
        out["segment_ids"][:] = real
        np.multiply(column, real, out=out["position_ids"])
        second = self.special.family == "bert"
        out["token_type_ids"][:] = real & (column > middle[:, None]) if second else 0
        if "word_ids" in out:
            begins = (gather(self._windows.flags) & WORD_START).astype(bool)
            self._write_word_ids(out["word_ids"], begins, inside, begin)

    def _write_word_ids(
        self,
        out: Integer[np.ndarray, "n seq_length"],
        begins: Bool[np.ndarray, "n seq_length"],
        inside: Bool[np.ndarray, "n seq_length"],
        begin: Integer[np.ndarray, " n"],
    ) -> None:
        """Counts the words of each row from the marks at their first tokens."""
        begins[:, 1] = True  # A's first, also where its word was cut
        begins[np.arange(len(begin)), np.minimum(begin, begins.shape[1] - 1)] = True
        begins &= inside
        np.cumsum(begins, axis=1, dtype=np.int32, out=out)
        out -= 1
        out[~inside] = -1

    @property
    def efficiency(self) -> float:
        """Fraction of all positions that hold corpus or special tokens, not padding."""
        specials = pair_overhead(self.special) * len(self)
        specials -= (pair_overhead(self.special) - 2) * np.count_nonzero(self.table.b_len == 0)
        return (self.table.num_tokens + int(specials)) / max(1, len(self) * self.packing.seq_length)

    @property
    def token_efficiency(self) -> float:
        """Fraction of all positions that hold corpus tokens."""
        return self.table.num_tokens / max(1, len(self) * self.packing.seq_length)

    def summary(self) -> str:
        """One line for the log: how many pairs, their labels, and how full."""
        table, packing = self.table, self.packing
        count = max(1, len(self))
        label = (
            f"{100 * int(table.labels.sum(dtype=np.int64)) / count:.1f} % {_LABELLED[packing.kind]}"
            if packing.labelled
            else f"{100 * np.count_nonzero(table.b_len == 0) / count:.1f} % with one segment"
        )
        which = "new every epoch" if packing.copies is None else f"1 of {packing.copies} copies"
        line = (
            f"{len(self):,} pairs of {packing.seq_length} ({packing.kind}, {which}), {label}, "
            f"{100 * self.efficiency:.1f} % full ({100 * self.token_efficiency:.1f} % corpus "
            f"tokens, {table.num_tokens / count:.1f} a pair)"
        )
        if table.truncated_tokens:
            line += f"; {table.truncated_tokens:,} tokens truncated"
        if table.skipped_tokens:
            line += (
                f"; {table.skipped_documents:,} of {self._tables.sentences.num_documents:,} "
                f"documents and {table.skipped_tokens:,} tokens skipped, as one sentence is no pair"
            )
        return line


def build_rows(
    source: TokenSource, packing: Packing | Pairs, special: SpecialTokens, *, seed: int
) -> Rows | PairRows:
    """Cuts a split into packed rows or into pairs, whichever the packing says.

    Args:
        source: The split.
        packing: Row length and mode.
        special: The tokenizer's special tokens.
        seed: Of pairs; `HELD_OUT_SEED` for a held-out split. Packed rows do not depend on it.
    """
    if isinstance(packing, Pairs):
        return PairRows.build(source, packing, special, seed=seed)
    return Rows.build(source, packing, special)
