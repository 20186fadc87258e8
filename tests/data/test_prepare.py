"""Making a store: what is in it, its statistics, its refusals.

Interruptions have their own file, `test_prepare_resume.py`.
"""

import fcntl
import gzip
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.data import chunks
from bert_jax.data.prepare import prepare
from bert_jax.data.sentences import sentence_starts
from bert_jax.data.store import Store
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.workers import name_of_function

SENTENCE = "The state of the Union is strong; its people are free. Peace now! Why? Mr. Adams"
KINDS = ["wordpiece", "byte_bpe", "unigram"]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one line, all different."""
    generator = random.Random(seed)
    return [
        " ".join(generator.choices(SENTENCE.split(), k=generator.randrange(1, 60)))
        + f" Nr {n} übrigens."
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(texts=make_texts(50), kind="wordpiece", vocab_size=150)


@pytest.fixture
def news():
    """Collects what `prepare` says."""
    return []


def write(path, texts, end="\n"):
    path.write_text(end.join(texts), encoding="utf-8")
    return path


def tree(directory) -> dict[str, str]:
    """The hash of every file, by its name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


def documents_of(store, name):
    """The token ids of each document of a split."""
    split = store.split(name)
    bounds = split.document_offsets.tolist()
    return [split.read(a, b).tolist() for a, b in itertools.pairwise(bounds)]


def refusal(call, error=ValueError) -> str:
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


def held_out(text: str, fraction: float) -> bool:
    """The documented rule, in the plainest form."""
    digest = hashlib.sha256(("bert_jax validation split" + text).encode()).hexdigest()
    return int(digest[:16], 16) / 16**16 < fraction


# --- what is in it --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_documents_tokens_words_and_sentences(tmp_path, kind):
    texts = [*make_texts(80), "Ünïcode 🤗 né. “Quoted.” Done", "Oh?  Two  spaces.\tTab! end"]
    size = {"wordpiece": 150, "byte_bpe": 400, "unigram": 120}[kind]
    tokenizer = Tokenizer.train(texts=texts, kind=kind, vocab_size=size)
    path = write(tmp_path / "in.txt", texts)
    store = prepare(
        path, tmp_path / "out", tokenizer=tokenizer, validation_fraction=0.3, workers=0, say=str
    )
    for name in ("train", "validation"):
        expected = [t for t in texts if held_out(t, 0.3) == (name == "validation")]
        encodings = [tokenizer.encode(text, add_special_tokens=False) for text in expected]
        assert documents_of(store, name) == [list(e.ids) for e in encodings]
        split = store.split(name)
        flags = split.read_flags(0, split.num_tokens).tolist()
        slow = [
            flag
            for text, e in zip(expected, encodings, strict=True)
            for flag in slow_flags(text, e)
        ]
        assert flags == slow
        assert store.manifest["splits"][name]["sentences"] == sum(f >> 1 for f in slow)


def slow_flags(text, encoding):
    """Word and sentence starts token by token: a sentence starts with the token that covers it."""
    flags, last_word, covered = [], None, 0
    starts = sentence_starts(text).tolist()
    for word, (_, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        starts_sentence = any(covered <= start < end for start in starts)
        flags.append((word != last_word) + 2 * starts_sentence)
        last_word, covered = word, max(covered, end)
    flags[0] |= 3
    return flags


@pytest.mark.parametrize("shard_bytes", [1, 30, 1 << 20])
def test_statistics(tmp_path, tokenizer, shard_bytes):
    nothing = "\u200b"  # a zero-width space: not white space, and no token
    first = ["The strong state. Peace!", "", "free people.", "The strong state. Peace!", nothing]
    second = ["  ", "free people.", "The strong state. Peace! ", "The Union 漢"]
    store = prepare(
        [write(tmp_path / "a.txt", first), write(tmp_path / "b.txt", second)],
        tmp_path / "out",
        tokenizer=tokenizer,
        format="lines",
        validation_fraction=0,
        shard_bytes=shard_bytes,
        workers=0,
        say=str,
    )
    kept = ["The strong state. Peace!", "free people.", "The strong state. Peace! ", "The Union 漢"]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in kept]
    assert documents_of(store, "train") == [list(i) for i in ids]
    assert store.manifest["read"] == {"documents": 9, "blank": 2}
    train = store.manifest["splits"]["train"]
    words = 2 * 6 + 3 + 3
    expected = {
        "documents": 4,
        "duplicates": 2,
        "untokenised": 1,
        "tokens": sum(map(len, ids)),
        "words": words,
        "sentences": 2 * 2 + 1 + 1,
        "bytes": sum(len(text.encode()) for text in kept),
        "unknown": 1,
        "unknown_rate": 1 / sum(map(len, ids)),
        "fertility": sum(map(len, ids)) / words,
        "longest_document": max(map(len, ids)),
    }
    assert {key: train[key] for key in expected} == expected
    assert store.splits == ("train",)


def test_manifest_describes_how_it_was_made(tmp_path, tokenizer):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"body": t}) + "\n" for t in make_texts(60)))
    store = prepare(
        path, tmp_path / "out", tokenizer=tokenizer, field="body", validation_fraction=0.2, say=str
    )
    manifest = store.manifest
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    assert manifest["inputs"] == [
        {"name": "in.jsonl", "format": "jsonl", "bytes": size, "sha256": sha}
    ]
    assert manifest["settings"] == {
        "field": "body",
        "validation_fraction": 0.2,
        "salt": "bert_jax validation split",
        "sentences": "bert_jax.data.sentences:sentence_starts",
        "shard_bytes": 1 << 27,
    }
    assert manifest["vocab_size"] == tokenizer.vocab_size
    assert manifest["dtype"] == "uint16"
    assert manifest["tokenizer"]["digest"] == tokenizer.digest() == store.tokenizer().digest()
    assert manifest["created_by"].startswith("bert_jax")
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_a_vocabulary_beyond_16_bits(tmp_path):
    """Ids above 65,535 need uint32: a word list of 70,000 in WordPiece's plain file."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(70_000))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    path = write(tmp_path / "in.txt", ["w0 w69999 w65530", "w1"])
    store = prepare(
        path,
        tmp_path / "out",
        tokenizer=tmp_path / "vocab.txt",
        validation_fraction=0,
        workers=0,
        say=str,
    )
    assert store.manifest["dtype"] == "uint32"
    assert store.split("train").read(0, 4).tolist() == [5, 70_004, 65_535, 6]


def test_text_that_looks_like_special_tokens_is_text(tmp_path, tokenizer):
    path = write(tmp_path / "in.txt", ["the [SEP] of [MASK] [CLS]", "peace"])
    store = prepare(
        path, tmp_path / "out", tokenizer=tokenizer, validation_fraction=0, workers=0, say=str
    )
    split = store.split("train")
    ids = set(split.read(0, split.num_tokens).tolist())
    assert not ids & (set(tokenizer.special.ids) - {tokenizer.special.unk})


def test_the_same_documents_in_any_format_make_the_same_store(tmp_path, tokenizer):
    texts = make_texts(100)
    lines = write(tmp_path / "lines.txt", texts)
    (tmp_path / "lines.txt.gz").write_bytes(gzip.compress(lines.read_bytes()))
    write(tmp_path / "paragraphs.txt", texts, "\n\n")
    write(tmp_path / "records.jsonl", [json.dumps({"text": text}) for text in texts])
    pq.write_table(pa.table({"text": texts}), tmp_path / "table.parquet")
    write(tmp_path / "part-1.txt", texts[:30])
    write(tmp_path / "part-2.txt", texts[30:])
    digests = set()
    for number, (paths, format) in enumerate(
        [
            (lines, "auto"),
            (tmp_path / "lines.txt.gz", "auto"),
            (tmp_path / "paragraphs.txt", "paragraphs"),
            (tmp_path / "records.jsonl", "auto"),
            (tmp_path / "table.parquet", "auto"),
            (str(tmp_path / "part-*.txt"), "auto"),
        ]
    ):
        store = prepare(
            paths,
            tmp_path / f"out{number}",
            format=format,
            tokenizer=tokenizer,
            validation_fraction=0.2,
            workers=0,
            say=str,
        )
        digests.add(store.digest)
    assert len(digests) == 1


# --- the split ------------------------------------------------------------------------------------


def test_split_is_by_hash_whatever_the_order(tmp_path, tokenizer):
    texts = make_texts(1000)
    shuffled = texts.copy()
    random.Random(3).shuffle(shuffled)
    options = {"tokenizer": tokenizer, "validation_fraction": 0.1, "workers": 0, "say": str}
    one = prepare(write(tmp_path / "a.txt", texts), tmp_path / "a", **options)
    two = prepare(write(tmp_path / "b.txt", shuffled), tmp_path / "b", **options)
    assert sorted(documents_of(one, "validation")) == sorted(documents_of(two, "validation"))
    # 1000 draws of probability .1 have a standard deviation of 9.5; this is 4 of them.
    assert 62 < len(documents_of(one, "validation")) < 138


def test_split_of_one_text():
    texts = make_texts(200)
    found = [chunks.split_of(text, 0.2) == "validation" for text in texts]
    assert found == [held_out(text, 0.2) for text in texts]


def test_a_larger_fraction_holds_out_the_same_and_more(tmp_path, tokenizer):
    texts = make_texts(300)
    path = write(tmp_path / "in.txt", texts)
    options = {"tokenizer": tokenizer, "workers": 0, "say": str}
    small = prepare(path, tmp_path / "small", validation_fraction=0.1, **options)
    large = prepare(path, tmp_path / "large", validation_fraction=0.4, **options)
    held = {tuple(d) for d in documents_of(small, "validation")}
    assert held < {tuple(d) for d in documents_of(large, "validation")}


@pytest.mark.parametrize(("fraction", "split"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_a_split_without_documents_is_refused(tmp_path, tokenizer, fraction, split):
    path = write(tmp_path / "in.txt", make_texts(20))

    def call():
        prepare(
            path,
            tmp_path / "out",
            tokenizer=tokenizer,
            validation_fraction=fraction,
            workers=0,
            say=str,
        )

    message = refusal(call)
    assert message.startswith(f"none of the 20 documents falls into the {split} split")
    assert "or 0 to hold none out" in message
    assert "unfinished" in refusal(lambda: Store.open(tmp_path / "out"))


# --- processes ------------------------------------------------------------------------------------


def test_same_bytes_whatever_the_number_of_workers(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 3000)
    path = write(tmp_path / "in.txt", make_texts(400))
    options = {"tokenizer": tokenizer, "validation_fraction": 0.2, "shard_bytes": 20_000}
    for workers in (0, 2, 3):
        prepare(path, tmp_path / str(workers), workers=workers, say=str, **options)
    assert len(tree(tmp_path / "0")) > 15
    assert tree(tmp_path / "0") == tree(tmp_path / "2") == tree(tmp_path / "3")


def test_a_long_document_in_one_line(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 3000)
    texts = [" ".join(make_texts(1200)), "short"]
    assert len(texts[0]) > 100_000
    store = prepare(
        write(tmp_path / "in.txt", texts),
        tmp_path / "out",
        tokenizer=tokenizer,
        validation_fraction=0,
        shard_bytes=5000,
        workers=0,
        say=str,
    )
    ids = [list(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    assert documents_of(store, "train") == ids


UNGUARDED = """
    import sys
    from bert_jax.data.prepare import prepare
    store = prepare(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=2)
    print(store.split("train").num_documents + store.split("validation").num_documents)
"""


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_script_without_a_main_guard(tmp_path, tokenizer, how):
    path = write(tmp_path / "in.txt", make_texts(200))
    tokenizer.save(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(UNGUARDED))
    program = str(script) if how == "file" else "-"
    arguments = [str(path), str(tmp_path / "out"), str(tmp_path / "tokenizer")]
    done = subprocess.run(
        [sys.executable, "-W", "error", program, *arguments],
        input=script.read_text() if how == "stdin" else "",
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.stdout == "200\n"
    assert re.fullmatch(
        r"\S+: 200 documents \(0 duplicates dropped\), [\d,]+ tokens, [\d,]+ tokens/s\n",
        done.stderr,
    )


PLUG_IN = """
    import os
    import numpy as np

    def every_tenth_character(text):
        return np.arange(0, len(text), 10)

    def fatal(text):
        os._exit(9)

    def picky(text):
        raise ValueError("no: this text is not to my taste")

    def broken(text):
        raise KeyError("oh")
"""


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    (tmp_path / "plug_in_for_sentences.py").write_text(textwrap.dedent(PLUG_IN))
    monkeypatch.syspath_prepend(tmp_path)
    import plug_in_for_sentences  # type: ignore[import-not-found]

    yield plug_in_for_sentences
    del sys.modules["plug_in_for_sentences"]


@pytest.mark.parametrize("workers", [0, 2])
def test_sentences_found_by_another_function(tmp_path, tokenizer, plug_in, workers):
    texts = ["the people of the state"]
    store = prepare(
        write(tmp_path / "in.txt", texts),
        tmp_path / "out",
        tokenizer=tokenizer,
        validation_fraction=0,
        sentences=plug_in.every_tenth_character,
        workers=workers,
        say=str,
    )
    encoding = tokenizer.encode(texts[0], add_special_tokens=False)
    split = store.split("train")
    starts = np.flatnonzero(split.read_flags(0, split.num_tokens) & 2).tolist()
    ends = [end for _, end in encoding.offsets]
    assert starts == [next(i for i, end in enumerate(ends) if end > at) for at in (0, 10, 20)]


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("fatal", ChildProcessError, r"process ended \(exit status 9\).*fewer workers"),
        ("picky", ValueError, "no: this text is not to my taste"),
        ("broken", RuntimeError, "KeyError"),
    ],
)
def test_trouble_in_a_process(tmp_path, tokenizer, plug_in, function, error, words):
    path = write(tmp_path / "in.txt", make_texts(50))
    options = {"tokenizer": tokenizer, "workers": 2, "say": str}
    with pytest.raises(error, match=words):
        prepare(path, tmp_path / "out", sentences=getattr(plug_in, function), **options)
    assert "unfinished" in refusal(lambda: Store.open(tmp_path / "out"))
    prepare(path, tmp_path / "out", validation_fraction=0.3, **options).verify()


def test_functions_other_processes_cannot_import():
    assert name_of_function(sentence_starts) == "bert_jax.data.sentences:sentence_starts"
    for function in (lambda text: [], Store.open):
        assert "cannot import" in refusal(lambda function=function: name_of_function(function))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_bad_fractions(tmp_path, tokenizer, fraction):
    def call():
        prepare(tmp_path, tmp_path, tokenizer=tokenizer, validation_fraction=fraction)

    assert f"validation_fraction is {fraction}" in refusal(call)


@pytest.mark.parametrize("options", [{"workers": -1}, {"shard_bytes": 0}])
def test_bad_numbers(tmp_path, tokenizer, options):
    def call():
        prepare(tmp_path, tmp_path, tokenizer=tokenizer, **options)

    assert next(iter(options)) in refusal(call)


def test_bad_input_leaves_no_store(tmp_path, tokenizer):
    path = tmp_path / "in.txt"
    path.write_bytes("\n".join(make_texts(30)).encode() + b"\ncaf\xe9\n")
    call = lambda: prepare(path, tmp_path / "out", tokenizer=tokenizer, workers=0, say=str)  # noqa: E731
    assert refusal(call).startswith(f"{path}:31 is not UTF-8")
    assert "unfinished" in refusal(lambda: Store.open(tmp_path / "out"))
    write(path, make_texts(30))
    assert prepare(
        path, tmp_path / "out", tokenizer=tokenizer, validation_fraction=0.3, workers=0, say=str
    ).splits == ("train", "validation")


def test_input_without_a_token(tmp_path, tokenizer):
    path = write(tmp_path / "in.txt", ["\u200b", "\u200b\u200b"])
    call = lambda: prepare(path, tmp_path / "out", tokenizer=tokenizer, workers=0, say=str)  # noqa: E731
    assert "no document has a token" in refusal(call)


def test_directories_of_others_are_left_alone(tmp_path, tokenizer):
    path = write(tmp_path / "in.txt", make_texts(5))
    for out, words in ((tmp_path, "is not empty and holds no store"), (path, "is a file")):
        before = tree(tmp_path)
        call = lambda out=out: prepare(path, out, tokenizer=tokenizer, say=str)  # noqa: E731
        assert words in refusal(call)
        assert tree(tmp_path) == before


def test_output_that_cannot_be_made(tmp_path, tokenizer):
    path = write(tmp_path / "in.txt", make_texts(5))
    call = lambda: prepare(path, path / "out", tokenizer=tokenizer, say=str)  # noqa: E731
    assert f"cannot write {path / 'out'}" in refusal(call, OSError)


def test_a_whole_store_is_returned_at_once_and_never_overwritten(tmp_path, tokenizer, news):
    path = write(tmp_path / "in.txt", make_texts(60))
    out = tmp_path / "out"
    options = {"validation_fraction": 0.2, "workers": 0, "say": news.append}
    prepare(path, out, tokenizer=tokenizer, **options)
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert len(news) == 1
    prepare(path, out, tokenizer=tokenizer, **options)
    assert news[1:] == [f"{out} is whole and made from the same input: nothing to do"]

    other = Tokenizer.train(texts=make_texts(50), kind="wordpiece", vocab_size=100)
    for tokens, changes, words in [
        (other, {}, "different: the tokenizer"),
        (tokenizer, {"validation_fraction": 0.3}, "different: validation_fraction"),
        (tokenizer, {"field": "x", "shard_bytes": 1000}, "different: field, shard_bytes"),
    ]:
        call = lambda t=tokens, c=changes: prepare(path, out, tokenizer=t, **(options | c))  # noqa: E731
        assert words in refusal(call)
    # The same name and size, other contents.
    write(path, [text.replace("Peace", "Pease") for text in make_texts(60)])
    call = lambda: prepare(path, out, tokenizer=tokenizer, **options)  # noqa: E731
    assert "different: the input" in refusal(call)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before


def test_one_process_at_a_time(tmp_path, tokenizer):
    path = write(tmp_path / "in.txt", make_texts(60))
    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    options = {"tokenizer": tokenizer, "validation_fraction": 0.2, "workers": 0, "say": str}
    assert "another process is writing" in refusal(
        lambda: prepare(path, tmp_path / "out", **options)
    )
    os.close(descriptor)
    prepare(path, tmp_path / "out", **options)


def test_a_store_made_by_another_process_meanwhile(tmp_path, tokenizer, monkeypatch, news):
    """Both saw that there was none; the second gets the lock when the first is done."""
    from bert_jax.data import prepare as module

    path, out = write(tmp_path / "in.txt", make_texts(60)), tmp_path / "out"
    options = {"tokenizer": tokenizer, "validation_fraction": 0.2, "workers": 0}
    lock = module._locked

    def late(*arguments):
        monkeypatch.setattr(module, "_locked", lock)
        prepare(path, out, say=str, **options)
        news.extend(tree(out).items())
        return lock(*arguments)

    monkeypatch.setattr(module, "_locked", late)
    prepare(path, out, say=news.append, **options)
    assert news.pop() == f"{out} is whole and made from the same input: nothing to do"
    assert dict(news) == tree(out)


def test_input_that_changes_while_it_is_read(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path / "in.txt", make_texts(60))

    def growing(*arguments):
        for document in keep(*arguments):
            path.write_text("more")
            yield document

    from bert_jax.data import prepare as module

    keep = module.keep_documents
    monkeypatch.setattr(module, "keep_documents", growing)
    call = lambda: prepare(path, tmp_path / "out", tokenizer=tokenizer, workers=0, say=str)  # noqa: E731
    assert "changed while it was read" in refusal(call)
    assert "unfinished" in refusal(lambda: Store.open(tmp_path / "out"))
