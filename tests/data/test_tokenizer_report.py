"""The tokenizer report: numbers counted by hand, and the command behind `bert-jax tokenizer`."""

import json

import pytest

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_report import (
    FragmentedWord,
    tokenizer_report,
    train_tokenizer_command,
)

VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s dog ##g ##y d ##o . [ ] mask"


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB.split()))
    return Tokenizer.load(tmp_path / "vocab.txt")


def test_counts(tokenizer):
    texts = ["The cats. The doggy!", "doggy cats  zebra\n", "", "[MASK]"]
    report = tokenizer_report(tokenizer, iter(texts))
    # the cat ##s . the dog ##g ##y [UNK] | dog ##g ##y cat ##s [UNK] | | [ mask ]
    assert report.tokens == 9 + 6 + 0 + 3
    assert report.unknown_tokens == 2
    assert report.unknown_rate == 2 / 18
    assert report.words == 4 + 3 + 0 + 1
    assert report.fertility == 18 / 8
    assert report.documents == 4
    assert report.characters == sum(map(len, texts))
    assert report.vocab_size == 17
    assert report.digest == tokenizer.digest()
    assert report.most_fragmented == (
        FragmentedWord("doggy", 2, ("dog", "##g", "##y")),
        FragmentedWord("cats", 2, ("cat", "##s")),
    )
    assert (
        tokenizer_report(tokenizer, texts, num_words=1).most_fragmented
        == (report.most_fragmented[:1])
    )


def test_words_seen_once_when_there_are_no_others(tokenizer):
    report = tokenizer_report(tokenizer, ["doggy the cats"])
    assert [found.word for found in report.most_fragmented] == ["doggy", "cats"]  # "the" is whole


def test_no_text(tokenizer):
    report = tokenizer_report(tokenizer, [])
    assert (report.unknown_rate, report.fertility) == (0, 0)
    assert report.most_fragmented == ()
    assert "0 tokens" in str(report)


def test_table(tokenizer):
    table = str(tokenizer_report(tokenizer, ["The cats. The doggy!", "doggy cats zebra"]))
    lines = {" ".join(line.split()) for line in table.splitlines()}
    assert "vocabulary size 17" in lines
    assert "unknown rate 13.3333% (2 tokens)" in lines
    assert "fertility 2.143 tokens a word" in lines
    assert "doggy 2 dog ##g ##y" in lines
    assert "normalization cleaned, lower case, accents stripped" in lines


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram"])
def test_pieces_are_those_of_a_word_between_others(kind):
    texts = ["unbreakable words are unbreakable when words are found"] * 5
    tokenizer = Tokenizer.train(
        texts=texts, kind=kind, vocab_size=280 if kind == "byte_bpe" else 50
    )
    for found in tokenizer_report(tokenizer, texts).most_fragmented:
        start = texts[0].find(f" {found.word}") + 1
        encoded = tokenizer.encode(texts[0])
        spans = zip(encoded.ids, encoded.offsets, encoded.special_mask, strict=True)
        if start:
            inside = [
                tokenizer.id_to_token(id)
                for id, (left, right), added in spans
                if start <= left <= right <= start + len(found.word) and not added
            ]
            assert "".join(found.pieces) == "".join(inside)
            assert list(found.pieces) == inside


def test_command(tmp_path):
    rows = [{"body": f"the cats and the doggies number {i}"} for i in range(50)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = train_tokenizer_command(
        [tmp_path / "corpus.jsonl"],
        tmp_path / "out",
        kind="unigram",
        vocab_size=60,
        lowercase=True,
        field="body",
        normalization="nmt_nfkc",
    )
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert report == tokenizer_report(tokenizer, [row["body"] for row in rows])
    assert report.normalization == "lower case, accents stripped, nmt_nfkc"
    assert report.documents == 50
    with pytest.raises(ValueError, match="body"):
        train_tokenizer_command(
            [tmp_path / "corpus.jsonl"], tmp_path / "none", vocab_size=60, field="text"
        )
    assert not (tmp_path / "none").exists()
