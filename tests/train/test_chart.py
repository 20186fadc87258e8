"""Charts: points where their values are, ticks that people would choose."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from bert_jax.train.chart import MOST_POINTS, Series, labels, line_chart, linear_axis, log_axis


def chart(*series: Series, **options: object) -> ET.Element:
    return ET.fromstring(line_chart(series, **{"width": 500, "height": 200, **options}))


def points(element: ET.Element) -> list[tuple[float, float]]:
    numbers = re.findall(r"[-\d.]+", element.attrib["d"])
    return [(float(x), float(y)) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def lines(root: ET.Element, name: str = "line") -> list[list[tuple[float, float]]]:
    return [points(path) for path in root.iter("path") if path.get("class") == name]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, (0, 2, 4, 6, 8, 10)),
        (3.08, 8.3, (3, 4, 5, 6, 7, 8, 9)),
        (0, 1e-3, (0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3)),
        (-0.3, 0.7, (-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8)),
        (0, 1_000_000, (0, 200_000, 400_000, 600_000, 800_000, 1_000_000)),
        (5, 5, (2, 3, 4, 5, 6, 7, 8)),
        (0, 0, (-1, -0.5, 0, 0.5, 1)),
    ],
)
def test_linear_ticks(low: float, high: float, ticks: tuple[float, ...]) -> None:
    axis = linear_axis(low, high)
    assert axis.ticks == ticks
    assert axis.low <= low <= high <= axis.high


@pytest.mark.parametrize("low", [1e-12, 3e-7, 0.02, 0.97, 5.0, 123.0, 9.9e9])
@pytest.mark.parametrize("ratio", [1.0, 1.001, 3.0, 80.0, 1e6])
def test_every_range_gets_a_few_ticks_around_it(low: float, ratio: float) -> None:
    high = low * ratio
    for axis in (linear_axis(low, high), linear_axis(-high, low), log_axis(low, high)):
        assert 2 <= len(axis.ticks) <= 9
        assert list(axis.ticks) == sorted(set(axis.ticks))
        assert axis.place(axis.low) == 0
        assert axis.place(axis.high) == pytest.approx(1)
    assert log_axis(low, high).low <= low * 1.000001
    assert log_axis(low, high).high >= high * 0.999999


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1e-3, ["0", "2e-4", "4e-4", "6e-4", "8e-4", "1e-3"]),
        (0, 0.01, ["0", "0.002", "0.004", "0.006", "0.008", "0.01"]),
        (0, 10_000, ["0", "2k", "4k", "6k", "8k", "10k"]),
        (0, 4000, ["0", "1000", "2000", "3000", "4000"]),
        (0, 1.5e6, ["0", "0.5M", "1M", "1.5M"]),
        (7.7, 7.8, ["7.7", "7.72", "7.74", "7.76", "7.78", "7.8"]),
    ],
)
def test_labels(low: float, high: float, texts: list[str]) -> None:
    assert labels(linear_axis(low, high)) == texts


def test_log_labels_keep_small_and_large_apart() -> None:
    assert labels(log_axis(0.6, 45)) == ["0.5", "1", "2", "5", "10", "20", "50"]
    decades = ["1e-4", "1e-3", "0.01", "0.1", "1", "10", "100", "1000", "10k"]
    assert labels(log_axis(2e-5, 3e4)) == decades


def test_points_lie_where_their_values_are() -> None:
    """Read back by the labels of the axes, as a person would."""
    x, y = [0, 25, 50, 75, 100], [3.0, 1.0, 2.5, 0.2, 2.0]
    root = chart(Series("a", x, y))
    texts = [(t.text, float(t.attrib["x"]), float(t.attrib["y"])) for t in root.iter("text")]
    rows = {float(text): at - 4 for text, left, at in texts if left < 58}
    columns = {float(text): at for text, at, top in texts if top > 180}
    (drawn,) = lines(root)
    height = (rows[0] - rows[3]) / 3
    width = (columns[100] - columns[0]) / 100
    for (px, py), vx, vy in zip(drawn, x, y, strict=True):
        assert (px - columns[0]) / width == pytest.approx(vx, abs=0.1)
        assert (rows[0] - py) / height == pytest.approx(vy, abs=0.01)


def test_gaps_are_gaps() -> None:
    y = [1.0, 2.0, None, 2.0, math.nan, math.inf, 3.0, 4.0]
    root = chart(Series("a", range(8), y))
    assert [len(run) for run in lines(root)] == [2, 2]
    assert len(list(root.iter("circle"))) == 1  # a lonely point is a dot: a line would not show it


def test_many_points_become_means_with_a_band() -> None:
    count = 10 * MOST_POINTS
    y = [float(i % 10) for i in range(count)]  # each stretch of 10 holds 0 to 9
    root = chart(Series("a", range(count), y), scale="zero")
    (line,), (band,) = lines(root), lines(root, "band")
    assert len(line) == MOST_POINTS
    assert len(band) == 2 * MOST_POINTS
    bottom, tenth = 200 - 24, (200 - 24 - 10) / 10
    assert {py for _, py in line} == {round(bottom - 4.5 * tenth, 1)}
    assert {py for _, py in band} == {bottom, round(bottom - 9 * tenth, 1)}


def test_log_scale_leaves_out_what_has_no_logarithm() -> None:
    root = chart(Series("a", range(5), [0.0, 1.0, 10.0, -3.0, 100.0]), scale="log")
    ((_, middle),) = [(a, b) for (a, b) in lines(root)]
    assert len(lines(root)[0]) == 2
    assert len(list(root.iter("circle"))) == 1
    assert middle[1] < lines(root)[0][0][1]


def test_dots_tell_their_values_and_names_are_harmless() -> None:
    root = chart(Series("<b>&", [1000], [0.5], marks="dots"), about='"<x>"')
    (dot,) = root.iter("circle")
    assert dot[0].text == "<b>& at step 1,000: 0.5"
    assert root.attrib["aria-label"] == '"<x>"'


@pytest.mark.parametrize("y", [[], [None], [math.nan]])
def test_nothing_to_draw(y: list) -> None:
    assert line_chart([Series("a", range(len(y)), y)], width=500, height=200).startswith("<p")
