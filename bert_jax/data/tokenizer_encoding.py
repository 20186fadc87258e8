"""Tokenised texts: what is known of each token, where it lies in its text and in which word."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt32

# Characters that are words of their own in BERT's splitter (google-research/bert, tokenization.py,
# `_is_chinese_char` and `_is_punctuation`).
_CJK = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_ASCII_SYMBOLS = "$+<=>^`|~"  # beside the punctuation of Unicode
_TABLE = 0x2FA20  # no such character lies above

# All white space of Unicode lies below U+3001 (U+3000 is the last).
_SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A tokenised text or pair of texts; all lists have one element a token.

    Attributes:
        ids: Token ids.
        type_ids: 0, and 1 for the second text of a pair in the families that mark it.
        offsets: (start, end) in characters of the original text (of the given word, for pre-split
            words), without the spaces around the token; (0, 0) for tokens the tokenizer added.
        word_ids: Number of the token's word in its text, from 0; None for tokens the tokenizer
            added. Words are the given ones, or else runs of letters and single punctuation marks
            and CJK characters. In detail: WordPiece and byte-level BPE have the words their
            pre-tokenizer splits (in the latter a space opens a word and marks in a row are one);
            unigram splits at spaces, and at the marks; CJK characters are words of their own
            everywhere, as far as tokens allow.
        special_mask: 1 for tokens the tokenizer added.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    special_mask: list[int]


class EncodedArrays(NamedTuple):
    """A tokenised text without special tokens, as arrays.

    Attributes:
        ids: Token ids.
        word_start: Whether a token is the first of its word.
        offsets: Start and end of each in characters of the text.
    """

    ids: UInt32[np.ndarray, " tokens"]
    word_start: Bool[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, "tokens 2"]


def truncate(encoding: Encoding, sequences: Sequence[int | None], max_length: int) -> Encoding:
    """Drops the last tokens of the texts, not those the tokenizer added.

    Of a pair the longer text is cut first, down to the length of the shorter, then both.

    Args:
        encoding: What to cut.
        sequences: Which text of a pair each token is of; None: of none.
        max_length: Tokens to keep, added ones included.

    Raises:
        ValueError: There is not even room for the added tokens.
    """
    added = sequences.count(None)
    room = max_length - added
    if room < 0:
        raise ValueError(
            f"max_length {max_length} has no room for the {added} special tokens of a "
            f"{'pair' if 1 in sequences else 'text'}: raise it"
        )
    lengths = {number: sequences.count(number) for number in (0, 1)}
    if sum(lengths.values()) <= room:
        return encoding
    # As `tokenizers` and transformers do: of an odd number of tokens the longer text, or else the
    # second, gets one more.
    shorter, longer = sorted(lengths, key=lambda number: lengths[number])
    lengths[shorter] = min(lengths[shorter], room // 2)
    lengths[longer] = room - lengths[shorter]
    keep: list[int] = []
    for place, sequence in enumerate(sequences):
        if sequence is None or lengths[sequence] > 0:
            keep.append(place)
        if sequence is not None:
            lengths[sequence] -= 1
    fields = dataclasses.fields(encoding)
    return Encoding(*([getattr(encoding, field.name)[i] for i in keep] for field in fields))


def offset_array(offsets: Sequence[tuple[int, int]]) -> Int64[np.ndarray, "tokens 2"]:
    """The offsets as an array (faster than NumPy makes one of tuples)."""
    flat = itertools.chain.from_iterable(offsets)
    return np.fromiter(flat, np.int64, 2 * len(offsets)).reshape(-1, 2)


def trim(
    offsets: Int64[np.ndarray, "tokens 2"], text: str, is_space: Bool[np.ndarray, " tokens"]
) -> Int64[np.ndarray, "tokens 2"]:
    """Moves starts and ends over the spaces inside them; a token of spaces alone becomes empty.

    Args:
        offsets: Start and end of each token, in characters.
        text: The text they refer to.
        is_space: Which tokens are spaces alone. (One before the first word, where the text has
            none, is said to lie on that word's first character by `tokenizers`.)
    """
    if not len(offsets) or not text:
        return offsets
    spaces = _find_spaces(text)
    here = np.arange(len(text))
    # The first place from here on that is no space, and the last one up to here.
    following = np.where(spaces, len(text), here)
    following = np.append(np.minimum.accumulate(following[::-1])[::-1], len(text))
    preceding = np.maximum.accumulate(np.where(spaces, -1, here))
    starts = np.minimum(following[offsets[:, 0]], offsets[:, 1])
    ends = np.where(offsets[:, 1] > 0, preceding[offsets[:, 1] - 1] + 1, 0)
    return np.stack([starts, np.where(is_space, starts, np.maximum(starts, ends))], 1)


def trim_in_words(
    offsets: Int64[np.ndarray, "tokens 2"],
    words: Sequence[int | None],
    tokenised: Sequence[str],
    given: Sequence[str],
    is_space: Bool[np.ndarray, " tokens"],
) -> Int64[np.ndarray, "tokens 2"]:
    """The same for pre-split words, with offsets in the words as they were given.

    Args:
        offsets: Start and end of each token in its word as tokenised.
        words: The number of each token's word.
        tokenised: The words, some with a space put before them.
        given: The words as given.
        is_space: See `trim`.
    """
    if not len(offsets):
        return offsets
    lengths = np.array([len(word) for word in tokenised])
    bases = (np.cumsum(lengths) - lengths)[np.array(words, np.int64)][:, None]
    added = (lengths - [len(word) for word in given])[np.array(words, np.int64)][:, None]
    return np.maximum(trim(offsets + bases, "".join(tokenised), is_space) - bases - added, 0)


def as_pairs(offsets: Int64[np.ndarray, "tokens 2"]) -> list[tuple[int, int]]:
    """The offsets as a list of tuples."""
    starts, ends = offsets.T.tolist()
    return list(zip(starts, ends, strict=True))


def number_words(
    sequences: Sequence[int | None], starts: Bool[np.ndarray, " tokens"]
) -> list[int | None]:
    """Numbers words from 0, in each sequence anew.

    Args:
        sequences: Which text of a pair each token is of; None: of none.
        starts: Whether a token starts a word. (The first of a sequence does in any case.)

    Returns:
        The number of each token's word, None where the sequence is None.
    """
    words: list[int | None] = []
    numbers: dict[int, int] = {}
    for start, sequence in zip(starts.tolist(), sequences, strict=True):
        if sequence is None:
            words.append(None)
        else:
            first = sequence not in numbers
            numbers[sequence] = 0 if first else numbers[sequence] + start
            words.append(numbers[sequence])
    return words


def starts_after_marks(
    offsets: Int64[np.ndarray, "tokens 2"],
    text: str,
    is_space: Bool[np.ndarray, " tokens"],
    *,
    marks: Literal["cjk", "cjk and punctuation"],
) -> Bool[np.ndarray, " tokens"]:
    """Which tokens start a word because a mark stands before their start, or behind it.

    A token that holds part of a character starts none inside it, and one behind a token of spaces
    belongs to the word that the space opened.

    Args:
        offsets: Start and end of each token in the text, without spaces around it.
        text: The text.
        is_space: Which tokens are spaces alone.
        marks: Characters that are words of their own.
    """
    starts = np.zeros(len(offsets), bool)
    if len(offsets) < 2 or (marks == "cjk" and text.isascii()):
        return starts
    apart = _apart(marks)[np.minimum(_codes(text), _TABLE)]
    (begin, end), last = offsets[1:].T, offsets[:-1, 1]
    # Padded, for empty tokens at the text's ends.
    at_start, at_end = np.append(apart, False), np.append(False, apart)
    starts[1:] = (at_start[begin] & (end > begin)) | at_end[last]
    starts[1:] &= (begin >= last) & ~is_space[:-1]
    return starts


@functools.cache
def _apart(marks: Literal["cjk", "cjk and punctuation"]) -> Bool[np.ndarray, " codes"]:
    table = np.zeros(_TABLE + 1, bool)
    for low, high in _CJK:
        table[low : high + 1] = True
    if marks == "cjk and punctuation":
        table[[ord(character) for character in _ASCII_SYMBOLS]] = True
        for code in range(0x20000):  # no punctuation lies above
            table[code] |= unicodedata.category(chr(code)).startswith("P")
    return table


def _find_spaces(text: str) -> Bool[np.ndarray, " characters"]:
    return _SPACES[np.minimum(_codes(text), len(_SPACES) - 1)]


def _codes(text: str) -> UInt32[np.ndarray, " characters"]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
