"""The record of a checkpoint: what the state was, so that what comes back can be compared with it.

JSON: the step, the caller's facts (``meta``), shape, type and checksum of every array by its path,
and a digest over all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.train.checksum import checksums


class CheckpointMismatch(ValueError):
    """A sound checkpoint of something else than what is to be restored."""


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as ``params/encoder/final_norm/scale``, in the tree's order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def make_record(
    step: int, meta: Mapping[str, Any], leaves: Mapping[str, jax.Array]
) -> dict[str, Any]:
    """What is saved beside the arrays.

    Args:
        step: Steps done.
        meta: The caller's facts, as JSON.
        leaves: The arrays, by path.
    """
    sums = checksums(leaves)
    arrays = {
        path: {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "checksum": sums[path]}
        for path, leaf in leaves.items()
    }
    record = {"step": step, "meta": dict(meta), "arrays": arrays}
    return record | {"digest": _digest(record)}


def _digest(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_record(record: Mapping[str, Any], step: int) -> None:
    """ValueError if the record was changed after it was made, or is of another step."""
    if record["digest"] != _digest(record):
        raise ValueError("its record does not match the record's own digest")
    if record["step"] != step:
        raise ValueError(f"it holds step {record['step']}")


def check_same(
    wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Any], where: str
) -> None:
    """CheckpointMismatch if names, types or shapes differ, in the part of the state that is wanted.

    Args:
        wanted: What is to be restored, by path.
        saved: ``arrays`` of the record.
        where: The checkpoint, for the message.
    """
    parts = {path.split("/")[0] for path in wanted}
    here = {path: f"{leaf.dtype} {tuple(leaf.shape)}" for path, leaf in wanted.items()}
    there = {
        path: f"{entry['dtype']} {tuple(entry['shape'])}"
        for path, entry in saved.items()
        if path.split("/")[0] in parts
    }
    differing = [path for path in here | there if here.get(path) != there.get(path)]
    if differing:
        path, others = differing[0], len(differing) - 1
        raise CheckpointMismatch(
            f"{path} is {here.get(path, 'absent')} in the model and {there.get(path, 'absent')} in "
            f"{where}{f' ({others} more differ)' if others else ''}: use the configuration it was "
            f"trained with, or another run directory."
        )


def check_contents(leaves: Mapping[str, jax.Array], saved: Mapping[str, Any]) -> None:
    """ValueError if an array's checksum differs from the one that was saved.

    Args:
        leaves: Restored arrays, by path; in any layout.
        saved: ``arrays`` of the record.
    """
    sums = checksums(leaves)
    changed = [name for name in leaves if sums[name] != saved[name]["checksum"]]
    if changed:
        more = f", nor those of {len(changed) - 1} more" if changed[1:] else ""
        raise ValueError(f"the contents of {changed[0]} are not what was saved{more}")
