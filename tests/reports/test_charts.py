"""Charts: well-formed drawings of no, one or many points, on axes of round numbers."""

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


def drawing(figure: str) -> ElementTree.Element:
    found = ElementTree.fromstring(figure).find("svg")
    assert found is not None
    return found


@given(numbers, numbers)
def test_ticks_are_even_and_hold_what_is_drawn(one, other):
    low, high = sorted((one, other))
    found = compute_ticks(low, high)
    assert 2 <= len(found) <= 9
    slack = 1e-6 * (found[-1] - found[0])
    assert found[0] <= low + slack and high <= found[-1] + slack
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps) - min(gaps) <= 1e-6 * max(gaps) and min(gaps) > 0


def test_ticks_are_round_numbers():
    assert compute_ticks(0, 0.93) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert compute_ticks(5.9, 9.1) == pytest.approx([5, 6, 7, 8, 9, 10])


def test_a_chart_of_nothing_says_so():
    assert "Nothing was measured yet" in line_chart("loss", [Series("a", [])], "step", reference=("unigram", 6.4))


@pytest.mark.parametrize("y", [0.0, 6.5, -3.0])
def test_one_point_is_a_dot_within_the_frame(y):
    svg = drawing(line_chart("loss", [Series("a", [(10, y)])], "step"))
    (dot,) = svg.iter("circle")
    _, _, wide, high = map(float, svg.attrib["viewBox"].split())
    assert 0 < float(dot.attrib["cx"]) < wide and 0 < float(dot.attrib["cy"]) < high
    assert not list(svg.iter("polyline"))


def test_a_falling_line_is_drawn_from_left_to_right_and_down():
    (line,) = drawing(line_chart("loss", [Series("a", [(x, 100.0 - x) for x in range(50)])], "step")).iter("polyline")
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    assert places == sorted(places) and [y for _, y in places] == sorted(y for _, y in places)


def test_the_baseline_is_a_named_dashed_line_that_lies_within_the_frame():
    figure = line_chart("loss", [Series("a", [(0, 9.0), (9, 7.0)])], "step", reference=("unigram", 6.42))
    (level,) = (line for line in drawing(figure).iter("line") if line.attrib["class"] == "level")
    assert 0 < float(level.attrib["y1"]) < 280
    assert ">unigram<" in figure


def test_many_points_are_thinned_to_means_and_keep_their_order():
    given_points = [(float(x), float(x % 2)) for x in range(20 * MAX_POINTS)]
    kept = downsample(given_points)
    assert len(kept) == MAX_POINTS and kept == sorted(kept)
    assert all(y == 0.5 for _, y in kept)
    assert downsample(given_points[:MAX_POINTS]) == given_points[:MAX_POINTS]


def test_rows_without_a_finite_number_are_skipped():
    rows = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": math.inf},
            {"step": 5, "loss": 2.5}, {"step": 6, "loss": True}, {"step": 7, "loss": 3}]  # fmt: skip
    assert extract_points(rows, "loss") == [(5, 2.5), (7, 3.0)]


def test_every_bar_has_its_count_and_a_height_in_proportion():
    svg = drawing(bar_chart("lengths", {"1": 10, "2": 40, "4": 0}, "tokens"))
    heights = [float(bar.attrib["height"]) for bar in svg.iter("rect")]
    assert heights[1] == pytest.approx(4 * heights[0], rel=1e-3) and heights[2] == 0
    assert [text.text for text in svg.iter("text") if text.attrib.get("class") == "value"] == ["10", "40", "0"]
    assert "Nothing was counted" in bar_chart("lengths", {}, "tokens")


def test_names_are_escaped():
    figure = line_chart("<loss>", [Series('"><script>', [(0, 1.0), (1, 2.0)], "dots")], "<step>", reference=("&", 1.5))
    ElementTree.fromstring(figure)
    assert "<script" not in figure and not re.search("<loss>|<step>", figure)


def test_numbers_fit_beside_an_axis():
    assert [format_compact(v) for v in (0, 12_300, 1.5e6, 0.003, 2e-5, 250)] == ["0", "12.3k", "1.5M", "0.003", "2e-05", "250"]
