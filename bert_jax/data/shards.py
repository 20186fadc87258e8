"""Files that are whole or absent: the shards of a store and the journal of those already written.

A shard is written under names that end in `.partial`, flushed to disk, renamed, and only then noted
in the journal with the sizes and hashes of its files. So whatever the journal notes is there; what
an interruption left besides is written again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt16, UInt32

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
TOKENIZER = "tokenizer"
SPLITS = ("train", "validation")
KINDS = ("tokens", "flags", "documents")
COUNTS_DTYPE = np.dtype("<i8")
WORD_START = 1
SENTENCE_START = 2

SUMMED = ("documents", "tokens", "words", "sentences", "bytes", "unknown", "untokenised")
"""Fields of a shard's record that add up to those of its split."""

_JOURNAL_FORMAT = "bert_jax token store journal, version 1"
_PARTIAL = ".partial"


@dataclasses.dataclass(frozen=True)
class Tokenised:
    """Documents as tokens.

    Attributes:
        tokens: Ids of all documents, one after the other.
        flags: Of each token; bit 0 (`WORD_START`): first of a word, bit 1 (`SENTENCE_START`): first
            of a sentence.
        counts: Tokens of each document; may be 0.
    """

    tokens: UInt16[np.ndarray, " tokens"] | UInt32[np.ndarray, " tokens"]
    flags: UInt8[np.ndarray, " tokens"]
    counts: Int64[np.ndarray, " documents"]


def shard_file(out: Path, split: str, shard: int, kind: str) -> Path:
    """Path of one of the three files of a shard."""
    return out / split / f"{shard:05d}.{kind}"


def hash_file(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_directory(path: Path) -> None:
    """Flushes the names in a directory to disk, so that a rename survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, contents: str) -> None:
    """Writes a file so that its name never stands for less than all of it."""
    partial = path.with_name(path.name + _PARTIAL)
    with said(path):
        with partial.open("w", encoding="utf-8") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """Turns a failure to write into one sentence."""
    try:
        yield
    except OSError as error:
        cure = "make it writable or choose another output directory"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            cure = "make room and run the same command again, it goes on from here"
        raise OSError(f"cannot write {path} ({error.strerror or error}): {cure}") from error


class ShardWriter:
    """Writes one shard: `append` what it holds, in order, then `close`."""

    def __init__(self, out: Path, split: str, shard: int, unknown_id: int):
        """Opens the files.

        Args:
            out: Directory of the store.
            split: "train" or "validation".
            shard: Number of the shard in its split.
            unknown_id: Token id counted as unknown.
        """
        self._paths = {kind: shard_file(out, split, shard, kind) for kind in KINDS}
        self._unknown_id = unknown_id
        self._hashes = {kind: hashlib.sha256() for kind in KINDS}
        self._record: dict[str, Any] = {"split": split, "shard": shard} | dict.fromkeys(SUMMED, 0)
        self._record["longest_document"] = 0
        with said(out / split):
            (out / split).mkdir(exist_ok=True)
            self._files = {kind: _partial(path).open("wb") for kind, path in self._paths.items()}

    def append(self, chunk: Tokenised, sizes: Int64[np.ndarray, " documents"]) -> None:
        """Adds documents; those without a token are counted and left out.

        Args:
            chunk: The documents.
            sizes: Bytes of text of each.
        """
        kept = chunk.counts > 0
        counts = chunk.counts[kept].astype(COUNTS_DTYPE)
        record = self._record
        record["documents"] += len(counts)
        record["untokenised"] += int(np.sum(~kept))
        record["tokens"] += len(chunk.tokens)
        record["words"] += int(np.count_nonzero(chunk.flags & WORD_START))
        record["sentences"] += int(np.count_nonzero(chunk.flags & SENTENCE_START))
        record["unknown"] += int(np.count_nonzero(chunk.tokens == self._unknown_id))
        record["bytes"] += int(sizes[kept].sum())
        record["longest_document"] = max(record["longest_document"], int(counts.max(initial=0)))
        for kind, array in zip(KINDS, (chunk.tokens, chunk.flags, counts), strict=True):
            data = np.ascontiguousarray(array).tobytes()
            self._hashes[kind].update(data)
            with said(self._paths[kind]):
                self._files[kind].write(data)

    def close(self) -> dict[str, Any]:
        """Gives the files their names, all contents on disk.

        Returns:
            The shard's record for the journal: its counts and its files' sizes and hashes. A shard
            without a document has no files.
        """
        files = {}
        for kind, path in self._paths.items():
            with said(path):
                self._files[kind].flush()
                os.fsync(self._files[kind].fileno())
                size = self._files[kind].tell()
            files[kind] = {"bytes": size, "sha256": self._hashes[kind].hexdigest()}
        self.abandon()
        if not self._record["documents"]:
            for path in self._paths.values():
                _partial(path).unlink()
            return self._record | {"files": {}}
        for path in self._paths.values():
            _partial(path).replace(path)
        sync_directory(self._paths["tokens"].parent)
        return self._record | {"files": files}

    def abandon(self) -> None:
        """Closes the files; unless they were named before, they will be written again."""
        for file in self._files.values():
            # Closing tries once more to write what could not be written, which was said already.
            with contextlib.suppress(OSError):
                file.close()


class Journal:
    """The shards written so far into a store that is not yet whole.

    Attributes:
        records: By (split, number of the shard), the records of `ShardWriter.close`.
    """

    records: dict[tuple[str, int], dict[str, Any]]

    def __init__(self, out: Path, fingerprint: str):
        """Opens the journal of an output directory, or begins one.

        A journal of the same fingerprint goes on, its shards verified by their hashes. One of
        another fingerprint and everything written under it are removed first.

        Args:
            out: An existing directory: empty, or one that `check_output` took for unfinished.
            fingerprint: Of all that determines the contents of the store.
        """
        self._path = out / JOURNAL
        header, records = _parse_journal(self._path)
        if header.get("fingerprint") != fingerprint:
            _remove_contents(out)
            records = []
        self.records = {(r["split"], r["shard"]): r for r in records if _is_intact(out, r)}
        _remove_unnoted(out, self.records)
        header = {"format": _JOURNAL_FORMAT, "fingerprint": fingerprint}
        lines = [json.dumps(line) + "\n" for line in (header, *self.records.values())]
        write_whole(self._path, "".join(lines))

    def append(self, record: Mapping[str, Any]) -> None:
        """Notes a shard that `ShardWriter.close` has finished."""
        with said(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[record["split"], record["shard"]] = dict(record)


def is_unfinished(out: Path) -> bool:
    """Whether a directory holds a store that was begun and not finished (or was about to be)."""
    if (out / JOURNAL).exists():
        return _parse_journal(out / JOURNAL)[0].get("format") == _JOURNAL_FORMAT
    return [path.name for path in out.iterdir()] == [JOURNAL + _PARTIAL]


def _partial(path: Path) -> Path:
    return path.with_name(path.name + _PARTIAL)


def _parse_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and records of a journal, up to a last line that was cut short; both empty if none."""
    if not path.exists():
        return {}, []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header, *records = [json.loads(line) for line in lines]
        return dict(header), records
    except (ValueError, TypeError):
        return {}, []


def _is_intact(out: Path, record: Mapping[str, Any]) -> bool:
    """Whether the files of a shard are what its record says."""
    for kind, entry in record["files"].items():
        path = shard_file(out, record["split"], record["shard"], kind)
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            return False
        if hash_file(path) != entry["sha256"]:
            return False
    return True


def _remove_contents(out: Path) -> None:
    """Removes what an unfinished store of another fingerprint left, the journal excepted."""
    for name in (*SPLITS, TOKENIZER):
        if (out / name).exists():
            shutil.rmtree(out / name)


def _remove_unnoted(out: Path, noted: Iterable[tuple[str, int]]) -> None:
    """Removes files of shards that the journal does not know."""
    known = {shard_file(out, *key, kind) for key in noted for kind in KINDS}
    for split in SPLITS:
        for path in (out / split).glob("*"):
            if path not in known:
                path.unlink()
