"""Powers are straight lines, and names do not lie upon each other."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from bertsmith.reports.charts import Series
from bertsmith.reports.log_log import loglog_chart

LENGTHS = (512, 1024, 4096, 65536)


def drawn(*series):
    return ElementTree.fromstring(loglog_chart("Time <there> & back", series, "tokens", "seconds"))


def lines(svg):
    found = [one.attrib["points"] for one in svg.iter() if one.tag.endswith("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in found]


def test_a_power_is_a_straight_line_and_twice_the_power_twice_as_steep():
    svg = drawn(Series("window", [(n, n / 1e6) for n in LENGTHS]), Series("dense", [(n, n * n / 1e6) for n in LENGTHS]))
    slopes = [[(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(line)] for line in lines(svg)]
    for line in slopes:
        assert line == pytest.approx([line[0]] * 3, rel=0.02)
    assert slopes[1][0] == pytest.approx(2 * slopes[0][0], rel=0.02) and slopes[0][0] < 0  # upright is down in SVG


def test_names_of_lines_that_end_together_stand_apart():
    svg = drawn(*(Series(f"mixer {n}", [(512, 1.0), (1024, 2.0)]) for n in range(9)))
    heights = sorted(float(one.attrib["y"]) for one in svg.iter() if re.match("mixer", one.text or ""))
    assert len(heights) == 9 and all(b - a >= 13.9 for a, b in pairwise(heights))


def test_one_measurement_is_drawn_and_none_is_refused():
    assert len(lines(drawn(Series("a", [(512, 1.0)]), Series("b", [])))) == 1
    with pytest.raises(ValueError, match="nothing was measured"):
        drawn(Series("a", []))
