"""The kinds of documents and inputs, and the readers of text and JSON lines."""

import contextlib
import dataclasses
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

Format = Literal["auto", "lines", "paragraphs", "jsonl", "parquet", "tfds"]

MAX_DOCUMENT_BYTES = 1 << 26
"""Longest document that is read: a file without line ends, say, would fill the memory."""

_GZIP_MAGIC = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
        text: Its text, exactly as in the input but for the line's end; may be blank.
        where: `FILE:LINE` or `FILE record N` (both counted from 1), for messages.
    """

    text: str
    where: str


@dataclasses.dataclass(frozen=True)
class Source:
    """One input, found on disk, its format settled.

    Attributes:
        path: The input as the caller named it (a file matched by a pattern: its own path).
        format: Never "auto".
        files: The files the documents are in, in order; one, but for "tfds".
        split: For "tfds", the split or part of one, such as "train" or "train[:10%]".
    """

    path: str
    format: Format
    files: tuple[Path, ...]
    split: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of the files in bytes."""
        return sum(file.stat().st_size for file in self.files)


@contextlib.contextmanager
def open_text(file: Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """Opens a text file, gzipped or not, as (stream of its text, the raw stream below)."""
    with file.open("rb") as raw:
        magic = raw.read(len(_GZIP_MAGIC))
        raw.seek(0)
        if magic != _GZIP_MAGIC:
            yield raw, raw
            return
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream, raw


def read_bytes(
    stream: io.BufferedIOBase, limit: int, path: str, line: int, *, until: bytes = b""
) -> bytes:
    """Reads up to `limit` bytes, or a line if `until` is a newline; damage to gzip is said."""
    try:
        return stream.readline(limit) if until else stream.read(limit)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}:{line} cannot be decompressed ({error}): the gzip file is cut short or "
            "damaged, copy it again"
        ) from error


def _lines(source: Source) -> Iterator[tuple[int, str, int]]:
    """Yields (number from 1, text without its end, raw position) of the lines of a text file."""
    with open_text(source.files[0]) as (stream, raw):
        for number in itertools.count(1):
            line = read_bytes(stream, MAX_DOCUMENT_BYTES + 1, source.path, number, until=b"\n")
            if not line:
                return
            where = f"{source.path}:{number}"
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # the byte order mark some editors write
            if b"\0" in line and not line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ValueError(f"{where} is binary (it holds a zero byte): give UTF-8 text")
            text = decode(line, where)
            yield number, text.removesuffix("\n").removesuffix("\r"), raw.tell()


def _check_length(num_bytes: int, where: str) -> None:
    if num_bytes > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{where} starts a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB: split it into "
            "smaller documents"
        )


def decode(text: bytes, where: str) -> str:
    """Decodes UTF-8; refuses documents longer than `MAX_DOCUMENT_BYTES`."""
    _check_length(len(text), where)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 (byte 0x{text[error.start]:02x} at byte {error.start + 1}): "
            "convert it first, for example with iconv -f latin1 -t utf-8"
        ) from error


def read_lines(source: Source, field: str) -> Iterator[tuple[Document, int]]:
    """Format "lines"."""
    for number, text, position in _lines(source):
        yield Document(text, f"{source.path}:{number}"), position


def read_paragraphs(source: Source, field: str) -> Iterator[tuple[Document, int]]:
    """Format "paragraphs"; the lines of a document are joined by newlines."""
    lines: list[str] = []
    first, size, position = 0, 0, 0
    for number, text, position in _lines(source):
        if text.strip():
            if not lines:
                first, size = number, 0
            lines.append(text)
            size += len(text)
            _check_length(size, f"{source.path}:{first}")
        elif lines:
            yield Document("\n".join(lines), f"{source.path}:{first}"), position
            lines = []
    if lines:
        yield Document("\n".join(lines), f"{source.path}:{first}"), position


def read_jsonl(source: Source, field: str) -> Iterator[tuple[Document, int]]:
    """Format "jsonl"."""
    for number, line, position in _lines(source):
        if not line.strip():
            continue
        where = f"{source.path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{where} is not a JSON object ({error}): write one object a line, or choose the "
                "format lines or paragraphs for plain text"
            ) from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise ValueError(f"{where} is a JSON {kind}, not an object: write one object a line")
        if field not in record:
            raise no_field(where, field, record)
        text = record[field]
        check_string(text, where, field)
        yield Document(text, where), position


def no_field(where: str, field: str, fields: Iterable[str]) -> ValueError:
    """The error for a record without the field."""
    names = sorted(map(repr, fields))
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return ValueError(f"{where} has no field {field!r}: choose a field it has ({listed})")


def check_string(text: Any, where: str, field: str) -> None:
    """Refuses a JSON value that is not a string of Unicode."""
    if not isinstance(text, str):
        kind = "null" if text is None else f"a {type(text).__name__}"
        raise ValueError(f"{where}: field {field!r} is {kind}, not a string: drop the record")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: field {field!r} holds half a surrogate pair, which is not Unicode: repair "
            "its escapes (\\ud83d\\ude00 needs both halves)"
        ) from error
