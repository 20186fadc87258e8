"""Every form a tokenizer is kept in, and every way such a file can be wrong."""

import gzip
import json
import random
from pathlib import Path

import pytest

import bert_jax
from bert_jax.data.tokenizer import Tokenizer

CORPUS = Path(bert_jax.__file__).parent / "data/corpora/state_of_the_union.jsonl.gz"
KINDS = ("wordpiece", "byte_bpe", "unigram")
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": False,
    "use_regex": True,
}
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"][:15_000] for line in file][::16]


@pytest.fixture(scope="module")
def trained(documents) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.train(texts=documents, kind=kind, vocab_size=700) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request, trained) -> Tokenizer:
    return trained[request.param]


def _same(one: Tokenizer, other: Tokenizer, documents: list[str]) -> None:
    assert one.special == other.special
    assert one.digest() == other.digest()
    for text in [s for document in documents for s in document.split(". ")][:30]:
        assert one.encode(text, text[:9]) == other.encode(text, text[:9])


def test_directory_and_its_definition(tokenizer, documents, tmp_path):
    tokenizer.save(tmp_path, max_length=64)
    names = {path.name for path in tmp_path.iterdir()}
    spiece = {"spiece.model"} if tokenizer.kind == "unigram" else set()
    assert names == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"} | spiece
    _same(Tokenizer.load(tmp_path), tokenizer, documents)
    _same(Tokenizer.load(str(tmp_path / "tokenizer.json")), tokenizer, documents)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 64
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special["mask_token"] == tokenizer.special.mask_token
    assert ("bos_token" in special) == (tokenizer.family == "roberta")


def test_saving_over_another(trained, documents, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for kind in ("unigram", "wordpiece", "byte_bpe", "unigram"):
        trained[kind].save(tmp_path)
        _same(Tokenizer.load(tmp_path), trained[kind], documents)
        assert (tmp_path / "spiece.model").exists() == (kind == "unigram")
    assert (tmp_path / "config.json").exists()
    assert not list(tmp_path.glob("*.unfinished"))


def test_an_interrupted_save_is_no_tokenizer(trained, tmp_path, monkeypatch):
    """Whatever rename it fails at, there is no tokenizer, or the new one."""
    for fails_at in range(4):
        directory = tmp_path / str(fails_at)
        trained["wordpiece"].save(directory)
        (directory / "vocab.txt").write_text("\n".join([*BERT, "a"]))
        calls = []

        def replace(self, target, calls=calls, fails_at=fails_at, original=Path.replace):
            calls.append(target)
            if len(calls) > fails_at:
                raise OSError("disk full")
            return original(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(OSError, match="disk full"):
                trained["unigram"].save(directory)
        if fails_at < 3:
            with pytest.raises(ValueError, match="holds no tokenizer"):
                Tokenizer.load(directory)
        else:  # all but the model that goes with it
            assert Tokenizer.load(directory).digest() == trained["unigram"].digest()
        trained["unigram"].save(directory)
        assert Tokenizer.load(directory).digest() == trained["unigram"].digest()


def test_vocab_txt(trained, documents, tmp_path):
    tokenizer = trained["wordpiece"]
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
    for ends in ("\n", "\r\n"):
        (tmp_path / "vocab.txt").write_bytes(ends.join([*tokens, ""]).encode())
        _same(Tokenizer.load(tmp_path / "vocab.txt"), tokenizer, documents)
        _same(Tokenizer.load(tmp_path), tokenizer, documents)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strip_accents", [None, False, True])
def test_vocab_txt_tells_its_case(lowercase, strip_accents, tmp_path):
    """A bare vocabulary is read as it was trained, where its entries show how."""
    texts = ["Caf\u00e9 \u00c9t\u00e9 cafe ete fin"] * 9
    arguments = {"kind": "wordpiece", "vocab_size": 60, "lowercase": lowercase}
    tokenizer = Tokenizer.train(texts=texts, strip_accents=strip_accents, **arguments)
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    bare = Tokenizer.load(tmp_path / "vocab.txt")
    text = "Caf\u00e9 fin"
    if lowercase or not strip_accents:  # cased without accents: cannot be told from plain cased
        assert bare.encode(text).ids == tokenizer.encode(text).ids
    assert ("lower case" in bare.normalization) == lowercase
    config = {"do_lower_case": lowercase, "strip_accents": strip_accents}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).encode(text).ids == tokenizer.encode(text).ids


def test_vocab_json_and_merges(trained, documents, tmp_path):
    tokenizer = trained["byte_bpe"]
    tokenizer.save(tmp_path / "saved")
    model = json.loads((tmp_path / "saved/tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(pair) for pair in model["merges"]]
    for header in (["#version: 0.2"], []):
        (tmp_path / "merges.txt").write_text("\n".join([*header, *merges, ""]))
        for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
            _same(Tokenizer.load(path), tokenizer, documents)


def test_special_ids_anywhere(tmp_path):
    """P02: pad 9, cls 7, sep 3, mask 0, unk 5; from the vocabulary, never from a habit."""
    tokens = ["[MASK]", "a", "b", "[SEP]", "c", "[UNK]", "##d", "[CLS]", "##a", "[PAD]", "A"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    special = tokenizer.special
    assert (special.pad, special.cls, special.sep, special.mask, special.unk) == (9, 7, 3, 0, 5)
    assert special.ids == (0, 3, 5, 7, 9)
    assert tokenizer.encode("ad x [MASK]", "b").ids == [7, 1, 6, 5, 0, 3, 2, 3]
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").special == special


def test_any_order_of_any_names(tmp_path):
    """The same for random orders, both families' names, and names given in the config."""
    generator = random.Random(0)
    roles = ("pad", "unk", "cls", "sep", "mask")
    families = {
        "bert": dict(zip(roles, BERT, strict=True)),
        "roberta": {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
        "named": {"pad": "PADDING", "unk": "?", "cls": "^", "sep": "$", "mask": "_"},
    }
    for family, names in families.items():
        for _ in range(5):
            tokens = [*names.values(), *"abcdeFG", *(["[CLS]"] if family == "named" else [])]
            generator.shuffle(tokens)
            (tmp_path / "vocab.txt").write_text("\n".join(tokens))
            config = {f"{role}_token": name for role, name in names.items()}
            (tmp_path / "tokenizer_config.json").write_text(
                json.dumps(config if family == "named" else {})
            )
            tokenizer = Tokenizer.load(tmp_path)
            for role, name in names.items():
                assert getattr(tokenizer.special, role) == tokens.index(name)
            ids = tokenizer.encode("a", "b").ids
            between = 2 if family == "roberta" else 1
            expected = [names["cls"], "a", *[names["sep"]] * between, "b", names["sep"]]
            assert [tokens[i] for i in ids] == expected
            assert (1 in tokenizer.encode("a", "b").type_ids) == (family != "roberta")
            assert tokenizer.family == ("roberta" if family == "roberta" else "bert")


def test_roles_by_hugging_face_files(trained, tmp_path):
    """bos and eos stand in for cls and sep; the config overrides the map; objects are names too."""
    trained["byte_bpe"].save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["post_processor"] = BYTE_LEVEL
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "mask_token": "<unk>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "<mask>"}))
    again = Tokenizer.load(tmp_path)
    assert again.special == trained["byte_bpe"].special
    assert again.encode("a", "b") == trained["byte_bpe"].encode("a", "b")


@pytest.mark.parametrize(
    ("post_processor", "family", "type_ids"),
    [
        ({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, "bert", True),
        (
            {
                "type": "RobertaProcessing",
                "sep": ["[SEP]", 3],
                "cls": ["[CLS]", 2],
                "trim_offsets": True,
                "add_prefix_space": False,
            },
            "roberta",
            False,
        ),
        ("template", "bert", False),  # one separator, no types: ModernBERT
        ("template two", "roberta", False),
        ("sequence", "bert", False),
    ],
)
def test_the_post_processor_decides(post_processor, family, type_ids, trained, tmp_path):
    trained["wordpiece"].save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    if isinstance(post_processor, str):
        cls, sep = ({"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]"))
        a, b = ({"Sequence": {"id": t, "type_id": 0}} for t in "AB")
        two = [sep] if post_processor == "template two" else []
        template = {
            "type": "TemplateProcessing",
            "single": [cls, a, sep],
            "pair": [cls, a, sep, *two, b, sep],
            "special_tokens": {
                t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (("[CLS]", 2), ("[SEP]", 3))
            },
        }
        post_processor = template
        if two == [] and type_ids is False and family == "bert":
            post_processor = {"type": "Sequence", "processors": [BYTE_LEVEL, template]}
    definition["post_processor"] = post_processor
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.family == family
    encoding = tokenizer.encode("a", "a")
    a = tokenizer.token_to_id("a")
    assert encoding.ids == [2, a, 3, *([3] if family == "roberta" else []), a, 3]
    assert (1 in encoding.type_ids) == type_ids
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").encode("a", "a") == encoding


def test_additional_special_tokens(trained, documents, tmp_path):
    trained["wordpiece"].save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition["added_tokens"] += [
        {"id": 700, "content": "[ENT]", "special": True, **flags},
        {"id": 701, "content": "word", "special": False, **flags},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special.additional == (700,)
    assert tokenizer.special.ids == (0, 1, 2, 3, 4, 700)
    assert tokenizer.vocab_size == 702
    text = "[ENT] word"
    assert tokenizer.encode(text, add_special_tokens=False).ids == [700, 701]
    literal = tokenizer.encode_arrays([text])[0].ids.tolist()
    assert 700 not in literal
    assert literal[-1] == 701
    assert tokenizer.decode([700, 701]) == "word"
    tokenizer.save(tmp_path / "again")
    _same(Tokenizer.load(tmp_path / "again"), tokenizer, documents)


def test_added_tokens_of_bare_vocabularies(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, "a"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[X]": 6, "[Y]": 7}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a[Y]a[X]", add_special_tokens=False).ids == [5, 7, 5, 6]
    config = {"added_tokens_decoder": {"8": {"content": "[Z]"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).vocab_size == 9
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[X]": 9}))
    with pytest.raises(ValueError, match=r"adds '\[Z\]' as id 8, but it is 6 in vocab\.txt"):
        Tokenizer.load(tmp_path)


def test_truncation_and_padding_of_others_are_dropped(trained, documents, tmp_path):
    trained["wordpiece"].save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    definition["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    _same(Tokenizer.load(tmp_path), trained["wordpiece"], documents)


def test_scores_of_others_are_stable(trained, tmp_path):
    """Scores of 17 digits, which `tokenizers` reads back inexactly: one digest for ever."""
    trained["unigram"].save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    generator = random.Random(0)
    for entry in definition["model"]["vocab"][5:]:
        entry[1] = -generator.random() * 10
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    digests = set()
    for _ in range(4):
        tokenizer = Tokenizer.load(tmp_path)
        digests.add(tokenizer.digest())
        tokenizer.save(tmp_path)
    assert len(digests) == 1
    # Any number of 15 digits is read exactly, one of 17 nearly always.
    vocab = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert all(score == float(f"{score:.15g}") for _, score in vocab)


def test_no_code_is_run(trained, tmp_path):
    """A directory that asks for its own classes is read as data."""
    trained["wordpiece"].save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    assert Tokenizer.load(tmp_path).digest() == trained["wordpiece"].digest()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "", "is empty"),
        ("vocab.txt", " \n", "is empty"),
        ("vocab.txt", "\n".join([*BERT, "a", "", "b"]), r"vocab\.txt:7 is empty"),
        ("vocab.txt", "\n".join([*BERT, "a", "a"]), r"vocab\.txt:7 repeats the token 'a'"),
        ("vocab.txt", "\n".join([*BERT[:4], "a"]), r"no mask token among its 5 entries \(\[MASK\]"),
        ("vocab.txt", "\n".join(["a", "b"]), "has no pad token"),
        ("vocab.txt", b"[PAD]\n\xff\n", r"vocab\.txt:2 is not UTF-8"),
        ("tokenizer.json", "", "is empty"),
        ("tokenizer.json", "{\n]", r"tokenizer\.json:2 is not JSON"),
        ("tokenizer.json", "[]", "an object is needed"),
        ("tokenizer.json", '{"a": "b"}', "neither a tokenizer.json nor"),
        ("tokenizer.json", '{"model": {}, "added_tokens": []}', "not a tokenizer.json"),
        ("vocab.json", '{"a": 0}', r"merges\.txt is missing"),
        ("merges.txt", "a b", r"vocab\.json is missing"),
        ("vocab.bin", "x", "is not a tokenizer file"),
    ],
)
def test_bad_files(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_other_faults(trained, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("a c")
    with pytest.raises(ValueError, match="are they a pair"):
        Tokenizer.load(tmp_path)
    trained["wordpiece"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "[GONE]"}')
    with pytest.raises(ValueError, match=r"no mask token .*\[GONE\] is expected"):
        Tokenizer.load(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["model"]["type"] = "Sorcery"
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ValueError, match=r"not a tokenizer\.json that `tokenizers` reads"):
        Tokenizer.load(tmp_path)
