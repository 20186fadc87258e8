"""Checks of rows: what documents become, by the rows of a small stream of numbered tokens."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pairs import PairRows, Pairs
from bert_jax.data.shards import SENTENCE_START, WORD_START
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.data.windows import MemorySplit
from bert_jax.recipes.checks.expectation import Packed, Paired
from bert_jax.recipes.checks.findings import Finding, equal, within

_LENGTH = 64  # positions of a row
_SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
_FIRST = 5  # id of the stream's first token; the others count on
_SENTENCE = 7  # tokens of a sentence of running text
_DOCUMENTS = 1000
_DOCUMENT = 4 * _LENGTH  # tokens of a document that is cut into pairs
_ALONE = 10  # one of so many such documents has one sentence; the others' have one token each
_ROOM = _LENGTH - 3  # tokens of two segments


def check_rows(packing: Packing | Pairs, wanted: Packed | Paired, name: str) -> list[Finding]:
    """Cuts a small stream into rows, and looks where their tokens are from.

    The number of copies and the kind of masks are fields of the recipe that are compared; all else
    is counted.

    Args:
        packing: Of a phase; rows are shorter here.
        wanted: What is expected.
        name: Begins the findings' names.
    """
    short: Any = dataclasses.replace(packing, seq_length=_LENGTH)
    if isinstance(wanted, Packed):
        if not isinstance(short, Packing):
            return [equal(f"{name}: rows", "running text", "pairs")]
        seen = _packed(short)
        return [
            equal(f"{name}: several documents a row", wanted.several, seen.several),
            equal(f"{name}: attention between documents", wanted.crossed, seen.crossed),
            equal(f"{name}: rows end", wanted.cut, seen.cut),
            equal(f"{name}: ends of documents lost", wanted.lost, seen.lost),
        ]
    if not isinstance(short, Pairs):
        return [equal(f"{name}: rows", "pairs", "running text")]
    return _pairs(short, wanted, name)


@functools.cache
def _packed(packing: Packing) -> Packed:
    """What rows of running text show."""
    lengths = _SENTENCE * np.random.default_rng(0).integers(1, 21, _DOCUMENTS)
    split = _split(lengths, np.arange(lengths.sum()) % _SENTENCE == 0)
    rows = Rows.build(split, packing, _SPECIAL)
    taken = rows.take(np.arange(len(rows)))
    place = taken["input_ids"].astype(np.int64) - _FIRST  # negative at special tokens
    text = place >= 0
    document = _document(split, place)
    segments = taken["segment_ids"]
    several = crossed = False
    for row, there in enumerate(text):
        of_row = document[row, there]
        several |= len(set(of_row)) > 1
        crossed |= len(set(of_row)) > len(set(segments[row, there]))
    last = place.max(axis=1)
    inside = bool(((last + 1) % _SENTENCE).any())
    return Packed(
        several=several,
        crossed=crossed,
        cut="anywhere" if inside else "between sentences",
        lost=int(text.sum()) < split.num_tokens,
    )


def _split(lengths: Int[np.ndarray, " documents"], sentences: np.ndarray) -> MemorySplit:
    """Documents of numbered tokens; ``sentences`` says which tokens begin one."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flags = WORD_START + SENTENCE_START * sentences
    tokens = np.arange(offsets[-1]) + _FIRST
    return MemorySplit(tokens.astype(np.uint32), flags.astype(np.uint8), offsets)


def _document(split: MemorySplit, place: np.ndarray) -> np.ndarray:
    """Number of the document of each place."""
    return np.searchsorted(split.document_offsets, place, side="right") - 1


class _Seconds(NamedTuple):
    """Second segments of pairs, one entry a row.

    Attributes:
        kinds: behind, before, other, none.
        labels: Labels, or none.
        document: Document of the first segment.
        whole: Whether the row began far from that document's end, which has many sentences.
        short: Whether the row is not filled.
        masks: Whether its masks are fixed.
    """

    kinds: np.ndarray
    labels: np.ndarray | None
    document: np.ndarray
    whole: np.ndarray
    short: np.ndarray
    masks: str


def _pairs(packing: Pairs, wanted: Paired, name: str) -> list[Finding]:
    seen = _seconds(packing)
    kinds = seen.kinds[seen.whole]
    found = [
        within(f"{name}: second segments {kind}", share, float((kinds == kind).mean()), 0.03)
        for kind, share in wanted.seconds.items()
    ]
    labels = {}
    if seen.labels is not None:
        for kind in sorted(set(seen.kinds.tolist())):
            labels[kind] = set(seen.labels[seen.kinds == kind].tolist())
    expected = {kind: {label} for kind, label in sorted(wanted.labels.items())}
    found.append(equal(f"{name}: labels of second segments", expected, labels))
    of_one = set(seen.kinds[seen.document % _ALONE == 0].tolist())
    found.append(equal(f"{name}: second segment to one sentence", {wanted.of_one}, of_one))
    # The first row of each document whose length is not another document's affair.
    plain = np.flatnonzero(seen.whole & (seen.kinds != "other"))
    _, first = np.unique(seen.document[plain], return_index=True)
    share = float(seen.short[plain[first]].mean())
    return [
        *found,
        within(f"{name}: documents in short rows", wanted.short, share, 0.025),
        equal(f"{name}: copies of the corpus", wanted.copies, packing.copies),
        equal(f"{name}: masks of a pair", wanted.masks, seen.masks),
    ]


@functools.cache
def _seconds(packing: Pairs) -> _Seconds:
    """What pairs show."""
    place = np.arange(_DOCUMENTS * _DOCUMENT)
    alone = (place // _DOCUMENT) % _ALONE == 0
    split = _split(np.full(_DOCUMENTS, _DOCUMENT), ~alone | (place % _DOCUMENT == 0))
    rows = PairRows.build(split, packing, _SPECIAL, seed=0)
    taken = rows.take(np.arange(len(rows)))
    place = taken["input_ids"].astype(np.int64) - _FIRST
    of_b = (taken["token_type_ids"] == 1) & (place >= 0)
    a, b = place[:, 1], place[np.arange(len(place)), of_b.argmax(axis=1)]
    document = _document(split, a)
    kinds = np.where(b > a, "behind", "before")
    kinds = np.where(_document(split, b) == document, kinds, "other")
    kinds = np.where(of_b.any(axis=1), kinds, "none")
    begin = np.where(kinds == "before", b, a)
    left = split.document_offsets[document + 1] - begin
    return _Seconds(
        kinds=kinds,
        labels=taken.get("pair_labels"),
        document=document,
        whole=(document % _ALONE > 0) & (left >= _ROOM),
        short=(taken["segment_ids"] != 0).sum(axis=1) < _LENGTH,
        masks="fixed" if "mask_ids" in taken else "fresh",
    )
