"""Exact duplicates among any number of documents, at 16 bytes of memory a document."""

from collections.abc import Sequence

import numpy as np

_KEY_BYTES = 16  # of a SHA-256: two of 10^12 different documents agree with probability 1e-15


class SeenDigests:
    """A set of digests that only grows.

    New digests gather in a Python set (about 100 bytes each) and move to sorted arrays, merged
    like the runs of a log-structured store: each digest is sorted O(log n) times in all.
    """

    def __init__(self, unsorted: int = 1 << 18):
        """Begins empty.

        Args:
            unsorted: Digests kept in the Python set at most.
        """
        self._limit = unsorted
        self._recent: set[bytes] = set()
        self._runs: list[np.ndarray] = []

    def add(self, digests: Sequence[bytes]) -> list[bool]:
        """Adds digests, in their order.

        Args:
            digests: At least 16 bytes each, of which the first 16 count.

        Returns:
            For each, whether it is new: neither added before nor earlier in `digests`.
        """
        keys = [digest[:_KEY_BYTES] for digest in digests]
        old = self._in_runs(np.array(keys, f"S{_KEY_BYTES}"))
        new = []
        for key, is_old in zip(keys, old.tolist(), strict=True):
            new.append(not is_old and key not in self._recent)
            if new[-1]:
                self._recent.add(key)
        if len(self._recent) >= self._limit:
            self._sort_recent()
        return new

    def _in_runs(self, keys: np.ndarray) -> np.ndarray:
        # Fixed-width byte strings of numpy are padded with zeros, so equal means all 16 bytes are.
        found = np.zeros(len(keys), bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            found |= run[at] == keys
        return found

    def _sort_recent(self) -> None:
        self._runs.append(np.sort(np.array(list(self._recent), f"S{_KEY_BYTES}")))
        self._recent = set()
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate((self._runs.pop(), self._runs.pop()))
            merged.sort(kind="stable")
            self._runs.append(merged)
