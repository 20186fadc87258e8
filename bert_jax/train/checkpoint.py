"""Checkpoints: Orbax writes and reads the arrays; what it does not check is checked here.

A checkpoint is the directory named by its step. Orbax writes it under another name, in the
background, and renames it when it is whole. It restores flipped bits in silence, casts to another
type without a word and takes an empty directory for a checkpoint (orbax-checkpoint 0.12.8). So a
*record* is saved beside the arrays: shape, type and checksum of each, the caller's facts, and a
digest over all of it; and everything restored is compared with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from unittest import mock

import jax
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax.train.checksum import checksums
from bert_jax.train.state import TrainState

# Orbax logs the traceback of a failed write several times over before it raises the error here.
logging.getLogger("absl").addFilter(
    lambda record: record.levelno < logging.ERROR or "orbax" not in record.pathname
)

_SET_ASIDE = ".set-aside"  # Orbax and `steps` see directories named by a number only


class BrokenCheckpoint(ValueError):
    """A checkpoint that cannot be read, or whose contents are not what was saved."""


class CheckpointMismatch(ValueError):
    """A sound checkpoint of something else than what is to be restored."""


class Restored(NamedTuple):
    """What a checkpoint held.

    Attributes:
        state: The state, in the structure and layout that was asked for.
        meta: The facts given to `Checkpointer.save`.
        step: Steps done.
    """

    state: Any
    meta: dict[str, Any]
    step: int


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Checkpointer:
    """Saves and restores the states of one run; a context manager, which `close`s at its end.

    With several processes, every process makes the same calls in the same order.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep_last: int = 2,
        keep_every: int | None = None,
        notify: Callable[[str], None] = _say,
    ):
        """Opens a directory of checkpoints; nothing is written before the first `save`.

        Args:
            directory: Of this run's checkpoints; need not exist.
            keep_last: How many of the newest are kept.
            keep_every: Checkpoints at multiples of it are kept for ever.
            notify: Takes the sentences that must be said aloud; to stderr by default.
        """
        self._directory = Path(directory).absolute()
        keep: list[Any] = [preservation_policy.LatestN(keep_last)]
        if keep_every is not None:
            keep.append(preservation_policy.EveryNSteps(keep_every))
        self._keep = preservation_policy.AnyPreservationPolicy(keep)
        self._notify = notify
        self._writer: ocp.CheckpointManager | None = None
        self._step: int | None = None  # of the state saved or restored last

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Steps of the checkpoints on disk, ascending; a sound one can still turn out broken.

        An empty directory is no checkpoint, and neither is one that is still being written.
        """
        return [step for step in self._numbered() if any(self._path(step).iterdir())]

    def save(self, state: TrainState, meta: Mapping[str, Any]) -> None:
        """Begins to save a state, and returns when it is copied: it may be donated at once.

        The write goes on in the background; a failure is raised by the next call of any method.
        A state whose step was saved or restored last is not saved again. The new checkpoint
        continues that one: later steps on disk belong to a history that was given up (its
        checkpoint was broken, or an earlier one was asked for). They are renamed, not deleted.

        Args:
            state: The state; its arrays may be spread over processes.
            meta: Facts to keep with it, as JSON: data position, configuration hash and so on.
        """
        step = int(state.step)
        if step == self._step:
            return
        leaves = _by_path(state)
        record = _record(step, dict(meta), leaves)
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(unflatten_dict(leaves, sep="/")),
            record=ocp.args.JsonSave(record),
        )
        with self._writing():
            if self._writer is None:
                self._writer = self._open_for_writing(step)
            self._writer.save(step, args=arguments, force=True)
        self._step = step

    def restore_latest(self, like: Any) -> Restored | None:
        """Restores the newest sound checkpoint, naming each broken one that is passed over.

        Args:
            like: As for `restore`.

        Returns:
            None if there is no checkpoint.

        Raises:
            CheckpointMismatch: The newest sound checkpoint is of another model.
            ValueError: There are checkpoints, and all are broken.
        """
        self.wait()
        broken = []
        for step in reversed(self.steps()):
            try:
                return self.restore(step, like)
            except BrokenCheckpoint as error:
                self._notify(f"{error}; trying the one before.")
                broken.append(step)
        if broken:
            raise ValueError(
                f"all checkpoints in {self._directory} are broken (steps "
                f"{', '.join(map(str, broken))}): restore the directory from a copy, or start "
                f"again in another run directory."
            )
        return None

    def restore(self, step: int, like: Any) -> Restored:
        """Restores one checkpoint onto any mesh, and compares it with what was saved.

        Args:
            step: One of `steps`.
            like: What to restore: arrays or `jax.ShapeDtypeStruct` with shape, type and, if they
                are to be split, sharding. A `TrainState`, or a part of one as a dict
                (``{"params": ...}`` reads the parameters alone).

        Raises:
            CheckpointMismatch: ``like`` differs from it in names, shapes or types.
            BrokenCheckpoint: It cannot be read, or its contents have changed.
            ValueError: There is no such checkpoint.
        """
        self._close_writer()
        if step not in self.steps():
            raise ValueError(
                f"there is no checkpoint of step {step} in {self._directory}; there are "
                f"{self.steps() or 'none'}."
            )
        where = f"checkpoint {step} in {self._directory}"
        wanted = {path: _abstract(leaf) for path, leaf in _by_path(like).items()}
        try:
            record = _read_record(self._path(step), step)
            _check_same(wanted, record["arrays"], where)
            leaves = _read_arrays(self._path(step), wanted, record["arrays"])
        except (CheckpointMismatch, MemoryError, jax.errors.JaxRuntimeError):
            raise  # not the fault of the files
        except Exception as error:  # damaged files make Orbax raise almost anything
            raise BrokenCheckpoint(f"{where} is broken ({_reason(error)})") from error
        self._step = step
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return Restored(state, record["meta"], step)

    def wait(self) -> None:
        """Waits until everything saved is on disk."""
        if self._writer is not None:
            with self._writing():
                self._writer.wait_until_finished()

    def close(self) -> None:
        """Waits for what is being written, and frees the threads."""
        self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self.wait()
            self._writer.close()
            self._writer = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns a failure to write, of this save or the one before it, into one sentence."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:  # tensorstore's are ValueErrors
            raise OSError(
                f"cannot write a checkpoint to {self._directory} ({_reason(error)}): make room or "
                f"make it writable, and run again; the checkpoints that are there stay good."
            ) from error

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _numbered(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        paths = self._directory.iterdir()
        return sorted(int(p.name) for p in paths if p.name.isdecimal() and p.is_dir())

    def _open_for_writing(self, step: int) -> ocp.CheckpointManager:
        """Puts aside what is not part of this history, then lets Orbax see the directory."""
        last = step - 1 if self._step is None else self._step
        if jax.process_index() == 0:
            good = self.steps()
            for other in self._numbered():
                if other not in good:
                    self._path(other).rmdir()
                elif other > last:
                    self._set_aside(other)
        ocp.multihost.sync_global_processes("bert_jax.train.checkpoint:open_for_writing")
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._keep, cleanup_tmp_directories=True
        )
        return ocp.CheckpointManager(self._directory, options=options)

    def _set_aside(self, step: int) -> None:
        target = self._path(step).with_name(f"{step}{_SET_ASIDE}")
        if target.exists():
            shutil.rmtree(target)
        self._path(step).rename(target)
        self._notify(
            f"checkpoint {step} in {self._directory} is not part of this run any more; it is now "
            f"called {target.name} and may be deleted."
        )


def _reason(error: Exception) -> str:
    """An error in one line, without the annotations of tensorstore and its long paths' middle."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).partition(" [")[0]
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-150:]}"


def _by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as ``params/encoder/final_norm/scale``, in the tree's order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, type and concrete sharding of a leaf; without one it is whole on every device."""
    sharding = getattr(leaf, "sharding", None)
    mesh = jax.sharding.get_mesh()
    if sharding is None:
        whole = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        sharding = whole if mesh.empty else jax.NamedSharding(mesh, jax.P())
    elif isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        sharding = jax.NamedSharding(mesh, sharding.spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _record(step: int, meta: dict[str, Any], leaves: Mapping[str, jax.Array]) -> dict[str, Any]:
    """What is saved beside the arrays; JSON."""
    sums = checksums(leaves)
    arrays = {
        path: {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "checksum": sums[path]}
        for path, leaf in leaves.items()
    }
    record = {"step": step, "meta": meta, "arrays": arrays}
    return record | {"digest": _digest(record)}


def _digest(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_record(path: Path, step: int) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        found = reader.restore(path, args=ocp.args.Composite(record=ocp.args.JsonRestore()))
    record = found["record"]
    if record["digest"] != _digest(record):
        raise ValueError("its record does not match the record's own digest")
    if record["step"] != step:
        raise ValueError(f"it holds step {record['step']}")
    return record


def _check_same(
    wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Any], where: str
) -> None:
    """Compares names, types and shapes, in the part of the state that is wanted."""
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


def _read_arrays(
    path: Path, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Any]
) -> list[jax.Array]:
    """The wanted arrays, in the order of ``wanted``; ValueError where a checksum differs."""
    tree = unflatten_dict(wanted, sep="/")
    arguments = ocp.args.PyTreeRestore(
        item=tree,
        restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
        partial_restore=True,
    )
    with (
        mock.patch("asyncio.new_event_loop", _DrainingLoop),
        ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader,
    ):
        found = reader.restore(path, args=ocp.args.Composite(state=arguments))
    leaves = _by_path(found["state"])
    sums = checksums({name: leaves[name] for name in wanted})
    changed = [name for name in wanted if sums[name] != saved[name]["checksum"]]
    if changed:
        raise ValueError(
            f"the contents of {changed[0]} are not what was saved"
            + (f", nor those of {len(changed) - 1} more" if changed[1:] else "")
        )
    return [leaves[name] for name in wanted]


class _DrainingLoop(asyncio.SelectorEventLoop):
    """An event loop that lets its tasks end before it closes.

    Orbax reads all arrays at once in a loop of its own and closes it at the first that fails; the
    others would then each print a traceback about the closed loop, from threads of tensorstore.
    """

    def close(self) -> None:
        if not self.is_closed() and (tasks := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.wait(tasks))
        super().close()
