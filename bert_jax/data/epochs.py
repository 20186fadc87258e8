"""Which row each example of a run is, where epochs may have unequal numbers of rows.

Example g lies in the epoch before whose end it is, at a position that ``order`` permutes. Packed
rows are the same in every epoch, so that is one division. Pairs are cut anew in each copy, so the
sizes of the copies up to the example's are added; after the last copy they repeat. Nothing is
replayed: a run resumes at any example by knowing the sizes of at most all copies (of all epochs
before, where no copy ever comes again).
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Shaped

from bert_jax.data.order import order
from bert_jax.data.packing import Packing
from bert_jax.data.pairs import Pairs
from bert_jax.data.tokenizer_parts import SpecialTokens


@runtime_checkable
class RowSource(Protocol):
    """Rows that batches are made of; `Rows` and `PairRows` are such."""

    @property
    def packing(self) -> Packing | Pairs:
        """How they were made."""
        ...

    @property
    def special(self) -> SpecialTokens:
        """The ids of the special tokens."""
        ...

    @property
    def copies(self) -> int | None:
        """After how many epochs the same rows come again; None: never."""
        ...

    def __len__(self) -> int:
        """The number of rows of this copy."""
        ...

    def take(
        self, indices: Int64[np.ndarray, " n"], *, words: bool = False
    ) -> dict[str, Shaped[np.ndarray, "n ..."]]:
        """Rows of this copy, by number; an array without one may be asked for, too."""
        ...

    def copy(self, index: int) -> RowSource:
        """The rows of another copy, in ``[0, copies)``, or any from 0 if there is no end."""
        ...

    def size(self, index: int) -> int:
        """The number of rows of a copy, perhaps without making them."""
        ...


class Epochs:
    """The rows of all epochs, one after the other, each in an order of its own.

    Args:
        rows: Of any copy.
        seed: Of the order.

    Raises:
        ValueError: If the seed is not in [0, 2**63).
    """

    def __init__(self, rows: RowSource, seed: int):
        order(seed, 0, 1, np.zeros(1, np.int64))  # refuses a bad seed now, not in a thread
        self._rows = rows
        self._seed = seed
        self._ends: list[int] = []  # of the epochs of the first cycle, as far as they are known
        self._lock = threading.Lock()

    def take(
        self, examples: Int64[np.ndarray, " n"], *, words: bool
    ) -> dict[str, Shaped[np.ndarray, "n ..."]]:
        """The rows of examples, given in ascending order."""
        if not len(examples):
            return self._rows.take(examples, words=words)
        epochs, positions = self.locate(examples)
        copies = epochs if self._rows.copies is None else epochs % self._rows.copies
        by_copy = np.argsort(copies, kind="stable")
        parts = [
            self._take_of_copy(int(copies[at[0]]), epochs[at], positions[at], words)
            for at in np.split(by_copy, np.flatnonzero(np.diff(copies[by_copy])) + 1)
        ]
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(by_copy)
        return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}

    def locate(
        self, examples: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The epochs of examples, and their positions in them, from 0 both."""
        with self._lock:
            self._extend(int(examples.max()))
            ends = np.array(self._ends, np.int64)
        period = self._rows.copies
        if period == len(ends):
            cycles, examples = np.divmod(examples, ends[-1])
            if period == 1:
                return cycles, examples
        else:
            cycles = np.zeros_like(examples)
        within = np.searchsorted(ends, examples, side="right")
        begins = np.concatenate([[0], ends[:-1]])
        return cycles * (period or 0) + within, examples - begins[within]

    def _extend(self, example: int) -> None:
        """Adds sizes of copies until one ends behind the example, or all are known."""
        while len(self._ends) != self._rows.copies and (
            not self._ends or self._ends[-1] <= example
        ):
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + self._rows.size(len(self._ends)))

    def _take_of_copy(self, copy, epochs, positions, words):
        rows = self._rows.copy(copy)
        one_epoch = epochs[0] == epochs[-1]
        epoch = int(epochs[0]) if one_epoch else epochs
        return rows.take(order(self._seed, epoch, len(rows), positions), words=words)
