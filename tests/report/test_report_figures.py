"""Figures and markup: right places, right words, nothing unescaped."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from percentmatch.report.figures import Line, chart, fewer, intervals, small_interval, ticks, trend
from percentmatch.report.markup import Html, join, script_json, tag


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(0, 7000) == [0, 2000, 4000, 6000]
    assert ticks(-3, 12, 4) == [0, 5, 10]
    assert ticks(0.0003, 0.0011, 4) == pytest.approx([0.0004, 0.0006, 0.0008, 0.001])


def test_fewer_points_are_means_of_neighbours() -> None:
    points = [(0, 1.0), (1, 3.0), (2, None), (3, 5.0), (4, None), (5, None)]
    assert fewer(points, 3) == [(0.5, 2.0), (2.5, 5.0), (4.5, None)]
    assert fewer(points, 6) == points


def test_the_trend_is_that_of_numpy() -> None:
    points = [(0.1, 60.0), (0.4, 71.0), (0.5, 69.0), (0.9, 88.0)]
    x, y = np.array(points).T
    assert trend(points) == pytest.approx((*np.polyfit(x, y, 1), np.corrcoef(x, y)[0, 1]))
    assert trend([(0, 1), (0, 2), (0, 3)]) is None


def draw(**changed) -> ElementTree.Element:
    lines = [Line(name="<cat>", points=[(0, 0.0), (1, None), (2, 1.0), (4, 0.5)], class_index=3)]
    options = {"lines": lines, "x_label": "step", "y_label": "AUC", "x_range": (0, 4), "y_range": (0, 1)} | changed
    return ElementTree.fromstring(chart("key", "A & B", "says <it>", **options))


def test_a_chart_is_sound_xml_with_title_and_description() -> None:
    svg = draw()
    assert svg.attrib["role"] == "img"
    named = {child.attrib["id"]: child.text for child in svg if child.tag in ("title", "desc")}
    assert [named[key] for key in svg.attrib["aria-labelledby"].split()] == ["A & B", "says <it>"]
    assert svg.find("g[@data-c='3']/title").text == "<cat>"


def test_a_missing_value_interrupts_the_line_and_points_stand_where_they_should() -> None:
    """Of 380 x 250 pixels the axes span 46 to 366 and, upwards, 210 to 26: step 2 of 4 is at 206, 0.5 at 118."""
    path = draw().find("g/path").attrib["d"]
    assert path == "M46 210M206 26L366 118"


def test_values_beyond_the_axis_are_cut_off() -> None:
    lines = [Line(name="a", points=[(0, -3.0), (4, 9.0)])]
    assert draw(lines=lines).find("g/path").attrib["d"] == "M46 210L366 26"


def test_axes_widen_to_their_ticks() -> None:
    """66.3 to 74.1 has ticks 2 apart, so 66 to 76; that has ticks 2.5 apart, so 65 to 77.5; that 5 apart: 65 to 80."""
    svg = draw(lines=[Line(name="a", points=[(0, 66.3), (4, 74.1)])], y_range=None)
    assert [text.text for text in svg.findall("text[@text-anchor='end']")] == ["65", "70", "75", "80"]
    assert svg.attrib["data-y"].split()[:2] == ["65", "80"]


@pytest.mark.parametrize("points", [[], [(0, None)], [(5, 2.0)], [(0, 0.0), (1, 0.0)]])
def test_a_chart_of_nothing_or_of_one_value_is_drawn(points: list) -> None:
    svg = draw(lines=[Line(name="a", points=points)], x_range=None, y_range=None)
    low, high = (float(end) for end in svg.attrib["data-y"].split()[:2])
    assert low == 0 < high


@pytest.mark.parametrize("values", [(1.0, 0.9999999999999999), (99.99999999999999, 100.0), (1e-14, 3e-14), (1, 1e300)])
def test_values_that_differ_by_rounding_or_are_tiny_or_huge_have_an_axis(values: tuple[float, float]) -> None:
    svg = draw(lines=[Line(name="a", points=list(enumerate(values)))], y_range=None)
    low, high = (float(end) for end in svg.attrib["data-y"].split()[:2])
    assert low <= min(values) < high
    assert max(values) <= high * (1 + 1e-5)  # written with six digits
    marks = [text.text for text in svg.findall("text[@text-anchor='end']")]
    assert len(set(marks)) == len(marks) > 1


def test_dots_and_intervals_carry_their_words() -> None:
    dot = Line(name="cat: gap 0.5", points=[(2, 0.5)], class_index=1, style="dot", marker=4)
    svg = draw(lines=[dot], x_band=(0.2, 0.4))
    assert svg.find("g[@class='class dot']/title").text == "cat: gap 0.5"
    rows = [("cat", 0, [(1, 2.0, (-1.0, 5.0))]), ("<dog>", 1, [(1, -2.0, None)])]
    svg = ElementTree.fromstring(intervals("k", "t", "d", rows=rows, x_label="gain"))
    assert [title.text for title in svg.findall("circle/title")] == ["cat: +2.0 (-1.0 to +5.0)", "<dog>: -2.0"]
    assert len(svg.findall("line[@class='series']")) == 1
    ElementTree.fromstring(small_interval(0.4, (0.3, 0.5)))


def test_text_is_escaped_and_html_is_not_escaped_twice() -> None:
    inner = tag("b", "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert tag("p", inner, "<i>", None, class_='x" y', hidden=True, title=None) == (
        '<p class="x&quot; y" hidden><b>a &lt; b &amp; c</b>&lt;i&gt;</p>'
    )
    assert join("<", Html("<br>")) == "&lt;<br>"


def test_json_cannot_end_its_script() -> None:
    value = {"a": "</script><!--", "b": "\u2028"}
    text = script_json(value)
    assert "<" not in text
    assert json.loads(text) == value
