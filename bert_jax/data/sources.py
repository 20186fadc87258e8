"""Documents from files: text, JSON lines, Parquet, and datasets prepared by TensorFlow Datasets.

Everything is read as a stream: at most one document (or one batch of a Parquet file) is in memory.
A fault in it raises `ValueError` with one sentence that names the file and the line or record.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from bert_jax.data import readers, records
from bert_jax.data.readers import Document, Format, Source

__all__ = ["Document", "Format", "Source", "find_sources", "read_documents", "read_source"]

_SNIFFED_BYTES = 1 << 20  # of a text file, searched for blank lines by format "auto"
_JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonlines")
_REFUSED_SUFFIXES = (".json", ".csv", ".tsv", ".zip", ".tar", ".bz2", ".xz", ".zst", ".pdf")


def read_documents(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: Format = "auto",
    field: str = "text",
) -> Iterator[Document]:
    """Reads the documents of one or several inputs, in the order of the input.

    Formats, text always UTF-8 and all text files also gzipped:
      * "lines": every line is a document;
      * "paragraphs": documents of one or more lines, separated by blank lines;
      * "jsonl": every line is a JSON object, the document is its string `field`;
      * "parquet": the document is the string column `field`;
      * "tfds": a directory prepared by TensorFlow Datasets as "array_record" (the directory that
        holds `dataset_info.json`), optionally followed by `:SPLIT`; "train" if none is named;
      * "auto": by name (`.jsonl`, `.parquet`, a directory, else text). A text file is "lines"; if
        it has blank lines between others, it could be either and the caller is asked to say.

    Blank lines of "jsonl" are passed over. Documents may be blank (empty lines of "lines", say):
    whoever counts documents should drop them.

    Args:
        paths: Files, glob patterns (`**` allowed; matches sorted by name) or TFDS directories.
        format: Of all `paths`.
        field: Name of the text's field; for "lines" and "paragraphs" not used.

    Returns:
        An iterator. The paths are checked at once, the contents as they are read.

    Raises:
        FileNotFoundError: A path or pattern names no file.
        ValueError: The format is unknown or cannot be told; or, while reading: a file is empty,
            binary, not UTF-8, broken, or lacks the field.
    """
    sources = find_sources(paths, format)
    return (document for source in sources for document, _ in read_source(source, field))


def find_sources(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], format: Format = "auto"
) -> tuple[Source, ...]:
    """Finds the inputs and settles the format of each; arguments as in `read_documents`."""
    if format not in get_args(Format):
        known = ", ".join(get_args(Format))
        raise ValueError(f"unknown format {format!r}: choose one of {known}")
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    sources = [_source(path, format) for given in paths for path in _expand(os.fspath(given))]
    if not sources:
        raise ValueError("no input was given: name at least one file")
    return tuple(sources)


def read_source(source: Source, field: str = "text") -> Iterator[tuple[Document, int]]:
    """Reads one source.

    Args:
        source: From `find_sources`.
        field: As in `read_documents`.

    Yields:
        Each document, and how many bytes of the source's files were read for it and those before it
        (for a progress bar: buffering and compression make it approximate).
    """
    empty = True
    for document, position in _READERS[source.format](source, field):
        empty = empty and not document.text.strip()
        yield document, position
    if empty:
        raise ValueError(f"{source.path} holds no document (it is empty or blank): leave it out")


def _expand(path: str) -> list[str]:
    """The path itself, or the sorted matches of a pattern."""
    if os.path.exists(path) or not glob.has_magic(path) or records.split_tfds(path):
        return [path]
    matches = sorted(match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
    if not matches:
        raise FileNotFoundError(f"no file matches {path}: check the pattern")
    return matches


def _source(path: str, format: Format) -> Source:
    """Settles the format of an existing path."""
    if format == "tfds" or (format == "auto" and records.split_tfds(path)):
        return records.find_tfds(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory: name the files in it, such as {path}/*.txt")
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}: check the path")
    if not os.path.isfile(path):
        raise ValueError(f"{path} is not a regular file: write its contents to one first")
    return Source(path, _format_by_name(path) if format == "auto" else format, (Path(path),))


def _format_by_name(path: str) -> Format:
    """Format "auto" of a file."""
    name = path.lower().removesuffix(".gz")
    if name.endswith(_JSONL_SUFFIXES):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(_REFUSED_SUFFIXES):
        raise ValueError(
            f"{path} is of a kind that is not read: convert it to text, jsonl or Parquet, or "
            "name its format if it is one of these"
        )
    with readers.open_text(Path(path)) as (stream, _):
        lines = readers.read_bytes(stream, _SNIFFED_BYTES, path, 1).rstrip().split(b"\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if any(not line.strip() for line in lines[first:]):
        raise ValueError(
            f"{path} has blank lines between others, so it can be read in two ways: choose the "
            "format lines (a document a line) or paragraphs (blank lines separate documents)"
        )
    return "lines"


_READERS = {
    "lines": readers.read_lines,
    "paragraphs": readers.read_paragraphs,
    "jsonl": readers.read_jsonl,
    "parquet": records.read_parquet,
    "tfds": records.read_tfds,
}
