"""How fast a run is: tokens a second, and what share of the chip's arithmetic the model uses."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

# Dense bfloat16 multiply-adds a second of one jax device, counted as two operations. TPU: Cloud
# TPU's pages on system architecture, and jax's `jax/_src/pallas/mosaic/tpu_info.py` for the names;
# a chip of v2 and v3 is two devices. NVIDIA: the data sheets' figures without sparsity.
_TPU_PEAKS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}
_NVIDIA_PEAKS = (  # by the start of the name; the first that fits
    ("NVIDIA A100", 312e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA H100", 989e12),
    ("NVIDIA H200 NVL", 835e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA GH200", 989e12),
    ("NVIDIA B200", 2250e12),
    ("NVIDIA L4", 121e12),
)


@runtime_checkable
class Device(Protocol):
    """What `peak_flops` needs of a `jax.Device`."""

    @property
    def device_kind(self) -> str:
        """The chip's name."""
        ...


def peak_flops(device: Device) -> float | None:
    """Peak floating-point operations a second of a device, dense bfloat16.

    Returns:
        None for a CPU and for a chip whose figure is not known here.
    """
    kind = device.device_kind
    if kind in _TPU_PEAKS:
        return _TPU_PEAKS[kind]
    for start, peak in _NVIDIA_PEAKS:
        if kind == start or kind.startswith(start + " ") or kind.startswith(start + "-"):
            return peak
    return None


class _Mark(NamedTuple):
    step: int
    tokens: float
    seconds: float


class Throughput:
    """Tokens a second over a sliding window of reports.

    The first report only starts the clock, so the compilation before it does not count.
    """

    def __init__(self, window: int = 20, clock: Callable[[], float] = time.perf_counter):
        """Makes a meter.

        Args:
            window: Intervals between reports that are averaged over.
            clock: Seconds, from any origin.
        """
        self._clock = clock
        self._marks: deque[_Mark] = deque(maxlen=window + 1)
        self._begin: tuple[int, float] | None = None  # step and time of the first report
        self._excluded = 0.0
        self._tokens = 0.0

    def update(self, step: int, tokens: float) -> None:
        """Reports that ``step`` is done, and how many tokens were read since the last report."""
        now = self._clock()
        if self._begin is None:
            self._begin = (step, now)
        self._tokens += tokens
        self._marks.append(_Mark(step, self._tokens, now - self._excluded))

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """Time spent inside is not training time: an evaluation, say."""
        start = self._clock()
        try:
            yield
        finally:
            self._excluded += self._clock() - start

    @property
    def tokens_per_second(self) -> float | None:
        """Over the window; None before the second report."""
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        seconds = last.seconds - first.seconds
        return (last.tokens - first.tokens) / seconds if seconds > 0 else None

    def remaining(self, total_steps: int) -> float | None:
        """Seconds to ``total_steps`` at the mean pace so far, evaluations included; or None."""
        if self._begin is None or self._marks[-1].step <= self._begin[0]:
            return None
        done = self._marks[-1].step
        step, start = self._begin
        return (total_steps - done) * (self._clock() - start) / (done - step)
