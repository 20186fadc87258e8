"""Flags of tokens, and how chunks travel through processes."""

import numpy as np
import pytest

from bert_jax.data.chunks import Chunk
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.workers import EncoderSpec, encode_chunks, token_flags

#       0123456789012345678901
TEXT = "It is. Go on! 🤗 (Yes.)"
STARTS = np.array([0, 7, 14])


@pytest.mark.parametrize(
    ("offsets", "sentences"),
    [
        # Each token its own characters.
        ([(0, 2), (3, 5), (5, 6), (7, 9), (10, 12), (12, 13), (14, 15), (16, 17)], [0, 3, 6]),
        # Tokens that carry the space before them.
        ([(0, 2), (2, 5), (5, 6), (6, 9), (9, 12), (12, 13), (13, 15), (15, 17)], [0, 3, 6]),
        # A space of its own, of two widths; a character in four tokens of bytes.
        ([(0, 5), (5, 6), (6, 7), (7, 12), (12, 13), (14, 14), (14, 15), (14, 15)], [0, 3, 6]),
        # One token over an end and a start.
        ([(0, 4), (4, 8), (8, 12), (12, 15), (15, 17)], [0, 1, 3]),
        # The last sentence has no token.
        ([(0, 2), (3, 5), (7, 9)], [0, 2]),
        # What stands first starts a sentence, whatever stands before it in the text.
        ([(3, 5)], [0]),
    ],
)
def test_sentences_start_with_the_token_of_their_first_character(offsets, sentences):
    words = np.zeros(len(offsets), bool)
    words[1:3] = True
    flags = token_flags(words, np.array(offsets), STARTS)
    assert flags.dtype == np.uint8
    assert np.flatnonzero(flags & 2).tolist() == sentences
    assert np.flatnonzero(flags & 1).tolist() == [0, 1, 2][: len(offsets)]


def test_no_token_no_flag():
    empty = np.zeros((0, 2), np.int64)
    assert token_flags(np.zeros(0, bool), empty, np.zeros(0, np.int64)).shape == (0,)


@pytest.fixture
def spec(tmp_path):
    Tokenizer.train(texts=["a b c d e"], kind="wordpiece", vocab_size=50).save(tmp_path)
    return EncoderSpec(tmp_path, "bert_jax.data.sentences:sentence_starts", "uint16")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_chunks_come_back_in_order_and_few_at_a_time(spec, workers):
    taken = []

    def chunks():
        for number in range(12):
            taken.append(number)
            texts = ["a " * (1 + (number * 7) % 40), ""]
            yield Chunk("train", 0, texts, np.array([9, 9]), False, number)

    for expected, (chunk, tokenised) in enumerate(encode_chunks(chunks(), spec, workers)):
        assert chunk.position == expected
        assert tokenised.counts.tolist() == [1 + (expected * 7) % 40, 0]
        assert len(tokenised.tokens) == len(tokenised.flags) == tokenised.counts.sum()
        assert tokenised.tokens.dtype == np.uint16
        assert len(taken) - expected <= max(1, 2 * workers)


def test_an_id_beyond_the_type_is_refused(spec, monkeypatch):
    from bert_jax.data.workers import Encoder

    encoder = Encoder(spec)
    monkeypatch.setattr(
        Tokenizer,
        "encode_arrays",
        lambda self, texts: [(np.array([65_536]), np.array([True]), np.array([[0, 1]]))],
    )
    with pytest.raises(ValueError, match="gives the id 65536, outside its own vocabulary"):
        encoder(["a"])
