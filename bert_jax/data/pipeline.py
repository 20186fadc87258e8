"""From rows to device batches: which rows a step sees, and getting them there in time.

A batch is a pure function of (rows, seed, step): place b of a step is global example
``g = step * batch_size + b``; with packed rows that is row ``order(seed, epoch)[g % num_rows]`` of
epoch ``g // num_rows``, and `epochs` says which it is where epochs differ in length. So there is no
state to save: a run resumes by calling ``batch`` with the next step, on any number of hosts, and
every row is seen exactly once an epoch, whatever the batch size. Batches that grow at the beginning
of a run are arrays of the full size too, of which the last rows are empty.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.data.batch_size import BatchSizes
from bert_jax.data.epochs import Epochs, RowSource

if TYPE_CHECKING:
    import jax

Batch = dict[str, np.ndarray]

# Rows are made in blocks of many steps, at most this large: enough to be fast, small in memory.
_BLOCK_ROWS = 4096
_BLOCK_POSITIONS = 1 << 19
_MAX_EXAMPLES = 2**32  # example_ids are uint32: they key the masks and the dropout of an example


@dataclass(frozen=True)
class HostSlice:
    """The part of each global batch that one host makes.

    Attributes:
        index: Which host, from 0.
        count: Number of hosts; must divide the batch size.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self):
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ValueError(
                f"A host's index must be in [0, number of hosts); got {self.index} of {self.count}."
            )

    def rows(self, batch_size: int) -> range:
        """Places in the global batch that are this host's.

        Raises:
            ValueError: If the batch size is not positive or not a multiple of ``count``.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        if batch_size % self.count:
            raise ValueError(
                f"batch_size {batch_size} is not a multiple of the {self.count} hosts that make "
                f"it: choose a multiple, so that each makes an equal share."
            )
        share = batch_size // self.count
        return range(self.index * share, (self.index + 1) * share)


class Batches:
    """The training batches of a run, by step.

    Args:
        rows: Packed rows, or pairs.
        batch_size: Rows of a global batch.
        seed: Data seed; another one is another order of the rows.
        steps: How many steps are planned, to learn at the start and not after weeks that the
            examples can no longer be numbered; None if unknown.
        sizes: How many rows of each step hold examples, if fewer than ``batch_size`` at the
            beginning; the others are empty, as in `ValidationBatches`. None: all.
        host: This host's share of each batch.
        words: Whether batches hold ``word_ids``.

    Raises:
        ValueError: If there are no rows, the hosts do not divide the batch, the seed is not in
            [0, 2**63), ``sizes`` is for another batch size, or the run has 2**32 examples or more.
    """

    def __init__(
        self,
        rows: RowSource,
        *,
        batch_size: int,
        seed: int,
        steps: int | None = None,
        sizes: BatchSizes | None = None,
        host: HostSlice = HostSlice(),
        words: bool = False,
    ):
        if len(rows) < 1:
            raise ValueError(
                "The packed split has 0 rows, and a batch needs at least 1: prepare more documents."
            )
        self._places = np.asarray(host.rows(batch_size), np.int64)
        if sizes is not None and sizes.batch_size != batch_size:
            raise ValueError(
                f"sizes are of batches of {sizes.batch_size} rows, but batch_size is {batch_size}: "
                f"make them for the same."
            )
        self._batch_size = batch_size
        self._sizes = sizes
        if steps is not None and self._first_example(steps) >= _MAX_EXAMPLES:
            raise ValueError(
                f"steps x batch_size is {steps} x {batch_size} = {self._first_example(steps):,}"
                f"{' after smaller batches' if sizes else ''}, but "
                f"example indices have 32 bits: choose fewer than {_MAX_EXAMPLES:,} examples."
            )
        self._epochs = Epochs(rows, seed)
        self._pad = rows.special.pad
        self._words = words
        share = len(self._places)
        block_rows = min(_BLOCK_ROWS, _BLOCK_POSITIONS // rows.packing.seq_length)
        self._block_steps = max(1, block_rows // share)
        self._blocks: OrderedDict[int, Batch] = OrderedDict()
        self._lock = threading.Lock()

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of a step.

        Steps in sequence are fast, since rows are made in blocks of many steps; any other is
        right too. Threads may call it at the same time.

        Args:
            step: From 0.

        Returns:
            What ``take`` of the rows returns, [share, ...] each, and ``example_ids``, the global
            example indices, uint32 [share] (they count on over empty rows). The arrays are
            read-only.

        Raises:
            ValueError: If the step is negative or its examples pass 2**32.
        """
        if step < 0 or self._first_example(step + 1) > _MAX_EXAMPLES:
            raise ValueError(
                f"step must be at least 0, and its examples below 2**32, as their indices have 32 "
                f"bits and batch_size is {self._batch_size}; got {step}."
            )
        with self._lock:
            block, within = divmod(step, self._block_steps)
            if block not in self._blocks:
                self._blocks[block] = self._make_block(block)
                while len(self._blocks) > 2:
                    self._blocks.popitem(last=False)
            arrays = self._blocks[block]
        share = len(self._places)
        return {
            name: array[within * share : (within + 1) * share] for name, array in arrays.items()
        }

    def _first_example(self, step: int) -> int:
        """Examples of all steps before a step."""
        if self._sizes is None:
            return step * self._batch_size
        return int(self._sizes.first_example(step))

    def _make_block(self, block: int) -> Batch:
        """The rows of all the steps of a block, this host's share."""
        count = self._block_steps
        steps = np.arange(block * count, (block + 1) * count, dtype=np.int64)
        if self._sizes is None:
            examples = (steps[:, None] * self._batch_size + self._places).reshape(-1)
            arrays = self._epochs.take(examples, words=self._words)
        else:
            first, size = self._sizes.first_example(steps), self._sizes.batch_size_at(steps)
            examples = (first[:, None] + self._places).reshape(-1)
            real = (self._places < size[:, None]).reshape(-1)
            arrays = self._epochs.take(examples[real], words=self._words)
            arrays = _with_empty_rows(arrays, real, self._pad)
        arrays["example_ids"] = examples.astype(np.uint32)
        for array in arrays.values():
            array.setflags(write=False)
        return arrays


def _with_empty_rows(arrays: Batch, real: np.ndarray, pad: int) -> Batch:
    """Puts rows where ``real``, bool [n], is true, and padding of segment 0 elsewhere."""
    if real.all():
        return arrays
    empty = {"input_ids": pad, "word_ids": -1}
    spread = {
        name: np.full((len(real), *array.shape[1:]), empty.get(name, 0), array.dtype)
        for name, array in arrays.items()
    }
    for name, array in arrays.items():
        spread[name][real] = array
    return spread


class ValidationBatches:
    """All rows of a split once, in order, in batches of one shape.

    The last batch is filled up with empty rows: padding everywhere, segment 0, and an example
    weight of zero. So no row is dropped, none is counted twice, nothing is compiled again, and
    every host has the same number of batches. ``len`` is that number; iterating yields them.

    Args:
        rows: Packed rows, or pairs (of which those of the copy given).
        batch_size: Rows of a global batch.
        host: This host's share of each batch.
        words: Whether batches hold ``word_ids``.

    Raises:
        ValueError: If there are no rows, or the hosts do not divide the batch.
    """

    def __init__(
        self,
        rows: RowSource,
        *,
        batch_size: int,
        host: HostSlice = HostSlice(),
        words: bool = False,
    ):
        if len(rows) < 1:
            raise ValueError(
                "The validation split has 0 rows: prepare the store with a larger "
                "validation fraction, or more documents."
            )
        self._rows = rows
        self._batch_size = batch_size
        self._places = np.asarray(host.rows(batch_size), np.int64)
        self._words = words

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def batch(self, index: int) -> Batch:
        """Returns this host's share of batch ``index``, in ``[0, len(self))``.

        Returns:
            What ``take`` of the rows returns; ``example_ids``, the row numbers, uint32 [share]
            (they count on over the empty rows); ``example_weights``, float32 [share], 1 for rows of
            the split and 0 for empty ones.

        Raises:
            ValueError: If there is no such batch.
        """
        if not 0 <= index < len(self):
            raise ValueError(f"Validation batches are numbered from 0 to {len(self) - 1}: {index}.")
        examples = index * self._batch_size + self._places
        real = examples < len(self._rows)
        arrays = self._rows.take(examples[real], words=self._words)
        arrays = _with_empty_rows(arrays, real, self._rows.special.pad)
        arrays["example_ids"] = examples.astype(np.uint32)
        arrays["example_weights"] = real.astype(np.float32)
        return arrays


class Prefetch:
    """Makes the batches of coming steps in a thread, while the device computes.

    A context manager and an iterator of ``(step, batch)``::

        with prefetch(batches.batch, start, stop, put) as feed:
            for step, batch in feed:
                ...

    The thread exists inside the ``with`` block only: leaving it, in whatever way, stops it after
    the batch in hand. What the thread raises is raised here with its traceback, after the batches
    made before.

    Attributes:
        data_wait: Seconds that the latest step waited for its batch.
        total_data_wait: Seconds that all steps so far have waited.
    """

    def __init__(
        self,
        make_batch: Callable[[int], Any],
        start_step: int,
        stop_step: int,
        put: Callable[[Any], Any],
        *,
        depth: int = 2,
    ):
        if depth < 1:
            raise ValueError(f"Prefetch depth must be at least 1 batch; got {depth}.")
        self.data_wait = 0.0
        self.total_data_wait = 0.0
        self._make_batch = make_batch
        self._put = put
        self._steps = range(start_step, stop_step)
        self._depth = depth
        # All below is shared with the thread, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._ready: deque[tuple[int, Any]] = deque()
        self._error: BaseException | None = None
        self._finished = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="bert_jax prefetch")

    def __enter__(self) -> Prefetch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> tuple[int, Any]:
        if self._thread.ident is None:
            raise RuntimeError("Enter the prefetch with a `with` statement before iterating it.")
        begin = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished or self._closed)
            self.data_wait = time.perf_counter() - begin
            self.total_data_wait += self.data_wait
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        raise StopIteration

    def _work(self) -> None:
        """The thread: one step after the other, as long as there is room and someone to read."""
        try:
            for step in self._steps:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
                    if self._closed:
                        return
                batch = self._put(self._make_batch(step))
                with self._changed:
                    if self._closed:
                        return
                    self._ready.append((step, batch))
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()


def prefetch(
    make_batch: Callable[[int], Any],
    start_step: int,
    stop_step: int,
    put: Callable[[Any], Any],
    *,
    depth: int = 2,
) -> Prefetch:
    """Returns an iterator of ``(step, put(make_batch(step)))`` that works ahead in a thread.

    Args:
        make_batch: From a step to its batch on the host; called in order, in the thread.
        start_step: First step.
        stop_step: One behind the last.
        put: From a host batch to what the step takes, e.g. ``to_device(sharding)``; called in the
            thread as well, so the transfer overlaps with compute too.
        depth: Batches that may lie ready.

    Returns:
        A context manager, to be entered before it is iterated; see ``Prefetch``.
    """
    return Prefetch(make_batch, start_step, stop_step, put, depth=depth)


def to_device(sharding: jax.sharding.Sharding) -> Callable[[Batch], dict[str, jax.Array]]:
    """Returns a function that makes global device arrays of this host's share of a batch.

    Args:
        sharding: Of the first axis, e.g. ``NamedSharding(mesh, P(("data", "fsdp")))``; the hosts'
            shares must lie in it in the order of their indices.
    """
    import jax

    def put(batch: Batch) -> dict[str, jax.Array]:
        return {
            name: jax.make_array_from_process_local_data(sharding, array)
            for name, array in batch.items()
        }

    return put
