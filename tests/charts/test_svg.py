"""Charts are well-formed, keep within their borders, say what they show, and draw what is known."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.charts.scale import Axis
from specdec.charts.svg import NUM_COLOURS, SHAPES, WIDTH, Guide, Point, Series, line_chart, rows_chart

X, Y = Axis("position"), Axis("share", low=0, high=1, percent=True)
NUMBERS = st.floats(0, 1e4) | st.just(math.nan) | st.just(math.inf)
POINTS = st.builds(Point, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, st.text(max_size=5))
SERIES = st.builds(
    Series, st.text(max_size=120), st.lists(POINTS, max_size=4).map(tuple), st.integers(0, 99), st.booleans()
)


def lines(*series: Series) -> ET.Element:
    return ET.fromstring(line_chart("chart", "A title", X, Y, series))


def series(*points: Point, name: str = "ngram", style: int = 0) -> Series:
    return Series(name, points, style)


def with_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def places(root: ET.Element) -> list[tuple[float, float]]:
    """Every coordinate that something is drawn at."""
    found = []
    for element in root.iter():
        if "x" in element.attrib:
            found.append((float(element.attrib["x"]), float(element.attrib["y"])))
        if "x1" in element.attrib:
            found += [(float(element.attrib[f"x{end}"]), float(element.attrib[f"y{end}"])) for end in "12"]
        if element.tag == "path":
            across, down = re.findall(r"-?[\d.]+", element.attrib["transform"])
            found.append((float(across), float(down)))
        if "points" in element.attrib:
            pairs = (pair.split(",") for pair in element.attrib["points"].split())
            found += [(float(across), float(down)) for across, down in pairs]
    return found


@settings(max_examples=60)
@given(st.lists(SERIES, max_size=4), st.text(max_size=8))
def test_line_charts_parse_and_keep_within_their_borders(drawn: list[Series], title: str) -> None:
    root = ET.fromstring(line_chart("chart", title, X, Y, drawn))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert all(0 <= across <= width and 0 <= down <= height for across, down in places(root))


@settings(max_examples=60)
@given(st.lists(SERIES, max_size=4), st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_charts_of_rows_parse_and_keep_within_their_borders(drawn: list[Series], rows: list[str]) -> None:
    inside = [
        Series(each.name, tuple(Point(0.0, p.y, p.low, p.high, p.note) for p in each.points), each.style)
        for each in drawn
    ]
    root = ET.fromstring(rows_chart("chart", "title", X, rows, inside))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert all(0 <= across <= width and 0 <= down <= height for across, down in places(root))


@pytest.mark.parametrize("drawn", [(), (series(),), (series(Point(1, None), Point(2, math.nan)),)])
def test_without_a_point_the_chart_says_so(drawn: tuple[Series, ...]) -> None:
    for text in (line_chart("a", "t", X, Y, drawn), rows_chart("a", "t", X, ["all"], drawn)):
        assert "no data" in text
        assert len(with_class(ET.fromstring(text), "mark")) == len(drawn), "the legend's alone"


def test_one_point_is_a_mark_without_a_line() -> None:
    root = lines(series(Point(1, 0.5)))
    assert len(with_class(root, "mark")) == 1 + 1
    assert with_class(root, "line") == []
    assert "no data" not in ET.tostring(root, encoding="unicode")


def test_a_line_breaks_where_a_value_is_missing() -> None:
    points = (Point(1, 0.9), Point(2, 0.8), Point(3, None), Point(4, 0.6), Point(5, 0.5), Point(6, math.inf))
    root = lines(series(*points))
    assert [len(line.attrib["points"].split()) for line in with_class(root, "line")] == [2, 2]
    assert len(with_class(root, "mark")) == 4 + 1


def test_intervals_are_whiskers_along_the_value() -> None:
    point = Point(0, 2.0, 1.5, 2.5)
    (upright,) = with_class(lines(series(point)), "whisker")
    assert upright.attrib["x1"] == upright.attrib["x2"]
    assert upright.attrib["y1"] != upright.attrib["y2"]
    (lying,) = with_class(ET.fromstring(rows_chart("a", "t", X, ["all"], [series(point)])), "whisker")
    assert lying.attrib["y1"] == lying.attrib["y2"]
    assert float(lying.attrib["x1"]) < float(lying.attrib["x2"])
    assert with_class(lines(series(Point(0, 2.0, None, 2.5), Point(1, 2.0, math.nan, 2.5))), "whisker") == []


def test_greater_values_are_higher_and_to_the_right() -> None:
    (line,) = with_class(lines(series(Point(1, 0.2), Point(2, 0.7))), "line")
    (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in line.attrib["points"].split())
    assert x1 < x2
    assert y1 > y2


def test_a_chart_can_be_read_without_seeing_it() -> None:
    root = lines(series(Point(1, 0.25, note="first"), Point(2, None)), series(name="suffix"))
    names = [root.find(f".//*[@id='{ident}']") for ident in root.attrib["aria-labelledby"].split()]
    title, description = (element.text for element in names if element is not None)
    assert root.attrib["role"] == "img"
    assert title == "A title"
    assert description == "share against position. ngram: 1: 0.25; suffix: no data"
    rows = rows_chart("a", "t", Axis("length"), ["all", "chat"], [series(Point(1, 2.5))])
    assert "length. ngram: chat: 2.5" in rows


def test_axes_series_and_points_have_their_names() -> None:
    root = lines(series(Point(1, 0.25, note="a note")), series(Point(1, 0.5), name="suffix", style=1))
    texts = [element.text for element in root.iter("text")]
    assert {"position", "share", "ngram", "suffix", "0 %", "100 %"} <= set(texts)
    assert "a note" in [element.text for element in root.iter("title")]


def test_styles_differ_in_colour_and_shape() -> None:
    looks = set()
    for style in range(NUM_COLOURS * len(SHAPES)):
        root = lines(series(Point(1, 0.5), style=style))
        (group,) = {parent.attrib["class"] for parent in root.iter("g")}
        looks.add((group, with_class(root, "mark")[0].attrib["d"]))
    assert len(looks) == NUM_COLOURS * len(SHAPES)


def test_guides_are_drawn() -> None:
    text = line_chart("a", "t", X, X, [series(Point(1, 1.5), Point(2, 1))], [Guide((1, 1), (2, 2))])
    (guide,) = with_class(ET.fromstring(text), "guide")
    assert float(guide.attrib["y1"]) > float(guide.attrib["y2"])


def test_hostile_names_stay_text() -> None:
    evil = "</text><script>alert(1)</script>\x00\x1b]]>&\ud800"
    drawn = [series(Point(0, 0.5, note=evil), name=evil)]
    for text in (
        line_chart("a", evil, Axis(evil), Axis(evil), drawn),
        rows_chart("a", evil, Axis(evil), [evil], drawn),
    ):
        root = ET.fromstring(text)
        assert not [element for element in root.iter() if element.tag == "script"]
        assert "</text><script>alert(1)</script>␀␛]]>&\ufffd" in [element.text for element in root.iter("text")]
        text.encode()


def test_long_names_are_cut_and_many_flow_into_lines() -> None:
    root = lines(*(series(Point(1, 0.5), name=f"{number}{'x' * 90}", style=number) for number in range(3)))
    legend = [text for text in root.iter("text") if (text.text or "").endswith("…")]
    assert len({text.attrib["y"] for text in legend}) == 3
    assert all(float(text.attrib["x"]) + 6.6 * len(text.text or "") <= WIDTH for text in legend)
