"""Whole-word masking of Chinese, code, emoji and hyphens, with the three kinds of tokenizers (P07).

The words are written out by hand. They are the same for WordPiece, byte-level BPE and unigram, but
that byte-level BPE keeps marks in a row, and 't of an English contraction, together.
"""

import functools

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_train import TrainedKind
from bert_jax.objectives.masking import Masking, mask_tokens, maskable_tokens

pytestmark = pytest.mark.sweep

# Kinds and sizes: few enough for most words to be several tokens.
KINDS: dict[TrainedKind, int] = {"wordpiece": 110, "byte_bpe": 300, "unigram": 85}
ROWS = 1000
KEY = jax.random.key(7, impl="threefry2x32")

TEXTS = {
    "chinese": "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002"
    "\u4f60\u597d\uff0cok\uff01\u4e16\u754c",
    "code": "def add(x, y): return total+add[x]",
    "emoji": "nice \U0001f600 \U0001f44d\U0001f3fd day \U0001f469\u200d\U0001f4bb indeed",
    "hyphens": "state-of-the-art re-use, don't (well-known)",
}
WORDS = {
    "chinese": [*"\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002\u4f60\u597d\uff0c", "ok",
                "\uff01", "\u4e16", "\u754c"],
    "code": ["def", "add", "(", "x", ",", "y", ")", ":", "return", "total", "+", "add", "[", "x",
             "]"],
    "emoji": ["nice", "\U0001f600", "\U0001f44d\U0001f3fd", "day", "\U0001f469\u200d\U0001f4bb",
              "indeed"],
    "hyphens": ["state", "-", "of", "-", "the", "-", "art", "re", "-", "use", ",", "don", "'", "t",
                "(", "well", "-", "known", ")"],
}  # fmt: skip
BYTE_BPE_WORDS = {
    **WORDS,
    "code": ["def", "add", "(", "x", ",", "y", "):", "return", "total", "+", "add", "[", "x", "]"],
    "hyphens": ["state", "-", "of", "-", "the", "-", "art", "re", "-", "use", ",", "don", "'t", "(",
                "well", "-", "known", ")"],
}  # fmt: skip


@functools.cache
def trained(kind: TrainedKind) -> Tokenizer:
    texts = [*TEXTS.values(), "testing masking of whole words"] * 20
    return Tokenizer.train(texts=texts, kind=kind, vocab_size=KINDS[kind])


def spelled(text: str, encoding) -> list[str]:
    """The words of an encoding, as they stand in the text."""
    spans: dict[int, list[int]] = {}
    for word, span in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            spans.setdefault(word, []).extend(span)
    return [text[min(ends) : max(ends)] for ends in spans.values()]


@functools.partial(
    jax.jit,
    static_argnames=("masking", "special", "vocab_size"),
    compiler_options={"xla_backend_optimization_level": 0},
)
def run(ids, words, masking, special, vocab_size):
    maskable = maskable_tokens(ids, ids != special.pad, masking, special)
    return mask_tokens(
        KEY, ids, maskable, masking, special=special, vocab_size=vocab_size, word_ids=words
    )


def masked_rows(tokenizer: Tokenizer, encoding, masking: Masking):
    """(ids, words, what is selected, what it became): one text, ROWS times, under ROWS keys."""
    row = np.asarray(encoding.ids, np.int32)
    numbers = np.asarray([-1 if word is None else word for word in encoding.word_ids], np.int32)
    ids, words = (np.tile(one, (ROWS, 1)) for one in (row, numbers))
    masked = run(ids, words, masking, tokenizer.special, tokenizer.vocab_size)
    rows, slots = np.nonzero(np.asarray(masked.weights))
    selected = np.zeros(ids.shape, bool)
    selected[rows, np.asarray(masked.positions)[rows, slots]] = True
    return ids, words, selected, np.asarray(masked.input_ids)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_text(kind, name):
    tokenizer, text = trained(kind), TEXTS[name]
    encoding = tokenizer.encode(text)
    right = (BYTE_BPE_WORDS if kind == "byte_bpe" else WORDS)[name]
    assert tokenizer.special.unk not in encoding.ids
    assert spelled(text, encoding) == right
    starts = tokenizer.encode_arrays([text])[0].word_start
    assert starts.sum() == len(right)  # and so in a prepared corpus
    assert len(encoding.ids) - 2 >= len(right)


@pytest.mark.parametrize("unit", ["word", pytest.param("ngram", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_a_word_are_selected_together(kind, name, unit):
    """Over 1000 keys; with the rate as near .15 as the row's length allows, and 80/10/10 kept."""
    tokenizer, text = trained(kind), " ".join([TEXTS[name]] * 3)
    encoding = tokenizer.encode(text)
    ids, words, selected, new = masked_rows(tokenizer, encoding, Masking(unit=unit))
    right = (BYTE_BPE_WORDS if kind == "byte_bpe" else WORDS)[name]
    assert words[0].max() + 1 == 3 * len(right)
    same = (words[0, 1:] == words[0, :-1]) & (words[0, 1:] >= 0)
    np.testing.assert_array_equal(selected[:, 1:][:, same], selected[:, :-1][:, same])
    tokens = len(encoding.ids) - 2
    budget = max(1, round(0.15 * tokens))
    counts = selected.sum(axis=1)
    assert counts.max() <= budget
    largest = np.bincount(words[0][words[0] >= 0]).max()
    assert counts.min() > budget - largest  # only what no word has room in is left
    assert counts.mean() / tokens <= 0.15 + 0.5 / tokens
    assert not selected[:, [0, -1]].any()
    shares = [(new[selected] == tokenizer.special.mask).mean(), (new == ids)[selected].mean()]
    # A random token is the original one with chance 1 / ordinary ids.
    again = 0.1 / (tokenizer.vocab_size - len(tokenizer.special.ids))
    for share, expected in zip(shares, (0.8, 0.1 + again), strict=True):
        sigma = np.sqrt(expected * (1 - expected) / selected.sum())
        assert abs(share - expected) < 4.5 * sigma


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_of_a_long_row(kind):
    """All four texts, five times over: .15 of the tokens, within .01 (P07)."""
    tokenizer = trained(kind)
    encoding = tokenizer.encode(" ".join([*TEXTS.values()] * 5))
    _, _, selected, _ = masked_rows(tokenizer, encoding, Masking(unit="word"))
    share = selected.sum() / (ROWS * (len(encoding.ids) - 2))
    assert abs(share - 0.15) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_given_boundaries_keep_a_chinese_word_whole(kind):
    """As a segmenter gives them: 2 and 3 characters in one word, though each is tokenised."""
    tokenizer = trained(kind)
    given = ["\u6211", "\u7231", "\u5317\u4eac", "\u5929\u5b89\u95e8", "\u4f60\u597d"]
    encoding = tokenizer.encode(given, is_split_into_words=True)
    numbers = [word for word in encoding.word_ids if word is not None]
    assert sorted(set(numbers)) == [0, 1, 2, 3, 4]
    assert all(numbers.count(k) > 1 for k in (2, 3, 4))
    array = tokenizer.encode_arrays([given], is_split_into_words=True)[0]
    assert (np.cumsum(array.word_start) - 1).tolist() == numbers
    _, words, selected, _ = masked_rows(tokenizer, encoding, Masking(0.5, unit="word"))
    same = (words[0, 1:] == words[0, :-1]) & (words[0, 1:] >= 0)
    np.testing.assert_array_equal(selected[:, 1:][:, same], selected[:, :-1][:, same])
    shares = selected.mean(axis=0)[[numbers.index(k) + 1 for k in range(5)]]
    assert (shares > 0.1).all()  # every one of the words has its turn
