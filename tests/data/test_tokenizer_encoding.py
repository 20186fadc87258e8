"""Offsets and cuts against slow implementations."""

import random

import numpy as np
import pytest

from bert_jax.data.tokenizer_encoding import (
    Encoding,
    as_pairs,
    number_words,
    offset_array,
    starts_after_marks,
    trim,
    trim_in_words,
    truncate,
)


def _trim_slowly(start: int, end: int, text: str) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def test_trim_equals_a_loop():
    generator = random.Random(0)
    spaces = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    for _ in range(300):
        text = "".join(
            generator.choice([*spaces, *"ab\u4e2d\U0001f917"]) if generator.random() < 0.9 else "  "
            for _ in range(generator.randrange(1, 20))
        )
        cuts = [sorted(generator.choices(range(len(text) + 1), k=2)) for _ in range(5)]
        offsets = np.array(cuts, np.int64)
        trimmed = trim(offsets, text, np.zeros(5, bool))
        assert as_pairs(trimmed) == [_trim_slowly(start, end, text) for start, end in cuts]
    nothing = np.zeros((0, 2), np.int64)
    assert trim(nothing, "abc", np.zeros(0, bool)).shape == (0, 2)
    assert trim(nothing, "", np.zeros(0, bool)).shape == (0, 2)


def test_tokens_that_are_spaces_are_empty():
    offsets = np.array([[0, 1], [0, 3], [3, 5], [5, 7]], np.int64)
    trimmed = trim(offsets, "abc  de", np.array([True, False, True, False]))
    assert as_pairs(trimmed) == [(0, 0), (0, 3), (5, 5), (5, 7)]


def test_trim_in_words_counts_from_each_word():
    words, given = [" the", "", " cat"], ["the", "", "cat"]
    offsets = np.array([[0, 4], [0, 1], [0, 2], [2, 4]], np.int64)
    trimmed = trim_in_words(
        offsets, [0, 2, 2, 2], words, given, np.array([False, True, False, False])
    )
    assert as_pairs(trimmed) == [(0, 3), (0, 0), (0, 1), (1, 3)]


def test_offset_array():
    pairs = [(0, 1), (5, 9)]
    assert offset_array(pairs).tolist() == [[0, 1], [5, 9]]
    assert as_pairs(offset_array(pairs)) == pairs
    assert offset_array([]).shape == (0, 2)
    assert as_pairs(offset_array([])) == []


def test_number_words_in_each_sequence():
    starts = np.array([False, True, False])
    ids = [0, 0, 2, 1, 0, 0, 1, 1, 0]
    sequences = [None, 0, 0, 0, 0, None, 1, 1, None]
    expected = [None, 0, 0, 1, 1, None, 0, 1, None]
    assert number_words(sequences, starts[ids]) == expected


def test_words_start_at_marks_where_tokens_allow():
    """Marks, a token of spaces before one, a character in two tokens, an empty token."""
    text = "a-b \u4e2d\u6587c, (x"
    spans = [
        (0, 1), (1, 2), (2, 3), (4, 4), (4, 5), (4, 5), (5, 6), (6, 7), (7, 8), (9, 10), (10, 11)
    ]  # fmt: skip
    offsets, is_space = offset_array(spans), np.array([span == (4, 4) for span in spans])
    both = starts_after_marks(offsets, text, is_space, marks="cjk and punctuation")
    assert np.flatnonzero(both).tolist() == [1, 2, 6, 7, 8, 9, 10]
    cjk = starts_after_marks(offsets, text, is_space, marks="cjk")
    assert np.flatnonzero(cjk).tolist() == [6, 7]
    assert not starts_after_marks(offsets[:1], text, is_space[:1], marks="cjk").any()


@pytest.mark.parametrize(
    "characters, expected",
    [
        ("$+<=>^`|~!_\u3002\u00bf\u2014", True),
        ("\u4e00\u9fff\u3400\uf900\U00020000\U0002fa1f", True),
        ("a1\u00e9\u3042\u30a2\uac00\u20ac\U0001f600\u4dc0\U0002fa20\U0010ffff", False),
    ],
)
def test_marks_are_those_of_bert(characters, expected):
    """Its tokenization.py: not kana, Hangul, currency signs and emoji."""
    for character in characters:
        text = f"a{character}"
        offsets = offset_array([(0, 1), (1, 2)])
        starts = starts_after_marks(offsets, text, np.zeros(2, bool), marks="cjk and punctuation")
        assert starts.tolist() == [False, expected], character


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("second", range(8))
def test_truncate_one_token_at_a_time(first, second):
    sequences = [None, *[0] * first, None, None, *[1] * second, None]
    tokens = list(range(len(sequences)))
    whole = Encoding(tokens, tokens, [(i, i) for i in tokens], list(tokens), tokens)
    for max_length in range(4, 21):
        x, y = first, second
        while x + y + 4 > max_length:
            cut_first = x > y or (x == y and first <= second)
            x, y = (x - 1, y) if cut_first else (x, y - 1)
        expected = [0, *range(1, 1 + x), *range(1 + first, 3 + first)]
        expected += [*range(3 + first, 3 + first + y), len(sequences) - 1]
        cut = truncate(whole, sequences, max_length)
        assert cut.ids == cut.type_ids == cut.word_ids == cut.special_mask == expected
        assert cut.offsets == [(i, i) for i in expected]
    with pytest.raises(ValueError, match="max_length 3 has no room for the 4 special tokens"):
        truncate(whole, sequences, 3)
