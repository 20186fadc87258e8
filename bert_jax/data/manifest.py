"""The manifest of a store: what it holds, how big and how hashed; the file that makes it whole."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.data.chunks import Census
from bert_jax.data.shards import (
    KINDS,
    MANIFEST,
    SPLITS,
    SUMMED,
    TOKENIZER,
    Journal,
    hash_file,
    is_unfinished,
    shard_file,
    write_whole,
)

FORMAT = "bert_jax token store"
VERSION = 1

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

REMAKE = "delete {path} and prepare it again"


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Type of the token ids of a vocabulary."""
    return "uint16" if vocab_size < 1 << 16 else "uint32"


def sum_up(journal: Journal, census: Census) -> dict[str, dict[str, Any]]:
    """The manifest's entry of each split that has documents."""
    splits = {}
    for split in SPLITS:
        records = [record for key, record in sorted(journal.records.items()) if key[0] == split]
        entry: dict[str, Any] = {key: sum(r[key] for r in records) for key in SUMMED}
        if not entry["documents"]:
            continue
        entry["longest_document"] = max(record["longest_document"] for record in records)
        entry["duplicates"] = census.duplicates[split]
        entry["unknown_rate"] = entry["unknown"] / entry["tokens"]
        entry["fertility"] = entry["tokens"] / entry["words"]
        entry["shards"] = [
            {key: record[key] for key in ("shard", "documents", "tokens", "files")}
            for record in records
            if record["documents"]
        ]
        splits[split] = entry
    return splits


def check_splits(splits: dict[str, dict[str, Any]], fraction: float) -> None:
    """Refuses a store without documents in a split that should have some."""
    documents = sum(split["documents"] for split in splits.values())
    if not documents:
        raise ValueError("no document has a token: check the input and the tokenizer")
    for split in SPLITS if fraction else SPLITS[:1]:
        if split not in splits:
            raise ValueError(
                f"none of the {documents} documents falls into the {split} split at "
                f"validation_fraction {fraction}: give another fraction or more documents, or 0 to "
                "hold none out"
            )


def write_manifest(
    out: Path, described: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]], census: Census
) -> None:
    """Makes the shards in a directory a store.

    Args:
        out: The directory, all shards and the tokenizer in it.
        described: How it was made: "fingerprint", "vocab_size", "tokenizer" (its "digest" and
            "kind"), "inputs", "settings".
        splits: From `sum_up`.
        census: Of the documents read.
    """
    saved = sorted((out / TOKENIZER).iterdir())
    files = {p.name: {"bytes": p.stat().st_size, "sha256": hash_file(p)} for p in saved}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "created_by": f"bert_jax {_package_version()}",
        **described,
        "dtype": token_dtype(described["vocab_size"]),
        "tokenizer": {**described["tokenizer"], "files": files},
        "read": {"documents": census.read, "blank": census.blank},
        "splits": splits,
    }
    manifest["checksum"] = _checksum(manifest)
    write_whole(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _package_version() -> str:
    try:
        return importlib.metadata.version("bert_jax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a store, or says why there is none."""
    if not path.is_dir():
        raise ValueError(f"there is no store {path}: make it with bert-jax prepare")
    file = path / MANIFEST
    if not file.is_file():
        if is_unfinished(path):
            raise ValueError(
                f"{path} is an unfinished store: run the same bert-jax prepare again, it goes on"
            )
        raise ValueError(f"{path} is not a store (it has no {MANIFEST}): give one prepare made")
    try:
        manifest = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): {REMAKE.format(path=path)}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{file} is not the manifest of a store: give a directory prepare made")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{path} is a store of version {manifest.get('version')}, this program reads version "
            f"{VERSION}: prepare it again"
        )
    if manifest.get("checksum") != _checksum(manifest) or not _adds_up(manifest):
        raise ValueError(f"{file} was changed after it was written: {REMAKE.format(path=path)}")
    return manifest


def _adds_up(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest's totals and sizes are those of its shards."""
    itemsize = DTYPES[manifest["dtype"]].itemsize
    sizes = {"tokens": ("tokens", itemsize), "flags": ("tokens", 1), "documents": ("documents", 8)}
    for entry in manifest["splits"].values():
        if any(entry[key] != sum(shard[key] for shard in entry["shards"]) for key in SUMMED[:2]):
            return False
        for shard in entry["shards"]:
            for kind, (key, size) in sizes.items():
                if shard["files"][kind]["bytes"] != shard[key] * size:
                    return False
    return all(os.sep not in name for name in manifest["tokenizer"]["files"])


def manifest_files(path: Path, manifest: Mapping[str, Any]) -> list[tuple[Path, Mapping[str, Any]]]:
    """Every file of the store but the manifest, with its size and hash."""
    files = [(path / TOKENIZER / n, e) for n, e in manifest["tokenizer"]["files"].items()]
    for split, entry in manifest["splits"].items():
        for shard in entry["shards"]:
            for kind in KINDS:
                file = shard_file(path, split, shard["shard"], kind)
                files.append((file, shard["files"][kind]))
    return files


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest but for its own "checksum"."""
    contents = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
