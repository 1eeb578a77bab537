"""Log-log charts: power laws are straight lines, and labels do not overlap."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from bertsmith.reports.charts import Series, loglog_chart

LENGTHS = (512, 1024, 4096, 65536)


def parse_chart(*series):
    return ElementTree.fromstring(loglog_chart("Time <there> & back", series, "tokens", "seconds"))


def polyline_points(svg):
    polylines = [node.attrib["points"] for node in svg.iter() if node.tag.endswith("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in polylines]


def test_loglog_chart_power_law_is_a_straight_line():
    svg = parse_chart(
        Series("longformer", [(n, n / 1e6) for n in LENGTHS]), Series("attention", [(n, n * n / 1e6) for n in LENGTHS])
    )
    gradients = [[(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(line)] for line in polyline_points(svg)]
    for line in gradients:
        assert line == pytest.approx([line[0]] * 3, rel=0.02)
    assert gradients[1][0] == pytest.approx(2 * gradients[0][0], rel=0.02) and gradients[0][0] < 0  # y grows downwards in SVG


def test_loglog_chart_labels_do_not_overlap():
    svg = parse_chart(*(Series(f"mixer {n}", [(512, 1.0), (1024, 2.0)]) for n in range(9)))
    heights = sorted(float(node.attrib["y"]) for node in svg.iter() if re.match("mixer", node.text or ""))
    assert len(heights) == 9 and all(b - a >= 13.9 for a, b in pairwise(heights))


def test_loglog_chart_needs_one_measurement():
    assert len(polyline_points(parse_chart(Series("a", [(512, 1.0)]), Series("b", [])))) == 1
    with pytest.raises(ValueError, match="no data"):
        parse_chart(Series("a", []))
