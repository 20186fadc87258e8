"""Reading many short windows of a token stream at once.

One call of ``read`` costs microseconds, so a row of 128 tokens read on its own caps the pipeline
at about 40 million tokens a second. Here the rows of a block are copied in one numpy gather a
shard, straight from the memory map: a few billion tokens a second when the pages are warm.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer, UInt8
from numpy.lib.stride_tricks import sliding_window_view


@runtime_checkable
class TokenSource(Protocol):
    """What packing needs of a split of a store (``store.Split`` is one)."""

    @property
    def num_tokens(self) -> int:
        """Length of the token stream."""
        ...

    @property
    def document_offsets(self) -> Int64[np.ndarray, " documents_plus_1"]:
        """Where each document begins in the stream, and at the end the stream's length."""
        ...

    @property
    def shard_offsets(self) -> Int64[np.ndarray, " shards_plus_1"]:
        """Where each shard begins in the stream, and at the end the stream's length."""
        ...

    def read(self, start: int, stop: int) -> Integer[np.ndarray, " n"]:
        """Tokens ``[start, stop)``; a view, without a copy, where they lie in one shard."""
        ...

    def read_flags(self, start: int, stop: int) -> UInt8[np.ndarray, " n"]:
        """Flags of tokens ``[start, stop)``; a view where they lie in one shard."""
        ...


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """A token source in memory, in one shard.

    Attributes:
        tokens: The documents' tokens, end to end.
        flags: Of each token: bit 0, first of a word; bit 1, first of a sentence.
        document_offsets: Where each document begins, and the stream's length.
    """

    tokens: Integer[np.ndarray, " tokens"]
    flags: UInt8[np.ndarray, " tokens"]
    document_offsets: Int64[np.ndarray, " documents_plus_1"]

    @property
    def num_tokens(self) -> int:
        """Length of the stream."""
        return len(self.tokens)

    @property
    def shard_offsets(self) -> Int64[np.ndarray, " 2"]:
        """All is in one shard."""
        return np.array([0, self.num_tokens], np.int64)

    def read(self, start: int, stop: int) -> Integer[np.ndarray, " n"]:
        """Tokens ``[start, stop)``, a view."""
        return self.tokens[start:stop]

    def read_flags(self, start: int, stop: int) -> UInt8[np.ndarray, " n"]:
        """Flags of tokens ``[start, stop)``, a view."""
        return self.flags[start:stop]


class Windows:
    """Windows of equal width over the tokens and the flags of a source."""

    def __init__(self, source: TokenSource):
        self._source = source
        self._shards = np.asarray(source.shard_offsets, np.int64)

    def tokens(self, starts: Int64[np.ndarray, " n"], width: int) -> Integer[np.ndarray, "n width"]:
        """Returns the ``width`` tokens from each start.

        Args:
            starts: Places in the stream, in any order.
            width: Tokens a window. What lies beyond the end of the stream is arbitrary.
        """
        return self._gather(self._source.read, starts, width)

    def flags(self, starts: Int64[np.ndarray, " n"], width: int) -> UInt8[np.ndarray, "n width"]:
        """Like ``tokens``, of the flags."""
        return self._gather(self._source.read_flags, starts, width)

    def _gather(self, read, starts, width):
        out = np.zeros((len(starts), width), read(0, 1).dtype)
        # In the order of the stream: neighbours share pages of the memory map, and shards.
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        groups = np.searchsorted(starts, self._shards)
        for shard in np.flatnonzero(np.diff(groups)):
            begin, end = self._shards[shard : shard + 2]
            low, high = groups[shard : shard + 2]
            whole = low + np.searchsorted(starts[low:high], end - width, side="right")
            if whole > low:
                windows = sliding_window_view(read(int(begin), int(end)), width)
                out[order[low:whole]] = windows[starts[low:whole] - begin]
            for index in range(whole, high):  # the few that run over the end of the shard
                stop = min(int(starts[index]) + width, int(self._shards[-1]))
                part = read(int(starts[index]), stop)
                out[order[index], : len(part)] = part
        return out
