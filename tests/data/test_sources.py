"""Reading documents: every format as written, every fault one sentence with its place."""

import gzip
import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.data import readers
from bert_jax.data.prepare import prepare
from bert_jax.data.sources import find_sources, read_documents, read_source
from bert_jax.data.tokenizer import Tokenizer

TEXTS = ["A first one.", "Zweite: äöü €🤗.", "  spaces kept  ", "line\u2028separator \x0c and \x85"]


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def write_jsonl(path, texts, field="text"):
    lines = [json.dumps({"n": i, field: text}) + "\n" for i, text in enumerate(texts)]
    return write(path, "".join(lines).encode())


def read(paths, **options):
    return [document.text for document in read_documents(paths, **options)]


def refusal(paths, error=ValueError, **options) -> str:
    """The message of the refusal: one sentence, without a line break."""
    with pytest.raises(error) as raised:
        list(read_documents(paths, **options))
    message = str(raised.value)
    assert "\n" not in message
    assert ": " in message
    return message


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines(tmp_path, end, last, pack):
    data = end.join(TEXTS) + (end if last else "")
    path = write(tmp_path / "a.txt", pack(data.encode()))
    documents = list(read_documents(path))
    assert [d.text for d in documents] == TEXTS
    assert [d.where for d in documents] == [f"{path}:{n}" for n in (1, 2, 3, 4)]


def test_lines_of_two_gzip_members_and_a_byte_order_mark(tmp_path):
    data = gzip.compress("\ufeffone\n".encode()) + gzip.compress(b"two\n", mtime=0)
    assert read(write(tmp_path / "a.txt.gz", data)) == ["one", "two"]


def test_blank_lines_are_blank_documents_of_lines(tmp_path):
    path = write(tmp_path / "a.txt", b"one\n\n \ntwo\n")
    assert read(path, format="lines") == ["one", "", " ", "two"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_paragraphs(tmp_path, end):
    lines = ["", "one", "", " \t", "two", " goes on", "", "three"]
    path = write(tmp_path / "a.txt", end.join(lines).encode())
    documents = list(read_documents(path, format="paragraphs"))
    assert [d.text for d in documents] == ["one", "two\n goes on", "three"]
    assert [d.where for d in documents] == [f"{path}:{n}" for n in (2, 5, 8)]


def test_auto_asks_when_text_can_be_read_in_two_ways(tmp_path):
    message = refusal(write(tmp_path / "a.txt", b"one\ngoes on\n\ntwo\n"))
    assert "lines" in message
    assert "paragraphs" in message
    assert read(write(tmp_path / "b.txt", b"\n\none\ntwo\n\n\n")) == ["", "", "one", "two", "", ""]


def test_several_files_and_patterns_in_the_order_given(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "b.txt", b"b\n")
    write(tmp_path / "a.txt", b"a\n")
    write(tmp_path / "deep" / "c.txt", b"c\n")
    write_jsonl(tmp_path / "d.jsonl", ["d"])
    paths = [tmp_path / "d.jsonl", f"{tmp_path}/*.txt", f"{tmp_path}/**/c.txt"]
    assert read(paths) == ["d", "a", "b", "c"]
    assert read(str(tmp_path / "a.txt")) == ["a"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    assert read(write(tmp_path / "a[1].txt", b"a\n")) == ["a"]


def test_position_reaches_the_size_of_the_file(tmp_path):
    path = write(tmp_path / "a.txt", b"one line\n" * 1000)
    (source,) = find_sources(path)
    positions = [position for _, position in read_source(source)]
    assert positions == sorted(positions)
    assert positions[-1] == source.num_bytes == 9000


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", None, "holds no document"),
        (b"\n \n", None, "holds no document"),
        (b"good\nb\0d\n", 2, "binary"),
        (b"good\ngood\ncaf\xe9 au lait\n", 3, r"not UTF-8 \(byte 0xe9 at byte 4\).*iconv"),
        ("text".encode("utf-16"), 1, "not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 1, "not UTF-8"),
        (gzip.compress(b"good\n" * 9, mtime=0)[:-9], None, "cannot be decompressed.*copy it again"),
        (gzip.compress(b"good\n", mtime=0)[:12] + b"bad" * 9, None, "cannot be decompressed"),
    ],
)
def test_bad_text_is_refused_with_its_line(tmp_path, data, line, words):
    path = write(tmp_path / "a.txt", data)
    message = refusal(path, format="lines")
    assert message.startswith(f"{path}:{line}" if line else str(path))
    assert re.search(words, message)


def test_documents_without_an_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 1 << 20)
    assert read(write(tmp_path / "a.txt", b"x" * (1 << 20))) == ["x" * (1 << 20)]
    path = write(tmp_path / "b.txt", b"good\n" + b"x" * (1 << 21))
    assert refusal(path).startswith(f"{path}:2 starts a document of more than 1 MiB")
    path = write(tmp_path / "c.txt", b"good\n\n" + (b"x" * 1000 + b"\n") * 1100)
    assert refusal(path, format="paragraphs").startswith(f"{path}:3 starts a document")


# --- paths ----------------------------------------------------------------------------------------


def test_bad_paths_are_refused_at_once(tmp_path):
    for path, error, words in [
        (tmp_path / "no.txt", FileNotFoundError, "no file"),
        (tmp_path / "*.txt", FileNotFoundError, "no file matches"),
        (tmp_path, ValueError, "is a directory"),
        ("/dev/null", ValueError, "not a regular file"),
        (write(tmp_path / "a.json", b"{}"), ValueError, "a kind that is not read"),
        ([], ValueError, "no input"),
    ]:
        with pytest.raises(error, match=words):
            read_documents(path)  # without reading the first document


def test_an_unknown_format_is_refused(tmp_path, unchecked):
    with pytest.raises(ValueError, match=r"unknown format 'xml'.*paragraphs"):
        read_documents(tmp_path, format="xml")  # type: ignore[arg-type]


# --- JSON lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson"])
def test_jsonl(tmp_path, name):
    texts = [
        *TEXTS,
        "two\nlines",
        "\ud83e\udd17".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
    path = write_jsonl(tmp_path / name, texts)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == texts
    assert read(write_jsonl(path, ["x"], "body"), field="body") == ["x"]


def test_jsonl_passes_over_blank_lines_and_counts_them(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n\n{"text": "b"}')
    assert [d.where for d in read_documents(path)] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "cut sh', "not a JSON object"),
        (b"plain text", "not a JSON object.*format lines or paragraphs"),
        (b'["text"]', "is a JSON list, not an object"),
        (b'{"body": "x", "title": "y"}', "no field 'text'.*'body', 'title'"),
        (b'{"text": null}', "field 'text' is null"),
        (b'{"text": 3}', "field 'text' is a int"),
        (b'{"text": "\\ud83d"}', "half a surrogate pair"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"[" * 200_000, "not a JSON object"),
    ],
)
def test_bad_jsonl_is_refused_with_its_line(tmp_path, line, words):
    path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n\n' + line + b"\n")
    message = refusal(path)
    assert message.startswith(f"{path}:3")
    assert re.search(words, message)


# --- Parquet --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_parquet(tmp_path, kind):
    texts = TEXTS * 300  # several batches and row groups
    path = tmp_path / "a.parquet"
    data = [text.encode() for text in texts] if kind == pa.binary() else texts
    columns = {"n": list(range(len(texts))), "text": pa.array(data).cast(kind)}
    pq.write_table(pa.table(columns), path, row_group_size=500)
    documents = list(read_documents(path))
    assert [d.text for d in documents] == texts
    assert documents[700].where == f"{path} record 701"


def test_bad_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2], "text": ["a", None]}), path)
    assert "no field 'body'" in refusal(path, field="body")
    assert "field 'n' is int64, not a string" in refusal(path, field="n")
    assert refusal(path).startswith(f"{path} record 2: field 'text' is null")
    pq.write_table(pa.table({"text": pa.array([b"good", b"caf\xe9"])}), path)
    assert refusal(path).startswith(f"{path} record 2 is not UTF-8")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert "holds no document" in refusal(path)


def test_damaged_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [str(i) for i in range(10_000)]}), path)
    whole = path.read_bytes()
    for data in (b"", b"not parquet at all", whole[: len(whole) // 2]):
        assert "cannot be read as Parquet" in refusal(write(path, data))


# --- TensorFlow Datasets --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory):
    """A dataset of 600 training and 3 test records, prepared in the array_record format."""
    import tensorflow_datasets as tfds

    class Small(tfds.core.GeneratorBasedBuilder):
        """Records that number themselves."""

        VERSION = tfds.core.Version("1.0.0")
        __module__ = "__main__"  # of a module in a package, TFDS looks for more files

        def _info(self):
            features = {"text": tfds.features.Text(), "n": np.int64, "flag": np.bool_}
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(600), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for n in range(count):
                yield n, {"text": f"Dokument {n} mit Ü.", "n": n, "flag": n % 2 == 0}

    builder = Small(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format="array_record")
    builder.download_and_prepare()
    return builder.data_path


def test_tfds(tfds_directory):
    path = str(tfds_directory)
    expected = [f"Dokument {n} mit Ü." for n in range(600)]
    assert read(path) == read(f"{path}:train", format="tfds") == expected
    assert read(f"{path}:test") == expected[:3]
    assert read(f"{path}:train[:10%]") == expected[:60]
    documents = list(read_documents(f"{path}:train[590:]+test"))
    assert [d.text for d in documents] == expected[590:] + expected[:3]
    assert documents[-1].where == f"{path}:train[590:]+test record 13"
    (source,) = find_sources(f"{path}:test")
    assert [file.name for file in source.files] == ["small-test.array_record-00000-of-00001"]


def test_a_store_from_tfds(tfds_directory, tmp_path):
    texts = [f"Dokument {n} mit Ü." for n in range(600)]
    tokenizer = Tokenizer.train(texts=texts, kind="wordpiece", vocab_size=60)
    options = {"tokenizer": tokenizer, "validation_fraction": 0.1, "workers": 0, "say": str}
    store = prepare(f"{tfds_directory}:train[:50%]", tmp_path / "tfds", **options)
    write(tmp_path / "in.txt", "\n".join(texts[:300]).encode())
    assert store.digest == prepare(tmp_path / "in.txt", tmp_path / "lines", **options).digest
    (entry,) = store.manifest["inputs"]
    assert (entry["format"], entry["split"]) == ("tfds", "train[:50%]")
    assert entry["name"] == "small-train.array_record-00000-of-00001"


def test_tfds_needs_no_tensorflow(tfds_directory):
    program = """
        import sys
        from bert_jax.data.sources import read_documents
        assert len(list(read_documents(sys.argv[1]))) == 600
        assert "tensorflow" not in sys.modules and "jax" not in sys.modules
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), str(tfds_directory)]
    subprocess.run(command, check=True)


def copy_of(directory, to):
    to.mkdir()
    for file in directory.iterdir():
        write(to / file.name, file.read_bytes())
    return to


def test_bad_tfds_is_refused(tfds_directory, tmp_path):
    path = str(tfds_directory)
    assert re.search("no split 'dev'.*train, test", refusal(f"{path}:dev"))
    assert "no field 'body'" in refusal(path, field="body")
    assert re.search("field 'n' is not text but", refusal(path, field="n"))
    assert "no dataset_info.json" in refusal(tmp_path, format="tfds")

    broken = copy_of(tfds_directory, tmp_path / "broken")
    file = broken / "small-train.array_record-00000-of-00001"
    data = file.read_bytes()
    write(file, data[:2000] + bytes([data[2000] ^ 8]) + data[2001:])
    assert re.search("records 1 to 256 cannot be read", refusal(broken))
    file.unlink()
    refusal(broken, FileNotFoundError)
    write(broken / "dataset_info.json", b"{")
    assert "damaged" in refusal(broken)


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ("parquet", "lose records"),
        ("tfrecord", "TensorFlow"),
        ("riegeli", "only array_record"),
        (None, "TensorFlow"),
    ],
)
def test_other_formats_of_tfds_are_refused_with_the_reason(
    tfds_directory, tmp_path, format, reason
):
    copy = copy_of(tfds_directory, tmp_path / "copy")
    info = json.loads((copy / "dataset_info.json").read_text())
    del info["fileFormat"]
    if format:
        info["fileFormat"] = format
    write(copy / "dataset_info.json", json.dumps(info).encode())
    message = refusal(copy)
    assert reason in message
    assert 'file_format="array_record"' in message
