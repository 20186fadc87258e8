"""Where sentences start, by punctuation alone: a small, language-neutral rule."""

import re

import numpy as np
from jaxtyping import Int64

_SPACED = ".?!…؟۔।"  # end a sentence when white space (or a closing mark and white space) follows
_WIDE = "。？！"  # end a sentence at once: Chinese and Japanese put no space between sentences
_CLOSING = "\"'”’»›」』】）)]}"
_STOP = _SPACED + _WIDE

# The look-behind lets only the first mark of a run be tried and the possessive quantifiers never
# back up, so the search is linear in the length of the text, whatever the text.
_BOUNDARY = re.compile(
    rf"(?<![{_STOP}])(?P<stop>[{_STOP}]++)[{re.escape(_CLOSING)}]*+(?P<space>\s*+)|\n\s*+"
)
# Titles stand before a name, so the capital letter after them says nothing.
_TITLE = re.compile("Mr|Mrs|Ms|Dr|Prof|Messrs|Mme|St|Gen|Maj|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|Rev")
_LONGEST_TITLE = 6


def sentence_starts(text: str) -> Int64[np.ndarray, " sentences"]:
    """Finds the character position of the first character of every sentence.

    A sentence ends
      * at a run of ``. ? ! … ؟ ۔ ।`` with any closing quotes and brackets, followed by white space;
      * at a run that holds one of ``。 ？ ！``, white space or not;
      * at every newline, so at every line's end of a text of several lines.

    Marks followed by white space without a newline do not end a sentence when the next character
    is a lower-case letter (``i.e. this``, ``"Why?" he asked``) or such a mark itself (``. . .``),
    nor does a lone full stop after one letter (``J. Adams``, ``the U.S. Senate``) or after one of a
    fixed set of English titles (``Mr. Adams``). The price: a sentence that truly ends in ``U.S.``
    runs on into the next.

    Args:
        text: A document.

    Returns:
        Strictly increasing positions in `text`, in characters; the first is that of the first
        character that is not white space. Empty for a text of white space only.
    """
    first = len(text) - len(text.lstrip())
    if first == len(text):
        return np.zeros(0, np.int64)
    starts = [first]
    for match in _BOUNDARY.finditer(text, first):
        start = match.end()
        if start < len(text) and _ends_sentence(text, match):
            starts.append(start)
    return np.asarray(starts, np.int64)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a match of `_BOUNDARY` with text after it ends a sentence."""
    stop, space = match["stop"], match["space"]
    if stop is None or "\n" in space or any(mark in _WIDE for mark in stop):
        return True
    after = text[match.end()]
    if not space or after.islower() or after in _STOP:
        return False
    return not (stop == "." and _is_abbreviated(text, match.start()))


def _is_abbreviated(text: str, stop: int) -> bool:
    """Whether the word before the full stop at `stop` is a single letter or a known title."""
    begin = stop
    while begin > 0 and stop - begin <= _LONGEST_TITLE and text[begin - 1].isalpha():
        begin -= 1
    word = text[begin:stop]
    return len(word) == 1 or bool(_TITLE.fullmatch(word))
