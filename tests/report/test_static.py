"""Figures without JavaScript: the same values at the same places as the specification has them."""

import re
import xml.etree.ElementTree as ET

import pytest

from ncollapse.report import make_report
from ncollapse.report.axes import Axis, nice_steps
from ncollapse.report.panels import Panel, build
from ncollapse.report.static import draw_static, pick_colour
from reference.runs import write_comparison


def test_points_stand_where_the_axes_say():
    line = {"type": "scatter", "mode": "lines", "x": [0, 5, 10], "y": [1, 10, 100], "line": {"color": "var:ce"}}
    spec = build([Panel("p", [line], {"range": [0, 10]}, {"type": "log", "range": [0, 2]})], columns=1)
    drawing = draw_static(spec)
    layout = spec["layout"]
    left, right = layout["margin"]["l"], 1000 - layout["margin"]["r"]
    top, bottom = layout["margin"]["t"], layout["height"] - layout["margin"]["b"]
    path = re.search(r'<path d="M([^"]+)" style="fill:none;stroke:var\(--ce\)', drawing)[1]
    numbers = [float(v) for v in path.split()]
    expected = [left, bottom, (left + right) / 2, (top + bottom) / 2, right, top]
    assert numbers == pytest.approx(expected, abs=0.1)


def test_gaps_break_lines_and_text_is_escaped():
    line = {"type": "scatter", "mode": "lines", "x": [0, 1, 2, 3, 4], "y": [0, 1, None, 1, 0], "name": "<b>&"}
    drawing = draw_static(build([Panel("a &lt;script&gt;", [line])], columns=1, showlegend=True))
    assert drawing.count("stroke-width:2;") == 2
    assert "<script" not in drawing
    ET.fromstring(drawing)


def test_categories_and_cells():
    heat = {"type": "heatmap", "z": [[0, 1], [None, 0.5]], "x": ["a", "b"], "y": ["1", "2"], "zmin": 0, "zmax": 1}
    heat["colorscale"] = [[0, "#000000"], [1, "#ffffff"]]
    drawing = draw_static(build([Panel("h", [heat], {"type": "category"}, {"type": "category"})], columns=1))
    fills = re.findall(r"<rect [^>]*fill:(#[0-9a-f]{6})", drawing)
    assert fills == ["#000000", "#ffffff", "#808080"]
    assert pick_colour([[0, "var:paper"], [1, "#000000"]], 2) == "#000000"


def test_axes_place_values_and_label_round_numbers():
    axis = Axis({}, [0, 10], 0, 100)
    assert axis.place(0) == 0
    assert axis.place(10) == pytest.approx(100 / 10.5 * 10)
    assert [text for _, text in axis.ticks()] == ["0", "5", "10"]
    reversed_axis = Axis({"autorange": "reversed", "range": [0, 1]}, [], 0, 100)
    assert reversed_axis.place(0) == 100
    assert nice_steps(0.0012, 0.0049) == [0.002, 0.003, 0.004]
    assert nice_steps(1, 1) == [1]


def test_every_figure_of_a_page_is_valid_svg(tmp_path):
    write_comparison(tmp_path, ("ce", "bce"), seeds=2, **{"optim.epochs": 4})
    for figure in make_report(tmp_path).figures:
        drawing = draw_static(figure.spec)
        root = ET.fromstring(drawing)
        assert root.tag == "svg", figure.id
        assert len(list(root.iter("path"))) + len(list(root.iter("rect"))) > 5, figure.id
        assert "var:" not in drawing
        assert "nan" not in drawing
