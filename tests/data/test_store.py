"""A whole store reads back what was written; anything else is refused with one sentence."""

import json
import random
import re
import shutil

import numpy as np
import pytest

from bert_jax.data import store as store_module
from bert_jax.data.prepare import prepare
from bert_jax.data.store import Store, store_summary
from bert_jax.data.tokenizer import Tokenizer

SENTENCE = "the state of union is strong and its people are free to choose peace now"


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(5)
    return [
        " ".join(generator.choices(SENTENCE.split(), k=generator.randrange(1, 60))) + f" {n}."
        for n in range(300)
    ]


@pytest.fixture(scope="module")
def original(texts, tmp_path_factory):
    """A store of several shards in both splits."""
    directory = tmp_path_factory.mktemp("store")
    (directory / "in.txt").write_text("\n".join(texts))
    tokenizer = Tokenizer.train(texts=texts, kind="wordpiece", vocab_size=120)
    options = {"tokenizer": tokenizer, "validation_fraction": 0.3, "workers": 0}
    prepare(directory / "in.txt", directory / "out", shard_bytes=4000, say=str, **options)
    return directory / "out"


@pytest.fixture
def path(original, tmp_path):
    """A copy to damage."""
    return shutil.copytree(original, tmp_path / "store")


def refusal(call) -> str:
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


def rewrite(path, change) -> None:
    """Changes a manifest and makes its check sum right again."""
    from bert_jax.data import manifest as manifests

    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    manifest["checksum"] = manifests._checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_reads_agree_with_the_files(original, split):
    opened = Store.open(original).split(split)
    files = {
        kind: [np.fromfile(f, dtype) for f in sorted((original / split).glob(f"*.{kind}"))]
        for kind, dtype in (("tokens", "<u2"), ("flags", "u1"), ("documents", "<i8"))
    }
    tokens, flags = np.concatenate(files["tokens"]), np.concatenate(files["flags"])
    assert len(files["tokens"]) > 3
    assert opened.num_tokens == len(tokens) == len(flags)
    assert opened.num_documents == sum(map(len, files["documents"]))
    np.testing.assert_array_equal(
        opened.document_offsets, np.cumsum([0, *np.concatenate(files["documents"])])
    )
    np.testing.assert_array_equal(opened.shard_offsets, np.cumsum([0, *map(len, files["tokens"])]))
    assert opened.document_offsets.dtype == opened.shard_offsets.dtype == np.int64
    generator = random.Random(1)
    edges = [0, 1, *opened.shard_offsets.tolist(), len(tokens) - 1]
    edges += [generator.randrange(len(tokens)) for _ in range(20)]
    for start in edges:
        for stop in edges:
            if start <= stop:
                got = opened.read(start, stop)
                assert got.dtype == np.uint16
                np.testing.assert_array_equal(got, tokens[start:stop])
                np.testing.assert_array_equal(opened.read_flags(start, stop), flags[start:stop])


def test_a_read_inside_a_shard_is_a_view_that_cannot_be_written(original):
    opened = Store.open(original).split("train")
    inside, across = opened.read(1, 9), opened.read(0, int(opened.shard_offsets[1]) + 1)
    assert np.shares_memory(inside, across) is False
    assert np.shares_memory(inside, opened.read(0, 10))
    with pytest.raises(ValueError, match="read-only"):
        inside[0] = 1
    assert type(inside) is type(across) is np.ndarray


def test_more_shards_than_maps_kept_open(original, monkeypatch):
    expected = Store.open(original).split("train")
    tokens = expected.read(0, expected.num_tokens)
    monkeypatch.setattr(store_module, "_OPEN_MAPS", 2)
    opened = Store.open(original).split("train")
    np.testing.assert_array_equal(opened.read(0, opened.num_tokens), tokens)
    np.testing.assert_array_equal(opened.read(0, opened.num_tokens), tokens)


@pytest.mark.parametrize("bounds", [(-1, 2), (3, 2), (0, 10**9)])
def test_reads_outside_are_refused(original, bounds):
    opened = Store.open(original).split("train")
    assert "must lie in the split" in refusal(lambda: opened.read(*bounds))


def test_tokenizer_comes_back(original, texts):
    store = Store.open(original)
    tokenizer = store.tokenizer()
    assert tokenizer.digest() == store.manifest["tokenizer"]["digest"]
    split = store.split("train")
    first = split.read(0, int(split.document_offsets[1])).tolist()
    assert first in [list(ids) for ids, _, _ in tokenizer.encode_arrays(texts)]


def test_digest_is_of_the_contents(original, path):
    digest = Store.open(original).digest
    rewrite(path, lambda manifest: manifest.update(created_by="another version"))
    assert Store.open(path).digest == digest

    def change_a_hash(manifest):
        manifest["splits"]["train"]["shards"][0]["files"]["flags"]["sha256"] = "0"

    rewrite(path, change_a_hash)
    assert Store.open(path).digest != digest


def test_summary_shows_the_numbers(original):
    store = Store.open(original)
    table = store_summary(store)
    train, validation = (store.manifest["splits"][name] for name in ("train", "validation"))
    lines = {line[:20].strip(): line[20:].split() for line in table.splitlines()}
    for label, key in (("tokens", "tokens"), ("duplicates dropped", "duplicates")):
        assert lines[label] == [f"{split[key]:,}" for split in (train, validation)]
    assert lines["tokens a word"] == [f"{s['fertility']:.3f}" for s in (train, validation)]
    assert "in.txt (lines)" in table
    assert store.digest[:12] in table


# --- refusals -------------------------------------------------------------------------------------


def test_what_is_no_store(tmp_path):
    assert "there is no store" in refusal(lambda: Store.open(tmp_path / "none"))
    assert "is not a store" in refusal(lambda: Store.open(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    assert "not the manifest of a store" in refusal(lambda: Store.open(tmp_path))


def test_an_unfinished_store(path):
    (path / "manifest.json").unlink()
    (path / "journal.jsonl.partial").write_text("")
    assert "is not a store" in refusal(lambda: Store.open(path))
    (path / "journal.jsonl").write_text('{"format": "bert_jax token store journal, version 1"}\n')
    assert "unfinished store: run the same" in refusal(lambda: Store.open(path))


def test_another_version(path):
    rewrite(path, lambda manifest: manifest.update(version=2))
    assert "version 2, this program reads version 1" in refusal(lambda: Store.open(path))


@pytest.mark.parametrize("cut", [0, 1, 100, -3])
def test_a_manifest_cut_short(path, cut):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[:cut])
    assert "damaged" in refusal(lambda: Store.open(path))


def test_a_manifest_with_a_changed_digit(path):
    text = (path / "manifest.json").read_text()
    changed = re.sub(r'("words": \d*)(\d)', lambda m: m[1] + str((int(m[2]) + 1) % 10), text)
    assert changed != text
    (path / "manifest.json").write_text(changed)
    assert "was changed after it was written" in refusal(lambda: Store.open(path))


def test_a_manifest_that_does_not_add_up(path):
    def one_more(manifest):
        manifest["splits"]["train"]["documents"] += 1

    rewrite(path, one_more)
    assert "was changed after it was written" in refusal(lambda: Store.open(path))


@pytest.mark.parametrize(
    "name", ["train/00001.tokens", "validation/00000.flags", "tokenizer/tokenizer.json"]
)
def test_missing_cut_and_altered_files(path, name):
    whole = (path / name).read_bytes()
    (path / name).unlink()
    assert f"{path / name} is missing: delete" in refusal(lambda: Store.open(path))
    (path / name).write_bytes(whole[:-2])
    assert f"has {len(whole) - 2} bytes, not {len(whole)}" in refusal(lambda: Store.open(path))
    (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    store = Store.open(path)
    assert f"{path / name} was changed" in refusal(store.verify)
    (path / name).write_bytes(whole)
    Store.open(path).verify()


def test_document_counts_that_do_not_add_up(path):
    counts = np.fromfile(path / "train/00001.documents", "<i8")
    for damaged in (counts + 1, np.concatenate(([0, counts[0] + counts[1]], counts[2:]))):
        damaged.tofile(path / "train/00001.documents")
        store = Store.open(path)
        assert "does not add up" in refusal(lambda store=store: store.split("train"))


def test_another_tokenizer(path, texts):
    other = Tokenizer.train(texts=texts, kind="wordpiece", vocab_size=60)
    store = Store.open(path)
    shutil.rmtree(path / "tokenizer")
    other.save(path / "tokenizer")
    assert "is not the tokenizer of the store" in refusal(store.tokenizer)


def test_no_such_split(original):
    message = refusal(lambda: Store.open(original).split("test"))
    assert "no split 'test', it has train and validation" in message
