"""The tokenizer as its users meet it: encode, decode, words, offsets, special tokens."""

import gzip
import json
import pickle
import random
import re
import string
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from bert_jax.data.tokenizer import SpecialTokens, Tokenizer

CORPUS = Path(bert_jax.__file__).parent / "data/corpora/state_of_the_union.jsonl.gz"
KINDS = ("wordpiece", "byte_bpe", "unigram")
HARD = [
    "",
    "   ",
    "a",
    " leading and trailing ",
    "two  spaces\tand\nlines\r\n",
    "Don't stop, re-enter: (x_1) 3.14!",
    "na\u00efve caf\u00e9, cafe\u0301 \u00c5ngstro\u0308m",
    "\u4e2d\u6587 \u5b57 \u304b\u306a\u3067\u3059",
    "\U0001f917\U0001f917 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\ufb01ne \u00bd \u2122 \uff21\uff22",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"][:15_000] for line in file][::12]


@pytest.fixture(scope="module")
def tokenizers(documents) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.train(texts=documents, kind=kind, vocab_size=1200) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request, tokenizers) -> Tokenizer:
    return tokenizers[request.param]


def _sentences(documents: list[str]) -> list[str]:
    return [s for document in documents for s in re.split(r"(?<=\.) ", document)]


def test_specials_come_first_in_the_familys_order(tokenizer):
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    roberta = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    expected = {"bert": bert, "roberta": roberta}[tokenizer.family]
    assert [tokenizer.id_to_token(i) for i in range(5)] == expected
    special = tokenizer.special
    roles = ("pad", "unk", "cls", "sep", "mask")
    by_role = {"bert": (0, 1, 2, 3, 4), "roberta": (1, 3, 0, 2, 4)}[tokenizer.family]
    assert tuple(getattr(special, role) for role in roles) == by_role
    for role in roles:
        token = getattr(special, f"{role}_token")
        assert tokenizer.token_to_id(token) == getattr(special, role)
    assert special.ids == (0, 1, 2, 3, 4)
    assert tokenizer.family == ("roberta" if tokenizer.kind == "byte_bpe" else "bert")


def test_special_ids_hold_additional_ones_once():
    special = SpecialTokens(pad=9, unk=5, cls=7, sep=3, mask=0, additional=(12, 3))
    assert special.ids == (0, 3, 5, 7, 9, 12)


def test_pair_format_by_family(tokenizer):
    """P32."""
    special = tokenizer.special
    a = tokenizer.encode("the people", add_special_tokens=False).ids
    b = tokenizer.encode("of the Union", add_special_tokens=False).ids
    single, pair = tokenizer.encode("the people"), tokenizer.encode("the people", "of the Union")
    cls, sep = [special.cls], [special.sep]
    assert single.ids == cls + a + sep
    assert single.type_ids == [0] * len(single.ids)
    if tokenizer.family == "bert":
        assert pair.ids == cls + a + sep + b + sep
        assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    else:
        assert pair.ids == cls + a + sep + sep + b + sep
        assert pair.type_ids == [0] * len(pair.ids)
    added = [i for i, token in enumerate(pair.ids) if token in (special.cls, special.sep)]
    assert [i for i, mask in enumerate(pair.special_mask) if mask] == added
    assert [i for i, word in enumerate(pair.word_ids) if word is None] == added
    assert pair.word_ids[1] == 0
    assert pair.word_ids[-len(b) - 1] == 0  # words of the second text count from 0 again


def test_special_tokens_in_the_text(tokenizer):
    """P25: the name of any special token, alone or beside other characters."""
    for role in ("pad", "unk", "cls", "sep", "mask"):
        name, id = getattr(tokenizer.special, f"{role}_token"), getattr(tokenizer.special, role)
        for text in (f"a {name} b", f"a{name}b", f"{name}", f"({name})", f" {name} {name}"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert ids.count(id) == text.count(name), text
            literal = tokenizer.encode(
                text, add_special_tokens=False, specials_in_text="literal"
            ).ids
            assert not set(literal) & (set(tokenizer.special.ids) - {tokenizer.special.unk}), text
            if role != "unk":
                # As long as before: characters are pieces here (but < > of WordPiece).
                assert len(literal) > len(ids), text
            for encodings in (
                tokenizer.encode_batch([text], add_special_tokens=False),
                tokenizer.encode_arrays([text], specials_in_text="recognise"),
            ):
                assert list(encodings[0].ids) == ids
            assert tokenizer.encode_arrays([text])[0].ids.tolist() == literal


def test_literal_differs_only_where_a_special_is_named(tokenizer, documents):
    for text in (*_sentences(documents)[:50], *HARD):
        assert tokenizer.encode(text, specials_in_text="literal") == tokenizer.encode(text)


def test_the_mask_stands_for_a_word(tokenizer):
    """ "the <mask> people" has as many tokens as with a one-token word, others unchanged."""
    words = [w for w in ("of", "to", "and") if len(_ids(tokenizer, f"the {w} people")) == 3]
    assert words
    for word in words:
        ids = _ids(tokenizer, f"the {word} people")
        masked = _ids(tokenizer, f"the {tokenizer.special.mask_token} people")
        assert masked == [ids[0], tokenizer.special.mask, ids[2]]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_offsets_point_into_the_original_text(tokenizer, documents):
    lowered = Tokenizer.train(texts=documents, kind="wordpiece", vocab_size=600, lowercase=True)
    for one in (tokenizer, lowered):
        for text in (*HARD, *_sentences(documents)[:100]):
            encoding = one.encode(text, add_special_tokens=False)
            covered = [False] * len(text)
            for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                assert 0 <= start <= end <= len(text)
                span = text[start:end]
                assert span == span.strip(), "no spaces at the ends"
                covered[start:end] = [True] * (end - start)
                piece = one.id_to_token(id).removeprefix("##").lstrip("\u2581\u0120")
                if piece.isascii() and id not in one.special.ids and span.isascii() and piece:
                    assert span.lower() == piece.lower()
            # Every character that is no space (or control or joining character) is in a token.
            missed = [c for c, hit in zip(text, covered, strict=True) if not hit]
            assert all(
                c.isspace() or c == "\u200d" or unicodedata.category(c) == "Mn" for c in missed
            ), (text, missed)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_runs_of_tokens(kind, tokenizers, documents):
    """P07: what is masked together, against a plain reading of the vocabulary's marks."""
    tokenizer = tokenizers[kind]
    for text in _sentences(documents)[:100]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        tokens = [tokenizer.id_to_token(i) for i in encoding.ids]
        if kind == "wordpiece":
            starts = [not token.startswith("##") for token in tokens]
        elif kind == "unigram":
            # Marks stand alone, as in WordPiece; a space belongs to what follows.
            starts = [
                token.startswith("\u2581")
                or (
                    before != "\u2581"
                    and (token[0] in string.punctuation or before[-1] in string.punctuation)
                )
                for before, token in zip(["a", *tokens], tokens, strict=False)
            ]
        else:  # a space opens a word; and letters, digits, other characters do not mix
            text_pieces = re.findall(
                r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", text
            )
            assert "".join(text_pieces) == text
            ends = set(np.cumsum([len(piece) for piece in text_pieces]).tolist())
            at = np.cumsum([0, *(len(token) for token in tokens)])[:-1].tolist()
            starts = [place == 0 or place in ends for place in at]
        words = [word for word in encoding.word_ids if word is not None]
        assert len(words) == len(tokens)
        assert words == (np.cumsum(starts) - 1).tolist()
        array = tokenizer.encode_arrays([text])[0]
        assert array.word_start.tolist() == starts


def test_each_cjk_character_is_a_word(tokenizers):
    encoding = tokenizers["wordpiece"].encode("ab\u4e2d\u6587cd", add_special_tokens=False)
    by_word: dict[int | None, list[tuple[int, int]]] = {}
    for word, span in zip(encoding.word_ids, encoding.offsets, strict=True):
        by_word.setdefault(word, []).append(span)
    assert [(spans[0][0], spans[-1][1]) for spans in by_word.values()] == [
        (0, 2), (2, 3), (3, 4), (4, 6)
    ]  # fmt: skip


@pytest.mark.parametrize("kind, size", [("byte_bpe", 266), ("unigram", 18)])
def test_each_cjk_character_is_a_word_where_tokens_allow(kind, size):
    """Where no pre-tokenizer splits them: bytes of one character, and a piece of two."""
    texts = ["\u5317\u4eac"] * 9 + ["\u6211 \u7231 a b \u4e2d \u6587 c d"] * (kind == "unigram")
    tokenizer = Tokenizer.train(texts=texts, kind=kind, vocab_size=size)
    text = "\u6211\u7231\u5317\u4eac ab\u4e2d\u6587cd"
    two = {"byte_bpe": ["\u5317\u4eac"], "unigram": ["\u5317", "\u4eac"]}[kind]
    expected = ["\u6211", "\u7231", *two, "ab", "\u4e2d", "\u6587", "cd"]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert len(encoding.ids) == {"byte_bpe": 18, "unigram": 12}[kind]
    spans: dict[int | None, list[int]] = {}
    for word, span in zip(encoding.word_ids, encoding.offsets, strict=True):
        spans.setdefault(word, []).extend(span)
    assert [text[min(ends) : max(ends)] for ends in spans.values()] == expected
    assert encoding.word_ids == tokenizer.encode_batch([text], add_special_tokens=False)[0].word_ids
    assert tokenizer.encode_arrays([text])[0].word_start.sum() == len(expected)
    second = tokenizer.encode("\u4e2d", text).word_ids
    assert second[-len(encoding.ids) - 1 : -1] == encoding.word_ids


def test_given_words_of_a_corpus(tokenizer):
    """A Chinese word of several characters, given as such, is one word; so are its offsets."""
    words = ["\u5317\u4eac", "of", "", "\u6b22\u8fce", "the-people", "\U0001f600"]
    array = tokenizer.encode_arrays([words], is_split_into_words=True)[0]
    encoding = tokenizer.encode(words, is_split_into_words=True, add_special_tokens=False)
    assert array.ids.dtype == np.uint32
    assert array.ids.tolist() == encoding.ids
    assert (np.cumsum(array.word_start) - 1).tolist() == np.unique(
        encoding.word_ids, return_inverse=True
    )[1].tolist()
    assert array.word_start.sum() == 5
    joined = " ".join(words)
    for (start, end), number in zip(array.offsets.tolist(), encoding.word_ids, strict=True):
        assert joined[start:end] in words[number]
    assert tokenizer.encode_arrays([[]], is_split_into_words=True)[0].ids.tolist() == []


def test_words_without_a_splitting_pre_tokenizer(tmp_path):
    """A BPE that marks spaces and never splits (Gemma's kind): the marks number the words."""
    import tokenizers as library

    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    pieces = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    backend = library.Tokenizer(
        library.models.BPE(
            {piece: i for i, piece in enumerate(names + pieces)},
            [("\u2581", "a"), ("a", "b"), ("\u2581a", "b")],
        )
    )
    backend.normalizer = library.normalizers.Replace(" ", "\u2581")
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.kind == "bpe"
    encoding = tokenizer.encode("ab a b<mask> ab", "a ab")
    tokens = " ".join(tokenizer.id_to_token(i) for i in encoding.ids)
    assert tokens == "<s> ab \u2581a \u2581 b <mask> \u2581ab </s> </s> a \u2581ab </s>"
    assert encoding.word_ids == [None, 0, 1, 2, 2, 3, 4, None, None, 0, 1, None]
    array = tokenizer.encode_arrays(["ab a bb"])[0]
    assert array.word_start.tolist() == [True, True, True, False, False]
    words = tokenizer.encode(["a", "ab"], is_split_into_words=True, add_special_tokens=False)
    assert words.ids == _ids(tokenizer, " a ab")
    assert words.word_ids == [0, 1]


def test_split_words_keep_their_spaces(tokenizer, documents):
    """P28: ids of words are those of a text with a space before each."""
    assert tokenizer.encode(["the", "cat"], is_split_into_words=True).word_ids[1] == 0
    for text in _sentences(documents)[:60]:
        words = text.split()
        encoding = tokenizer.encode(words, is_split_into_words=True)
        space = " " if tokenizer.kind == "byte_bpe" else ""
        joined = tokenizer.encode(space + " ".join(words))
        assert encoding.ids == joined.ids
        assert encoding.special_mask == joined.special_mask
        # Each word's tokens lie in it, in order, and are those of its number.
        for number, word in enumerate(words):
            spans = [
                span
                for span, at in zip(encoding.offsets, encoding.word_ids, strict=True)
                if at == number
            ]
            assert "".join(word[start:end] for start, end in spans) == word


def test_split_words_of_the_issue(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    encoding = tokenizer.encode(["of", "the"], is_split_into_words=True, add_special_tokens=False)
    assert encoding.ids == _ids(tokenizer, " of the")
    assert encoding.word_ids == [0, 1]
    assert encoding.offsets == [(0, 2), (0, 3)]


def test_split_words_with_odd_ones(tokenizer):
    special = tokenizer.special
    words = ["the", "", special.mask_token, "of", "caf\u00e9", special.sep_token]
    encoding = tokenizer.encode(words, is_split_into_words=True)
    assert 1 not in encoding.word_ids, "an empty word has no tokens"
    at = encoding.word_ids.index(2)
    assert encoding.ids[at] == tokenizer.special.mask
    assert encoding.word_ids.count(2) == 1
    assert [i for i, word in zip(encoding.ids, encoding.word_ids, strict=True) if word == 5] == [
        special.sep
    ]
    assert max(encoding.offsets, key=lambda span: span[1])[1] <= 6


def test_split_words_taken_literally(tokenizer):
    words = ["of", tokenizer.special.mask_token, "the"]
    encoding = tokenizer.encode(words, is_split_into_words=True, specials_in_text="literal")
    space = " " if tokenizer.kind == "byte_bpe" else ""
    joined = tokenizer.encode(space + " ".join(words), specials_in_text="literal")
    assert encoding.ids == joined.ids
    assert tokenizer.special.mask not in encoding.ids


def test_truncation_cuts_the_longer_first(tokenizer, documents):
    sentences = _sentences(documents)[:40]
    framing = {"bert": (2, 3), "roberta": (2, 4)}[tokenizer.family]
    for a, b in zip(sentences, reversed(sentences), strict=True):
        whole = tokenizer.encode(a, b)
        ids_a, ids_b = _ids(tokenizer, a), _ids(tokenizer, b)
        for max_length in (framing[1], 9, 10, 30, 1000):
            # One token at a time, of the longer; of equals, of the one that was shorter.
            x, y = len(ids_a), len(ids_b)
            while x + y + framing[1] > max_length:
                cut_a = x > y or (x == y and len(ids_a) <= len(ids_b))
                x, y = (x - 1, y) if cut_a else (x, y - 1)
            cut = tokenizer.encode(a, b, max_length=max_length)
            own = [i for i, mask in zip(cut.ids, cut.special_mask, strict=True) if not mask]
            assert own == ids_a[:x] + ids_b[:y]
            assert len(cut.ids) == x + y + framing[1]
            if max_length == 1000:
                assert cut == whole
        for max_length in (framing[0], 7, 1000):
            cut = tokenizer.encode(a, max_length=max_length)
            special = tokenizer.special
            assert cut.ids == [special.cls, *ids_a[: max_length - 2], special.sep]
            bare = tokenizer.encode(a, max_length=max_length, add_special_tokens=False)
            assert bare.ids == ids_a[:max_length]


def test_truncation_leaves_no_state(tokenizer):
    text = "the people of the Union " * 20
    before = tokenizer.encode(text)
    tokenizer.encode(text, max_length=5)
    assert tokenizer.encode(text) == before
    assert tokenizer.encode_batch([text, "a"]) == [before, tokenizer.encode("a")]


def test_batches_equal_single_texts(tokenizer, documents):
    texts = [*HARD, *_sentences(documents)[:50], tokenizer.special.mask_token]
    for add in (True, False):
        batch = tokenizer.encode_batch(texts, add_special_tokens=add)
        assert batch == [tokenizer.encode(text, add_special_tokens=add) for text in texts]
    for text, array in zip(texts, tokenizer.encode_arrays(texts), strict=True):
        one = tokenizer.encode(text, add_special_tokens=False, specials_in_text="literal")
        assert array.ids.dtype == np.uint32
        assert array.ids.tolist() == one.ids
        assert array.offsets.shape == (len(one.ids), 2)
        assert [tuple(span) for span in array.offsets.tolist()] == one.offsets
        words = np.array([-1, *one.word_ids])
        assert array.word_start.tolist() == (np.diff(words) > 0).tolist()
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_arrays([]) == []


def test_decode(tokenizer, documents):
    for text in _sentences(documents)[:50]:
        ids = tokenizer.encode(text).ids
        if tokenizer.kind == "byte_bpe":
            assert tokenizer.decode(ids) == text
        elif tokenizer.special.unk not in ids:
            assert re.sub(r"\s", "", tokenizer.decode(ids)) == re.sub(r"\s", "", text)
        assert tokenizer.decode(np.array(ids)) == tokenizer.decode(ids)
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        assert shown.startswith(tokenizer.special.cls_token)
    assert tokenizer.decode([]) == ""


def test_byte_bpe_decodes_anything(tokenizers):
    generator = random.Random(0)
    for _ in range(200):
        codes = [generator.randrange(1, 0x110000) for _ in range(20)]
        text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
        assert tokenizers["byte_bpe"].decode(_ids(tokenizers["byte_bpe"], text)) == text


@pytest.mark.usefixtures("unchecked")
def test_bad_input(tokenizer):
    size = tokenizer.vocab_size
    for ids in ([size], [-1], [0, 5, -3, 2]):
        with pytest.raises(ValueError, match=f"ids go from 0 to {size - 1}"):
            tokenizer.decode(ids)
    with pytest.raises(ValueError, match="ids go from 0"):
        tokenizer.id_to_token(size)
    added = {"bert": 3, "roberta": 4}[tokenizer.family]
    with pytest.raises(ValueError, match="max_length 1 has no room for the 2 special tokens"):
        tokenizer.encode("a", max_length=1)
    with pytest.raises(ValueError, match=f"no room for the {added} special tokens of a pair"):
        tokenizer.encode("a", "b", max_length=added - 1)
    with pytest.raises(ValueError, match="max_length -1"):
        tokenizer.encode("a", max_length=-1, add_special_tokens=False)
    with pytest.raises(ValueError, match="a str is needed"):
        tokenizer.encode(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a str is needed"):
        tokenizer.encode(["a", "b"])
    with pytest.raises(ValueError, match="list of words"):
        tokenizer.encode("a b", is_split_into_words=True)
    for encode in (tokenizer.encode_batch, tokenizer.encode_arrays):
        with pytest.raises(ValueError, match="a str is needed"):
            encode(["a", 3])  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="list of texts"):
            encode("a")
        with pytest.raises(ValueError, match="surrogate pair, at character 1"):
            encode(["a\ud800"])
    with pytest.raises(ValueError, match="surrogate pair, at character 1"):
        tokenizer.encode("a\udc00b")
    with pytest.raises(ValueError, match="neither 'recognise' nor 'literal'"):
        tokenizer.encode("a", specials_in_text="maybe")  # pyright: ignore[reportArgumentType]


def test_the_same_in_a_fresh_process(tokenizer, documents, tmp_path):
    """P26: ids of 1,000 lines and the digest, after a save, in another process."""
    lines = (_sentences(documents) * 20)[:990] + HARD[:10]
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    code = (
        "import json, sys\n"
        "from bert_jax.data.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.load(sys.argv[1])\n"
        "ids = [tokenizer.encode(line).ids for line in json.load(open(sys.argv[2]))]\n"
        "print(json.dumps([tokenizer.digest(), ids, tokenizer.special.unk_token]))\n"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "saved", tmp_path / "lines.json"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    digest, ids, unknown = json.loads(result.stdout)
    assert digest == tokenizer.digest()
    assert ids == [tokenizer.encode(line).ids for line in lines]
    assert unknown == tokenizer.special.unk_token


def test_pickles(tokenizer):
    tokenizer.encode_arrays(["fill the caches"])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.digest() == tokenizer.digest()
    assert again.special == tokenizer.special
    assert again.encode("of the Union") == tokenizer.encode("of the Union")


def test_digest_sees_every_change(documents):
    def digest(**changes):
        arguments = {"texts": documents[:5], "kind": "wordpiece", "vocab_size": 500, **changes}
        return Tokenizer.train(**arguments).digest()

    digests = [
        digest(),
        digest(vocab_size=501),
        digest(lowercase=True),
        digest(lowercase=True, strip_accents=False),
        digest(kind="byte_bpe"),
        digest(kind="unigram"),
        digest(kind="unigram", normalization="nmt_nfkc"),
        digest(kind="unigram", unknown="bytes"),
    ]
    assert len(set(digests)) == len(digests)
    assert digest() == digests[0]
    assert re.fullmatch("[0-9a-f]{64}", digests[0])


def test_import_is_light():
    """The module loads no tokenizer library, and no jax."""
    code = (
        "import sys, bert_jax.data.tokenizer, bert_jax.data.tokenizer_report\n"
        "heavy = {'tokenizers', 'sentencepiece', 'google.protobuf', 'jax', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
