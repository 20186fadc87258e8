"""Checkpoints: Orbax writes and reads the arrays; what it does not check is checked here.

A checkpoint is the directory named by its step. Orbax writes it under another name, in the
background, and renames it when it is whole. It restores flipped bits in silence, casts to another
type without a word and takes an empty directory for a checkpoint (orbax-checkpoint 0.12.8). So a
record (`bert_jax.train.record`) is saved beside the arrays, and what comes back is compared with
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import unflatten_dict
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax.train.record import (
    CheckpointMismatch,
    by_path,
    check_contents,
    check_record,
    check_same,
    make_record,
)
from bert_jax.train.state import TrainState

# Orbax logs the traceback of a failed write several times over before it raises the error here.
logging.getLogger("absl").addFilter(
    lambda record: record.levelno < logging.ERROR or "orbax" not in record.pathname
)

_SET_ASIDE = ".set-aside"  # Orbax and `steps` see directories named by a number only


class BrokenCheckpoint(ValueError):
    """A checkpoint that cannot be read, or whose contents are not what was saved."""


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
        return [step for step in self._numbered() if any(self._path(step).glob("*"))]

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
        leaves = by_path(state)
        record = make_record(step, meta, leaves)
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
        wanted = {path: _abstract(leaf) for path, leaf in by_path(like).items()}
        record, leaves, problem = {}, {}, None
        try:
            record = _read_record(self._path(step), step)
            check_same(wanted, record["arrays"], where)
            leaves = _read_arrays(self._path(step), wanted)
        except (CheckpointMismatch, MemoryError, jax.errors.JaxRuntimeError):
            raise  # not the fault of the files
        except Exception as error:  # noqa: BLE001 - damaged files raise almost anything
            problem = error
        try:
            _raise_on_all(problem)
            check_contents(leaves, record["arrays"])
        except ValueError as error:
            raise BrokenCheckpoint(f"{where} is broken ({error})") from problem
        self._step = step
        state = jax.tree.unflatten(jax.tree.structure(like), leaves.values())
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
        except jax.errors.JaxRuntimeError:
            raise  # a device failed, not the disk
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


def _read_record(path: Path, step: int) -> dict[str, Any]:
    # By the handlers: `ocp.Checkpointer` ends in a barrier, where a process whose part is sound
    # would wait for one that has turned to another checkpoint.
    with contextlib.closing(ocp.JsonCheckpointHandler()) as reader:
        record = dict(reader.restore(epath.Path(path / "record"), args=ocp.args.JsonRestore()))
    check_record(record, step)
    return record


def _read_arrays(path: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """The wanted arrays, in the order of ``wanted``."""
    tree = unflatten_dict(wanted, sep="/")
    arguments = ocp.args.PyTreeRestore(
        item=tree,
        restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
        partial_restore=True,
    )
    with (
        mock.patch("asyncio.new_event_loop", _DrainingLoop),
        contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader,
    ):
        found = reader.restore(epath.Path(path / "state"), args=arguments)
    leaves = by_path(found)
    return {name: leaves[name] for name in wanted}


def _raise_on_all(problem: Exception | None) -> None:
    """ValueError on every process if any has a problem: all must turn to another checkpoint."""
    failed = np.asarray([problem is not None])
    if jax.process_count() > 1:
        failed = multihost_utils.process_allgather(failed[0])
    if problem is not None:
        raise ValueError(_reason(problem))
    if failed.any():
        raise ValueError(f"process {int(failed.argmax())} cannot read it")


class _DrainingLoop(asyncio.SelectorEventLoop):
    """An event loop that lets its tasks end before it closes.

    Orbax reads all arrays at once in a loop of its own and closes it at the first that fails; the
    others would then each print a traceback about the closed loop, from threads of tensorstore.
    """

    def close(self) -> None:
        if not self.is_closed() and (tasks := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.wait(tasks))
        super().close()
