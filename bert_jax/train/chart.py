"""Line charts as SVG text, drawn by hand: no plotting library, no script, no outside resource.

Colours and fonts come from the style sheet of the page that holds the chart, so it is light or dark
as its page is. A series with many points is drawn as its mean over short stretches, with a band
from the least to the greatest value of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

MOST_POINTS = 500  # of one line: about one every two pixels

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 10, 24  # margins around the plot, where the labels stand

Value = float | None
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: For the legend and tooltips.
        x: Ascending.
        y: As many values; None and numbers that are not finite leave a gap.
        marks: ``dots`` also marks every point, and names its value when pointed at.
    """

    name: str
    x: Sequence[float]
    y: Sequence[Value]
    marks: Literal["none", "dots"] = "none"


@dataclass(frozen=True)
class Axis:
    """Where values of one direction go on paper.

    Attributes:
        low: Value at the start.
        high: Value at the end.
        ticks: Values that are labelled, within these.
        log: Whether the axis is logarithmic.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Fraction of the axis' length at which ``value`` lies."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(low: float, high: float, most_ticks: int = 6) -> Axis:
    """An axis over ``low`` to ``high``, grown to whole ticks at multiples of 1, 2 or 5 x 10^k."""
    if high <= low:  # a single value: give it a surrounding
        room = abs(low) / 2 or 1.0
        low, high = low - room, high + room
    raw = (high - low) / most_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_clean(i * step, step) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def log_axis(low: float, high: float) -> Axis:
    """A logarithmic axis over ``low`` to ``high`` (positive), with ticks at 1, 2 and 5 x 10^k."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    all_ticks = [_clean(m * 10.0**k, 10.0**k) for k in decades for m in (1, 2, 5)]
    start = max(t for t in all_ticks if t <= low * (1 + 1e-9))
    end = min(t for t in all_ticks if t >= high * (1 - 1e-9) and t > start)
    ticks = [t for t in all_ticks if start <= t <= end]
    if len(ticks) > 7:
        ticks = [t for t in ticks if f"{t:e}"[0] == "1"]
    return Axis(start, end, tuple(ticks), log=True)


def labels(axis: Axis) -> list[str]:
    """What stands beside the ticks: ``12k``, ``0.25``, ``5e-4``; one notation for an axis."""
    if axis.log:
        return [_label(value, value) for value in axis.ticks]
    largest = max(map(abs, axis.ticks))
    return [_label(value, largest) for value in axis.ticks]


def _label(value: float, largest: float) -> str:
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value and largest >= (10 * factor if suffix == "k" else factor):
            return _plain(value / factor) + suffix
    if value and largest < 1e-2:
        mantissa, exponent = f"{value:.5e}".split("e")
        return f"{_plain(float(mantissa))}e{int(exponent)}"
    return _plain(value)


def line_chart(
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    scale: Literal["linear", "zero", "log"] = "linear",
    about: str = "",
) -> str:
    """A chart with the series over a common horizontal axis of steps.

    Args:
        series: The curves; each is drawn in the CSS class ``curve-0``, ``curve-1``...
        width: In CSS pixels at full size; the chart shrinks with its page.
        height: Likewise.
        scale: Of the values: ``linear`` around them, ``zero``: linear from 0, or ``log``.
        about: Description for those who do not see it.

    Returns:
        An ``<svg>`` element; a sentence instead if there is nothing to draw.
    """
    drawn = [(i, s, _points(s, positive=scale == "log")) for i, s in enumerate(series)]
    xs = [x for _, _, runs in drawn for run in runs for x, _ in run]
    ys = [y for _, _, runs in drawn for run in runs for _, y in run]
    if not xs:
        return '<p class="empty">no numbers yet</p>'
    grown = linear_axis(min(0.0, *xs), max(xs), most_ticks=max(3, width // 110))
    # The steps end where they end; growing to the next tick would look like missing data.
    x_axis = Axis(grown.low, max(xs), tuple(x for x in grown.ticks if x <= max(xs)))
    y_axis = _value_axis(ys, scale, height)
    frame = _Frame(width, height, x_axis, y_axis)
    body = [*_grid(frame)]
    for index, one, runs in drawn:
        body += _curve(frame, index, one, runs)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">'
        f"{''.join(body)}</svg>"
    )


@dataclass(frozen=True)
class _Frame:
    """A plot's place on paper."""

    width: int
    height: int
    x: Axis
    y: Axis

    def at(self, point: Point) -> Point:
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        return (
            round(_LEFT + self.x.place(point[0]) * (right - _LEFT), 1),
            round(bottom - self.y.place(point[1]) * (bottom - _TOP), 1),
        )


def _value_axis(ys: Sequence[float], scale: str, height: int) -> Axis:
    low, high = min(ys), max(ys)
    if scale == "log":
        return log_axis(low, high)
    return linear_axis(min(0.0, low) if scale == "zero" else low, high, most_ticks=height // 40)


def _points(series: Series, *, positive: bool) -> list[list[Point]]:
    """The points that can be drawn, as runs between gaps."""
    runs: list[list[Point]] = [[]]
    for x, y in zip(series.x, series.y, strict=True):
        if y is not None and math.isfinite(y) and (y > 0 or not positive):
            runs[-1].append((float(x), float(y)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _grid(frame: _Frame) -> Iterator[str]:
    left, right = _LEFT, frame.width - _RIGHT
    bottom = frame.height - _BOTTOM
    for value, text in zip(frame.y.ticks, labels(frame.y), strict=True):
        _, y = frame.at((frame.x.low, value))
        yield f'<path class="grid" d="M{left} {y}H{right}"/>'
        yield f'<text x="{left - 7}" y="{y + 4}" text-anchor="end">{text}</text>'
    for value, text in zip(frame.x.ticks, labels(frame.x), strict=True):
        x, _ = frame.at((value, frame.y.low))
        yield f'<path class="grid" d="M{x} {bottom}v4"/>'
        yield f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{text}</text>'
    yield f'<path class="axis" d="M{left} {bottom}H{right}"/>'


def _curve(frame: _Frame, index: int, series: Series, runs: list[list[Point]]) -> Iterator[str]:
    total = sum(map(len, runs))
    size = -(-total // MOST_POINTS)
    yield f'<g class="curve-{index}">'
    for run in runs:
        pieces = [run[i : i + size] for i in range(0, len(run), size)]
        middle = [(_mean([x for x, _ in p]), _mean([y for _, y in p])) for p in pieces]
        if size > 1:
            low = [(x, min(y for _, y in p)) for (x, _), p in zip(middle, pieces, strict=True)]
            high = [(x, max(y for _, y in p)) for (x, _), p in zip(middle, pieces, strict=True)]
            yield f'<path class="band" d="{_path(frame, low + high[::-1])}Z"/>'
        if len(middle) > 1:
            yield f'<path class="line" d="{_path(frame, middle)}"/>'
        if series.marks == "dots" or len(middle) == 1:
            yield from _dots(frame, series.name, run if len(run) <= MOST_POINTS else middle)
    yield "</g>"


def _dots(frame: _Frame, name: str, points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        x, y = frame.at(point)
        told = f"{escape(name)} at step {point[0]:,.0f}: {point[1]:.4g}"
        yield f'<circle cx="{x}" cy="{y}" r="2.6"><title>{told}</title></circle>'


def _path(frame: _Frame, points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in map(frame.at, points))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _clean(value: float, unit: float) -> float:
    """``value`` without the dust of binary fractions: rounded to a millionth of ``unit``."""
    return round(value, max(0, 6 - math.floor(math.log10(unit))))


def _plain(value: float) -> str:
    return f"{value:.6g}"
