"""The tokenised corpus on disk: reading it, checking it, summing it up.

A store is a directory::

    manifest.json        what it holds, with sizes and hashes; written last: no manifest, no store
    tokenizer/           the tokenizer it was made with
    train/, validation/  shards of whole documents, three files each:
      00000.tokens         ids without special tokens, flat, uint16 (vocabulary < 65536) or uint32
      00000.flags          uint8 a token; bit 0: first of a word, bit 1: first of a sentence
      00000.documents      int64 a document: its number of tokens, at least 1

All numbers are little-endian. `prepare` makes a store; what is not one is refused in a sentence.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt16, UInt32

from bert_jax.data.manifest import DTYPES, REMAKE, manifest_files, read_manifest
from bert_jax.data.shards import COUNTS_DTYPE, KINDS, SPLITS, TOKENIZER, hash_file, shard_file

if TYPE_CHECKING:
    from bert_jax.data.tokenizer import Tokenizer

_OPEN_MAPS = 256  # a memory map holds a file descriptor, of which a process has about a thousand


class Store:
    """A whole store, opened for reading.

    Attributes:
        path: Its directory.
        manifest: Contents of `manifest.json`.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Use `Store.open`."""
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Opens a store; checks its manifest and the sizes of its files, not their contents.

        Args:
            path: The directory `prepare` wrote.

        Raises:
            ValueError: There is no whole store, or it is of another version, or damaged.
        """
        path = Path(path)
        manifest = read_manifest(path)
        for file, entry in manifest_files(path, manifest):
            size = file.stat().st_size if file.is_file() else None
            if size != entry["bytes"]:
                found = "is missing" if size is None else f"has {size} bytes, not {entry['bytes']}"
                raise ValueError(f"{file} {found}: {REMAKE.format(path=path)}")
        return cls(path, manifest)

    @property
    def digest(self) -> str:
        """SHA-256 of the contents: of every shard and of the tokenizer, not of how they came."""
        contents = [self.manifest["tokenizer"]["digest"], self.manifest["dtype"]]
        for split, entry in sorted(self.manifest["splits"].items()):
            contents.append(split)
            contents += [s["files"][kind]["sha256"] for s in entry["shards"] for kind in KINDS]
        return hashlib.sha256("\n".join(contents).encode()).hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits: "train", and "validation" if one was held out."""
        return tuple(split for split in SPLITS if split in self.manifest["splits"])

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer the store was made with."""
        from bert_jax.data.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(self.path / TOKENIZER)
        expected = self.manifest["tokenizer"]["digest"]
        if tokenizer.digest() != expected:
            raise ValueError(
                f"{self.path / TOKENIZER} is not the tokenizer of the store (digest "
                f"{tokenizer.digest()[:12]}, not {expected[:12]}): {REMAKE.format(path=self.path)}"
            )
        return tokenizer

    def split(self, name: str) -> Split:
        """Opens a split.

        Args:
            name: "train" or "validation".

        Raises:
            ValueError: The store has no such split, or its document counts are damaged.
        """
        if name not in self.splits:
            raise ValueError(
                f"{self.path} has no split {name!r}, it has {' and '.join(self.splits)}: "
                "prepare it with a validation fraction above 0 to hold documents out"
            )
        return Split(self, name)

    def verify(self) -> None:
        """Compares every file with its SHA-256 in the manifest (reads the whole store).

        Raises:
            ValueError: A file was changed since it was written.
        """
        for file, entry in manifest_files(self.path, self.manifest):
            if hash_file(file) != entry["sha256"]:
                raise ValueError(
                    f"{file} was changed after it was written (its SHA-256 differs from the "
                    f"manifest's): {REMAKE.format(path=self.path)}"
                )


class Split:
    """The documents of one split as one stream of tokens, read from memory maps.

    Attributes:
        document_offsets: Where in the stream each document begins, and at the end its length.
        shard_offsets: Likewise for the shards. No document spans two.
    """

    document_offsets: Int64[np.ndarray, " documents_plus_1"]
    shard_offsets: Int64[np.ndarray, " shards_plus_1"]

    def __init__(self, store: Store, name: str):
        """Use `Store.split`."""
        entry = store.manifest["splits"][name]
        shards = entry["shards"]
        paths = [
            {kind: shard_file(store.path, name, s["shard"], kind) for kind in KINDS} for s in shards
        ]
        counts = [np.fromfile(files["documents"], COUNTS_DTYPE) for files in paths]
        for shard, files, numbers in zip(shards, paths, counts, strict=True):
            if numbers.min() < 1 or numbers.sum() != shard["tokens"]:
                raise ValueError(
                    f"{files['documents']} does not add up to the {shard['tokens']} tokens of its "
                    f"shard: {REMAKE.format(path=store.path)}"
                )
        self.document_offsets = _offsets(np.concatenate(counts))
        self.shard_offsets = _offsets([shard["tokens"] for shard in shards])
        dtypes = {"tokens": DTYPES[store.manifest["dtype"]], "flags": np.dtype(np.uint8)}

        @functools.lru_cache(maxsize=_OPEN_MAPS)
        def opened(shard: int, kind: str) -> np.ndarray:
            mapped = np.memmap(paths[shard][kind], dtypes[kind], mode="r")
            return mapped.view(np.ndarray)  # plain arrays are faster to slice

        self._opened: Callable[[int, str], np.ndarray] = opened

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Length of the stream."""
        return int(self.document_offsets[-1])

    def read(
        self, start: int, stop: int
    ) -> UInt16[np.ndarray, " tokens"] | UInt32[np.ndarray, " tokens"]:
        """Reads the tokens from `start` up to, not including, `stop`.

        Returns:
            A read-only view of the file where all lie in one shard, else a copy.

        Raises:
            ValueError: Not 0 <= start <= stop <= num_tokens.
        """
        return self._read("tokens", start, stop)

    def read_flags(self, start: int, stop: int) -> UInt8[np.ndarray, " tokens"]:
        """Reads the flags of the same tokens as `read`."""
        return self._read("flags", start, stop)

    def _read(self, kind: str, start: int, stop: int) -> np.ndarray:
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(
                f"cannot read tokens {start} to {stop} of {self.num_tokens}: both must lie in the "
                "split, in this order"
            )
        bounds = self.shard_offsets
        first = min(int(np.searchsorted(bounds, start, "right")) - 1, len(bounds) - 2)
        parts = []
        for shard in range(first, len(bounds) - 1):
            begin, end = int(bounds[shard]), int(bounds[shard + 1])
            parts.append(self._opened(shard, kind)[max(start - begin, 0) : stop - begin])
            if stop <= end:
                break
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def store_summary(store: Store) -> str:
    """Sums a store up in a table for people to read."""
    manifest = store.manifest
    splits = [manifest["splits"][name] for name in store.splits]
    rows: list[tuple[str, list[str]]] = [("", list(store.splits))]
    for label, key in _SUMMARY_COUNTS.items():
        rows.append((label, [f"{split[key]:,}" for split in splits]))
    rows.append(("unknown rate", [f"{split['unknown_rate']:.4%}" for split in splits]))
    rows.append(("tokens a word", [f"{split['fertility']:.3f}" for split in splits]))
    width = max(len(cell) for _, cells in rows for cell in cells)
    lines = [f"{label:<20}" + "".join(f"  {c:>{width}}" for c in cells) for label, cells in rows]
    tokenizer, read = manifest["tokenizer"], manifest["read"]
    return "\n".join(
        (
            f"store          {store.path}  ({manifest['dtype']}, digest {store.digest[:12]})",
            f"tokenizer      {tokenizer['kind']}, {manifest['vocab_size']:,} tokens, digest "
            f"{tokenizer['digest'][:12]}",
            f"input          {', '.join(_input_names(manifest))}",
            f"documents      {read['documents']:,} read, {read['blank']:,} blank",
            *lines,
        )
    )


_SUMMARY_COUNTS = {
    "documents": "documents",
    "duplicates dropped": "duplicates",
    "without a token": "untokenised",
    "tokens": "tokens",
    "words": "words",
    "sentences": "sentences",
    "bytes of text": "bytes",
    "unknown tokens": "unknown",
    "longest document": "longest_document",
}


def _input_names(manifest: Mapping[str, Any]) -> list[str]:
    names = [f"{entry['name']} ({entry['format']})" for entry in manifest["inputs"]]
    return names if len(names) <= 3 else [*names[:2], f"and {len(names) - 2} more"]


def _offsets(counts: Any) -> Int64[np.ndarray, " n_plus_1"]:
    """Cumulative sums from 0."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
