"""Charts in files: SVG that is well formed and holds every chart, and PNG drawn from it."""

import struct
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.reports.charts import (
    FlowToken,
    Series,
    TokenFlow,
    draw_file,
    empty_chart,
    heat_grid,
    heat_map,
    line_chart,
    png,
    to_png,
    value_map,
)
from bertsmith.reports.html import Section, is_page, render_picture

SVG = "{http://www.w3.org/2000/svg}"
VALUES = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
CHARTS = [
    heat_map("map <b>", VALUES, ["a & b", "c"], ["x", "y", "z"]),
    line_chart("loss", [Series("training", [(0, 2.0), (9, 1.0)]), Series("validation", [(3, 1.5)], "dots")], "step",
               ("level", 1.0)),
    value_map("values", [[("0.5", 0.5), ("-1", -1.0)]], ["1"], ["head 1", "head 2"], extra_columns=[("mean", ["0.25"])]),
    TokenFlow("tokens", [FlowToken("中国", "5", 0.5), FlowToken("##s", joins=True),
                         FlowToken("<script>", style="unknown")]).draw(),
    heat_grid("grid", [[(VALUES, "layer 1")]], ["1"], ["1"]),
    empty_chart("none", "No data yet."),
]  # fmt: skip
needs_resvg = pytest.mark.skipif(find_spec("resvg_py") is None, reason="pip install 'bertsmith[png]'")


def test_svg_file_has_every_chart_within_its_bounds():
    root = ElementTree.fromstring(draw_file("Title", [("First", CHARTS[:3]), ("Second", CHARTS[3:])]))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for chart in CHARTS:
        assert chart.caption in texts
    assert {"Title", "First", "Second", "training", "validation", "level", "中国", "<script>", "No data yet."} <= set(texts)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [tuple(map(float, group.attrib["transform"][10:-1].split())) for group in root.findall(f"{SVG}g")]
    assert len(places) > len(CHARTS) and all(0 < x < width and 0 < y < height for x, y in places)
    assert len({y for _, y in places}) > 3  # below each other


def test_narrow_charts_share_a_row():
    small = [heat_map(name, VALUES, ["a", "b"], ["x", "y", "z"]) for name in "abcd"]
    root = ElementTree.fromstring(draw_file("Title", [("", small)]))
    places = [tuple(map(float, group.attrib["transform"][10:-1].split())) for group in root.findall(f"{SVG}g")]
    assert places[0][1] == places[1][1] < places[2][1] == places[3][1] and places[0][0] == places[2][0] < places[1][0]


def test_heat_map_labels_numbers_only_where_they_have_room():
    labels = [str(number) for number in range(200)]
    root = ElementTree.fromstring(heat_map("m", np.zeros((200, 200)), labels, labels))
    shown = [text.text for text in root.iter("text") if "transform" not in text.attrib]
    assert 5 < len(shown) < 40 and shown[0] == "0"


def test_token_flow_wraps_and_escapes():
    flow = TokenFlow("t", [FlowToken(f"<token {i}>", str(i)) for i in range(60)])
    rows = {rect.attrib["y"] for rect in ElementTree.fromstring(flow.draw(300)).iter("rect")}
    assert len(rows) > 10
    html = str(flow.__html__())
    assert html.count("&lt;token") == 60 and "<token" not in html


def test_picture_without_charts_is_refused():
    with pytest.raises(UserError, match=r"write out=\.\.\.\.html"):
        render_picture("Title", [Section("Only text", CHARTS[0])])


@needs_resvg
def test_png_has_the_size_and_the_pixels_of_the_charts(tmp_path):
    svg = draw_file("Title", [("", CHARTS)])
    root, data = ElementTree.fromstring(svg), to_png(svg)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = struct.unpack(">II", data[16:24])
    assert size == pytest.approx([png.ZOOM * float(root.attrib[name]) for name in ("width", "height")], abs=1)
    assert to_png(draw_file("Title", [("", CHARTS[1:])])) != data
    for name, content in (("a.svg", svg), ("a.png", data)):  # known again, so that they may be replaced
        (tmp_path / name).write_bytes(content)
        assert is_page(tmp_path / name)
    (tmp_path / "b.svg").write_bytes(svg.replace(b"bertsmith", b"inkscape"))
    assert not is_page(tmp_path / "b.svg")


def test_png_without_the_package_or_without_fonts_is_one_clear_line(monkeypatch):
    png.check_png.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(UserError, match=r"pip install 'bertsmith\[png\]'"):
        to_png(b"<svg/>")
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", type("resvg", (), {"svg_to_bytes": lambda **options: b"blank"}))
    with pytest.raises(UserError, match="no font"):
        to_png(b"<svg/>")
    png.check_png.cache_clear()
