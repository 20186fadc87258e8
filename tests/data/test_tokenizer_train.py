"""Training: reproducible, in the right order, with the right normalisation, or refused."""

import gzip
import json
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

import bert_jax
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_train import Training

CORPUS = Path(bert_jax.__file__).parent / "data/corpora/state_of_the_union.jsonl.gz"
KINDS = ("wordpiece", "byte_bpe", "unigram")


@pytest.fixture(scope="module")
def documents() -> list[str]:
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"][:15_000] for line in file][::16]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_every_time(kind, documents, tmp_path):
    """Across processes, whose hash tables differ; with many ties, which a small text has."""
    path = tmp_path / "documents.json"
    path.write_text(json.dumps([*documents[:4], *documents[4][:3000].split()]))
    code = (
        "import json, sys\n"
        "from bert_jax.data.tokenizer import Tokenizer\n"
        "texts = json.load(open(sys.argv[1]))\n"
        "small = {'limit_alphabet': 20} if sys.argv[2] == 'wordpiece' else {}\n"
        "for size, more in ((700, {}), (290, small)):\n"
        "    tokenizer = Tokenizer.train(texts=texts, kind=sys.argv[2], vocab_size=size, **more)\n"
        "    print(tokenizer.digest())\n"
    )
    command = [sys.executable, "-c", code, str(path), kind]
    runs = {
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)
    }
    assert len(runs) == 1
    assert len(next(iter(runs)).split()) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_files_lists_and_iterators_give_the_same(kind, documents, tmp_path):
    lines = [line for document in documents[:4] for line in document.split(". ")]
    plain, zipped = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    with gzip.open(zipped, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))

    def digest(*files, **texts):
        return Tokenizer.train(*files, kind=kind, vocab_size=500, **texts).digest()

    expected = digest(texts=lines)
    assert digest(texts=iter(lines)) == expected
    assert digest([plain]) == expected
    assert digest([str(zipped)]) == expected
    assert digest(str(plain)) == expected
    assert digest([plain, zipped]) == digest(texts=lines * 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strip_accents", [None, False, True])
def test_case_and_accents_are_separate(kind, lowercase, strip_accents):
    strips = lowercase if strip_accents is None else strip_accents
    texts = ["Caf\u00e9 cafe Cafe caf\u00e9 \u00c9t\u00e9 ete \uae00 Ete \u00e9t\u00e9"] * 20
    tokenizer = Tokenizer.train(
        texts=texts,
        kind=kind,
        vocab_size=300 if kind == "byte_bpe" else 40,
        lowercase=lowercase,
        strip_accents=strip_accents,
    )

    def folded(text):
        if strips:
            decomposed = unicodedata.normalize("NFD", text)
            text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
            text = unicodedata.normalize("NFC", text)
        return text.lower() if lowercase else text

    for word in ("Caf\u00e9", "\u00c9t\u00e9", "cafe", "\uae00", "e\u0301t"):
        shown = tokenizer.decode(tokenizer.encode(word).ids)
        if kind == "wordpiece" and strips:  # BERT leaves Hangul decomposed
            shown = unicodedata.normalize("NFC", shown)
        composed = unicodedata.normalize("NFC", word) if kind != "byte_bpe" or strips else word
        if word == "e\u0301t" and not strips and kind != "byte_bpe":
            continue  # a decomposed letter is another one, and unknown
        assert shown == folded(composed), word
    expected = ["lower case"] * lowercase + ["accents stripped"] * strips
    for words in ("lower case", "accents stripped"):
        assert (words in tokenizer.normalization) == (words in expected)


def test_wordpiece_alphabet_is_the_most_frequent_characters(documents):
    tokenizer = Tokenizer.train(
        texts=documents, kind="wordpiece", vocab_size=600, limit_alphabet=30
    )
    counts = Counter(c for document in documents for c in document if not c.isspace())
    kept = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:30])
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
    assert tokens[5:35] == kept
    inside = [f"##{c}" for c in kept if c.isalnum()]
    assert tokens[35 : 35 + len(inside)] == inside
    merged = tokens[35 + len(inside) :]
    assert len(merged) == 600 - 35 - len(inside)
    assert all(len(token.removeprefix("##")) > 1 for token in merged)


def test_wordpiece_alphabet_breaks_ties_by_code_point():
    tokenizer = Tokenizer.train(
        texts=["dcba d"], kind="wordpiece", vocab_size=12, limit_alphabet=3, min_frequency=9
    )
    tokens = [tokenizer.id_to_token(i) for i in range(5, tokenizer.vocab_size)]
    assert tokens == ["a", "b", "d", "##a", "##b", "##d"]


def test_wordpiece_merges_what_is_frequent():
    """A text small enough to count by hand."""
    texts = ["abab abab ab", "cd"]
    tokenizer = Tokenizer.train(texts=texts, kind="wordpiece", vocab_size=16)
    tokens = [tokenizer.id_to_token(i) for i in range(5, tokenizer.vocab_size)]
    alphabet = ["a", "b", "c", "d", "##a", "##b", "##c", "##d"]
    # a ##b occurs 3 times; then of ab ##a, ##a ##b (2 each) the pair of lower ids, and so on.
    assert tokens[:8] == alphabet
    assert tokens[8] == "ab"
    assert set(tokens[9:]) <= {"##ab", "aba", "abab", "##ba"}
    assert "abab" in tokens
    assert tokenizer.encode("abab cd", add_special_tokens=False).word_ids == [0, 1, 1]


def test_byte_bpe_knows_every_byte(documents):
    tokenizer = Tokenizer.train(texts=documents[:1], kind="byte_bpe", vocab_size=261)
    assert tokenizer.vocab_size == 261
    text = "".join(map(chr, range(1, 0x250))) + "\U0001f917"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.special.unk not in ids


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_tokens_when_the_text_has_no_more(kind):
    tokenizer = Tokenizer.train(texts=["ab ab cd"] * 9, kind=kind, vocab_size=5000)
    assert 5 < tokenizer.vocab_size < 300
    assert tokenizer.encode("ab", add_special_tokens=False).ids


def test_long_documents_are_not_skipped_by_sentencepiece():
    """One line of 60,000 characters: SentencePiece alone drops lines over 4,192 bytes."""
    words = ["zebra", "quagga", "giraffe", "okapi"]
    text = " ".join(words * 2500)
    tokenizer = Tokenizer.train(texts=["a b c", text], kind="unigram", vocab_size=60)
    assert tokenizer.special.unk not in tokenizer.encode(" ".join(words)).ids
    unbroken = Tokenizer.train(texts=["xyz" * 5000, "a b"], kind="unigram", vocab_size=30)
    assert unbroken.special.unk not in unbroken.encode("xyz").ids


@pytest.mark.parametrize(
    "normalization", ["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"]
)
def test_normalization_only_if_asked(normalization, documents, tmp_path):
    """P29: the rule is named, saved, and changes nothing where it is "identity"."""
    odd = "\ufe30 and \u0140 and \ufb01 and \u00bd and \uff5e and A"
    tokenizer = Tokenizer.train(
        texts=[*documents[:3], *[odd] * 50],
        kind="unigram",
        vocab_size=700,
        normalization=normalization,
        unknown="bytes",
    )
    assert tokenizer.normalization == normalization
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.normalization == normalization
    assert normalization in repr(again)
    shown = again.decode(again.encode(odd).ids)
    if normalization == "identity":
        assert shown == odd
        for text in ("  two  spaces ", "\ttab\nline", " a", "a ", documents[5], "\u2581\u2581x"):
            expected = text.replace("\u2581", " ")  # the mark itself is a space to SentencePiece
            assert again.decode(again.encode(text).ids) == expected
        return
    expected = unicodedata.normalize("NFKC", odd)
    if normalization.startswith("nmt"):
        expected = expected.replace("~", "\uff5e")
    if normalization.endswith("cf"):
        expected = expected.casefold()
    assert shown == expected
    assert ".." in shown
    assert "l\u00b7" in shown
    assert again.decode(again.encode(" a  b ").ids) == "a b"


def test_unknown_characters(documents):
    """P30: bytes round-trip; else one unknown token a run of characters without a piece."""
    text = "\nfoo \U0001f917 bar"
    arguments = {"texts": documents[:4], "kind": "unigram", "vocab_size": 700}
    with_bytes = Tokenizer.train(**arguments, unknown="bytes")
    ids = with_bytes.encode(text, add_special_tokens=False).ids
    assert with_bytes.special.unk not in ids
    assert with_bytes.decode(ids) == text
    assert [with_bytes.id_to_token(i) for i in ids].count("<0xF0>") == 1
    without = Tokenizer.train(**arguments, unknown="unk")
    ids = without.encode(text, add_special_tokens=False).ids
    assert ids.count(without.special.unk) == 2
    assert without.decode(ids, skip_special_tokens=False) == "[UNK]foo [UNK] bar"


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("wordpiece", 5 + 3 + 3), ("byte_bpe", 5 + 256), ("unigram", 5 + 4)],
)
def test_too_small_for_the_alphabet(kind, needed):
    texts = ["abc cab bca"] * 3
    message = f"vocab_size {needed - 1} is too small .* alone are {needed}; raise it"
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(texts=texts, kind=kind, vocab_size=needed - 1)
    tokenizer = Tokenizer.train(texts=texts, kind=kind, vocab_size=needed)
    assert tokenizer.vocab_size == needed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], [" ", "\n\t"], iter([])])
def test_nothing_to_train_on(kind, texts):
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        Tokenizer.train(texts=texts, kind=kind, vocab_size=400)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unchecked")
def test_faults_of_the_text_come_through(kind, tmp_path):
    def failing():
        yield "some text"
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        Tokenizer.train(texts=failing(), kind=kind, vocab_size=400)
    with pytest.raises(ValueError, match="a str is needed"):
        Tokenizer.train(texts=["a", b"b"], kind=kind, vocab_size=400)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="surrogate"):
        Tokenizer.train(texts=["a", "\ud800"], kind=kind, vocab_size=400)
    with pytest.raises(ValueError, match="texts is one str"):
        Tokenizer.train(texts="a b", kind=kind, vocab_size=400)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\xff\xfe broken\n")
    with pytest.raises(ValueError, match=r"bad\.txt:2"):
        Tokenizer.train([bad], kind=kind, vocab_size=400)


def test_bad_files(tmp_path):
    def train(*files, **texts):
        Tokenizer.train(*files, kind="byte_bpe", vocab_size=300, **texts)

    with pytest.raises(ValueError, match="give one of them"):
        train()
    with pytest.raises(ValueError, match="give one of them"):
        train(["a.txt"], texts=["a"])
    with pytest.raises(ValueError, match=r"none\.txt does not exist"):
        train([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match=r"a text, not a file does not exist: .* texts="):
        train(["a text, not a file"])
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(ValueError, match="is not plain text"):
            train([tmp_path / name])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "bpe"}, "tokenizer kind 'bpe' is not one of"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"min_frequency": 0}, "min_frequency is 0"),
        ({"limit_alphabet": -1}, "limit_alphabet is -1"),
        ({"kind": "unigram", "character_coverage": 0.0}, "character_coverage is 0.0"),
        ({"kind": "unigram", "normalization": "nfd"}, "normalization 'nfd' is not one of"),
        ({"kind": "unigram", "unknown": "drop"}, "unknown 'drop' is not one of"),
        ({"normalization": "nfkc"}, "normalization means nothing for a wordpiece tokenizer"),
        ({"kind": "unigram", "min_frequency": 3}, "min_frequency means nothing for a unigram"),
        ({"kind": "byte_bpe", "limit_alphabet": 9}, "limit_alphabet means nothing for a byte_bpe"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        Training(**{"kind": "wordpiece", "vocab_size": 100, **arguments})
