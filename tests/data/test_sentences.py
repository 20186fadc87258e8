"""Sentence starts: the documented rule on hand-made cases, and its cost on hostile text."""

import time

import numpy as np
import pytest

from bert_jax.data.sentences import sentence_starts


def pieces(text: str) -> list[str]:
    """The sentences themselves, each without the white space after it."""
    starts = sentence_starts(text).tolist()
    return [text[a:b].rstrip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One."],
        ["One. "],
        ["One.", "Two.", "Three"],
        ["Why?", "Because!", "Really?!", "Well…", "Yes..."],
        ["He said “Go.”", "Then (at last.)", "'Who?'", "I left."],
        ["It cost 3.50 dollars.", "In v2.1 too.", "See example.org today."],
        ["He came i.e. he was there, e.g. here."],
        ["“Why?” he asked.", "Nobody knew."],
        ["The U.S. Senate met Mr. J. Q. Adams, Gen. Grant and Dr. Who.", "They spoke."],
        ["Part A began on page 5.", "7 men came."],
        ["これは文です。", "次の文！", "「本当？」", "はい。"],
        ["¿Qué?", "¡Sí!", "Él vino.", "Élan vital."],
        ["هل هذا؟", "نعم۔", "ठीक है।", "हाँ।"],
        [". . ."],
        ["So . . . he left .", "Then . . .", "Next."],
        ["no end at all"],
    ],
)
def test_the_rule(sentences):
    assert pieces(" ".join(sentences)) == [s.rstrip() for s in sentences]


def test_wide_marks_need_no_space():
    assert pieces("一。二！？三（四。）五") == ["一。", "二！？", "三（四。）", "五"]


def test_newlines_always_end_a_sentence():
    assert pieces("Title\n\n  a line\nlower case. \nMr.\nAdams") == [
        "Title",
        "a line",
        "lower case.",
        "Mr.",
        "Adams",
    ]


def test_positions_are_characters_of_the_text_as_given():
    text = "\n\t 🤗 né. Ünd? \n z"
    starts = sentence_starts(text)
    assert starts.dtype == np.int64
    assert [text[i] for i in starts] == ["🤗", "Ü", "z"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\t \n"])
def test_white_space_has_no_sentence(text):
    assert sentence_starts(text).shape == (0,)


@pytest.mark.parametrize("unit", [".", ".)", ". ", ")", "\n", "a.", "M" * 50 + ".", "?!x"])
def test_cost_is_linear_in_the_length(unit):
    def seconds(repeats: int) -> float:
        text = unit * repeats + "x"
        start = time.process_time()
        sentence_starts(text)
        return time.process_time() - start

    # A quadratic search takes minutes for 400,000 characters; a linear one well under a second.
    assert seconds(400_000 // len(unit)) < 5
