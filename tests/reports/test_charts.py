"""Charts: well-formed SVG with no, one or many points, and round axis ticks."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.reports.charts import (
    MAX_POINTS,
    Series,
    bar_chart,
    compute_ticks,
    downsample,
    extract_points,
    format_compact,
    line_chart,
)

numbers = st.floats(-1e12, 1e12, allow_nan=False)


def parse_svg(figure: str) -> ElementTree.Element:
    svg = ElementTree.fromstring(figure).find("svg")
    assert svg is not None
    return svg


@given(numbers, numbers)
def test_ticks_are_evenly_spaced_and_cover_the_range(first, second):
    low, high = sorted((first, second))
    ticks = compute_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack and high <= ticks[-1] + slack
    gaps = [b - a for a, b in pairwise(ticks)]
    assert max(gaps) - min(gaps) <= 1e-6 * max(gaps) and min(gaps) > 0


def test_ticks_are_round_numbers():
    assert compute_ticks(0, 0.93) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert compute_ticks(5.9, 9.1) == pytest.approx([5, 6, 7, 8, 9, 10])


def test_line_chart_without_points_says_so():
    assert "No data yet" in line_chart("loss", [Series("a", [])], "step", reference=("unigram", 6.4))


@pytest.mark.parametrize("y", [0.0, 6.5, -3.0])
def test_line_chart_of_one_point_is_a_dot_within_the_frame(y):
    svg = parse_svg(line_chart("loss", [Series("a", [(10, y)])], "step"))
    (dot,) = svg.iter("circle")
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    assert 0 < float(dot.attrib["cx"]) < width and 0 < float(dot.attrib["cy"]) < height
    assert not list(svg.iter("polyline"))


def test_line_chart_of_falling_values_goes_right_and_down():
    (line,) = parse_svg(line_chart("loss", [Series("a", [(x, 100.0 - x) for x in range(50)])], "step")).iter("polyline")
    pixels = [tuple(map(float, pixel.split(","))) for pixel in line.attrib["points"].split()]
    assert pixels == sorted(pixels) and [y for _, y in pixels] == sorted(y for _, y in pixels)


def test_line_chart_reference_is_named_and_within_the_frame():
    figure = line_chart("loss", [Series("a", [(0, 9.0), (9, 7.0)])], "step", reference=("unigram", 6.42))
    (reference,) = (line for line in parse_svg(figure).iter("line") if line.attrib["class"] == "level")
    assert 0 < float(reference.attrib["y1"]) < 280
    assert ">unigram<" in figure


def test_downsample_averages_points_in_order():
    points = [(float(x), float(x % 2)) for x in range(20 * MAX_POINTS)]
    downsampled = downsample(points)
    assert len(downsampled) == MAX_POINTS and downsampled == sorted(downsampled)
    assert all(y == 0.5 for _, y in downsampled)
    assert downsample(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_extract_points_skips_rows_without_finite_number():
    rows = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": math.inf},
            {"step": 5, "loss": 2.5}, {"step": 6, "loss": True}, {"step": 7, "loss": 3}]  # fmt: skip
    assert extract_points(rows, "loss") == [(5, 2.5), (7, 3.0)]


def test_bar_chart_heights_are_proportional_to_counts():
    svg = parse_svg(bar_chart("lengths", {"1": 10, "2": 40, "4": 0}, "tokens"))
    heights = [float(bar.attrib["height"]) for bar in svg.iter("rect")]
    assert heights[1] == pytest.approx(4 * heights[0], rel=1e-3) and heights[2] == 0
    assert [text.text for text in svg.iter("text") if text.attrib.get("class") == "value"] == ["10", "40", "0"]
    assert "No data" in bar_chart("lengths", {}, "tokens")


def test_line_chart_escapes_names():
    figure = line_chart("<loss>", [Series('"><script>', [(0, 1.0), (1, 2.0)], "dots")], "<step>", reference=("&", 1.5))
    ElementTree.fromstring(figure)
    assert "<script" not in figure and not re.search("<loss>|<step>", figure)


def test_format_compact():
    assert [format_compact(v) for v in (0, 12_300, 1.5e6, 0.003, 2e-5, 250)] == ["0", "12.3k", "1.5M", "0.003", "2e-05", "250"]
