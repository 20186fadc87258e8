"""SentencePiece models as they are converted, against SentencePiece itself."""

import gzip
import io
import json
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece

import bert_jax
from bert_jax.data.tokenizer import Tokenizer

CORPUS = Path(bert_jax.__file__).parent / "data/corpora/state_of_the_union.jsonl.gz"
CONTROLS = ["[CLS]", "[SEP]", "[MASK]"]
LANGUAGES = [
    "The quick brown fox \u2014 \u201cjumps\u201d over the lazy dog\u2026 \u00bd \u2122 \u2460",
    "Vi\u1ec7t Nam \u0111\u1eb9p l\u1eafm, \u00c5ngstr\u00f6m na\u00efve caf\u00e9",
    "\ud55c\uad6d\uc5b4 \uae00 \u4e2d\u6587\u5b57 \u30ac\u30ae\u30b0\u30b2\u30b4 \u30d1",
    "\uff76\uff9e \uff34\uff2f\uff2b\uff39\uff2f \u3231",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e19\u0e49\u0e33 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \ufefb \ufb01ne \uff21",
    "\uff5e10\uff5e20 ~ \u301c \ufe30 \u0140 \u3000wide\u00a0space\u200bzero\ufeff",
]
SPACES = ["", " ", "   ", " a", "a ", "  a  b  ", "a\tb\nc\r\nd", "\n", "\u2581a b", "a\u2581"]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        documents = [json.loads(line)["text"][:15_000] for line in file][::10]
    return [line for document in documents for line in document.split(". ")]


def _train(sentences, **settings) -> bytes:
    written = io.BytesIO()
    arguments = {
        "vocab_size": 900,
        "model_type": "unigram",
        "pad_id": 3,
        "control_symbols": CONTROLS,
        "minloglevel": 2,
        **settings,
    }
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([*sentences[::3], *LANGUAGES]), model_writer=written, **arguments
    )
    return written.getvalue()


def _texts(sentences) -> list[str]:
    decomposed = [unicodedata.normalize("NFD", text) for text in LANGUAGES]
    return [*sentences[:300], *LANGUAGES, *decomposed, *SPACES]


SETTINGS = {
    "default": {},  # nmt_nfkc
    "nfkc": {"normalization_rule_name": "nfkc"},
    "nmt_nfkc_cf": {"normalization_rule_name": "nmt_nfkc_cf"},
    "nfkc_cf": {"normalization_rule_name": "nfkc_cf"},
    "identity": {"normalization_rule_name": "identity"},
    "exact": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "bytes": {"byte_fallback": True, "normalization_rule_name": "identity"},
    "no prefix": {"add_dummy_prefix": False},
    "over spaces": {"split_by_whitespace": False},
    "runs of spaces": {
        "allow_whitespace_only_pieces": True,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["\u2581\u2581"],
    },
    "symbols": {"user_defined_symbols": ["(", "10", "lazy do", "\u2014", "ju", "umps"]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_ids(name, sentences, tmp_path):
    model = _train(sentences, **SETTINGS[name])
    (tmp_path / "some.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = Tokenizer.load(tmp_path / "some.model")
    assert ours.kind == "unigram"
    assert ours.vocab_size == theirs.vocab_size()
    differing = []
    for text in _texts(sentences):
        expected = theirs.encode(text)
        if ours.encode(text, add_special_tokens=False).ids != expected:
            differing.append(text)
    # Spaces at the start of a text are one to us: behind a special token they count.
    assert differing == ([" a", "  a  b  ", "\u2581a b"] if name == "no prefix" else [])


def test_normalisers_differ_in_few_letters(sentences, tmp_path):
    """Every letter below U+20000 with its marks taken apart, against SentencePiece's rules."""
    model = _train(sentences)
    (tmp_path / "some.model").write_bytes(model)
    backend = Tokenizer.load(tmp_path / "some.model")._parts.backend
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False
    )
    letters = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] in "LN"]
    texts = [f"x{unicodedata.normalize('NFD', letter)}x" for letter in letters]
    steps = backend.normalizer
    assert steps is not None
    wrong = [
        text
        for text, expected in zip(texts, normalizer.normalize(texts), strict=True)
        if steps.normalize_str(text) != expected
    ]
    assert len(texts) > 60_000
    assert len(wrong) < 10  # over 11,000 without NFKC beforehand


def test_random_unicode(sentences, tmp_path):
    """With the identity rule any text is equal; none is only nearly so."""
    model = _train(sentences, normalization_rule_name="identity", byte_fallback=True)
    (tmp_path / "some.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = Tokenizer.load(tmp_path / "some.model")
    generator = random.Random(1)
    alphabet = "".join(LANGUAGES) + "  aeiou"
    for _ in range(1000):
        text = "".join(
            generator.choice(alphabet)
            if generator.random() < 0.8
            else chr(generator.randrange(0x20, 0xD7FF))
            for _ in range(generator.randrange(30))
        )
        ids = ours.encode(text, add_special_tokens=False, specials_in_text="literal").ids
        assert ids == theirs.encode(text), ascii(text)
        assert ours.decode(ids) == theirs.decode(ids)


def test_control_pieces_in_a_text_are_literal_there(sentences, tmp_path):
    """Control pieces are never found in a text by SentencePiece; "literal" does the same."""
    model = _train(sentences)
    (tmp_path / "some.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = Tokenizer.load(tmp_path / "some.model")
    for text in ("a [MASK] b", "<s>", "x[CLS]y", "<pad><unk>", "[SEP]"):
        assert ours.encode_arrays([text])[0].ids.tolist() == theirs.encode(text)


def test_roles_and_family(sentences, tmp_path):
    path = tmp_path / "some.model"
    path.write_bytes(_train(sentences))  # ALBERT's names
    bert = Tokenizer.load(path)
    assert bert.family == "bert"
    tokens = [bert.id_to_token(i) for i in bert.encode("a", "b").ids]
    assert [t for t in tokens if t[0] == "["] == ["[CLS]", "[SEP]", "[SEP]"]
    path.write_bytes(_train(sentences, control_symbols=["<mask>"]))  # XLM-R's
    roberta = Tokenizer.load(path)
    assert roberta.family == "roberta"
    assert list(roberta.special.names().values()) == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    encoding = roberta.encode("a", "b")
    assert set(encoding.type_ids) == {0}
    assert [roberta.id_to_token(i) for i in encoding.ids].count("</s>") == 3
    path.write_bytes(_train(sentences, control_symbols=[]))
    with pytest.raises(ValueError, match=r"some\.model has no mask token .*\[MASK\] or <mask>"):
        Tokenizer.load(path)


def test_published_layouts(sentences, tmp_path):
    """Directories without a tokenizer.json, whose class reorders the pieces of the model."""
    model = _train(sentences, pad_id=-1, control_symbols=[])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    xlm_r = Tokenizer.load(tmp_path)
    expected = ["<s>", "<pad>", "</s>", "<unk>", theirs.id_to_piece(3), theirs.id_to_piece(4)]
    assert [xlm_r.id_to_token(i) for i in range(6)] == expected
    assert xlm_r.special.mask == xlm_r.vocab_size - 1 == theirs.vocab_size() + 1
    for text in sentences[:50]:
        expected = [3 if i == theirs.unk_id() else i + 1 for i in theirs.encode(text)]
        assert xlm_r.encode(text, add_special_tokens=False).ids == expected
    names = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]"}
    pieces = {f"{role}_piece": name for role, name in names.items()}
    model = _train(sentences, pad_id=0, bos_id=1, eos_id=2, unk_id=3, control_symbols=[], **pieces)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    (tmp_path / "spm.model").write_bytes(model)
    config.write_text(json.dumps({"tokenizer_class": "DebertaV2TokenizerFast"}))
    deberta = Tokenizer.load(tmp_path)
    assert deberta.special.mask == deberta.vocab_size - 1 == 900
    config.write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    with pytest.raises(ValueError, match=r"belongs to a AlbertTokenizer.*tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_refused_models(sentences, tmp_path):
    path = tmp_path / "some.model"

    def refused(content: bytes, message: str) -> None:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Tokenizer.load(path)

    refused(b"not a model", "not a SentencePiece model|no unknown piece")
    refused(b"", "no unknown piece")
    whole = _train(sentences)
    refused(whole[: len(whole) // 2], "not a SentencePiece model|no unknown piece")
    refused(_train(sentences, model_type="bpe"), "another kind than unigram")
    refused(_train(sentences, treat_whitespace_as_suffix=True), "marks spaces behind words")
