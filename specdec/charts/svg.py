"""Charts as SVG, to stand inside an HTML page. It knows nothing of evaluations, and loads nothing.

Colours are the page's: what belongs to a series of style n is in a group of class `s0` to `s6` (n modulo 7), everything
else has one of the classes `grid`, `axis`, `guide` and `label`. A style also has a shape, so that no reader needs the
colour. Values that are None, infinite or NaN are left out. Names are escaped by the serialiser.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specdec.charts.scale import Axis, Scale, scale, tick_label
from specdec.charts.text import printable

NUM_COLOURS = 7
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-5L5 0L0 5L-5 0z",
    "M0-4.6L4.6 3.4H-4.6z",
    "M0 4.6L4.6-3.4H-4.6z",
)
"""Circle, square, diamond and two triangles around the origin; with seven colours 35 styles differ."""

WIDTH = 640.0
PLOT_HEIGHT = 240.0
RIGHT = 16.0
TOP = 12.0
BELOW = 44.0
"""Room under the plot for tick labels and the axis' name."""
LINE = 18.0
"""Height of a line of the legend."""
CHARACTER = 6.6
"""Mean width of a character of the labels; an estimate, for SVG does not wrap."""
LONGEST_ROW = 30
LONGEST_NAME = 80
"""Characters of a row's or a series' name that are shown."""


@dataclass(frozen=True)
class Point:
    """`low` to `high` is drawn as a whisker where both are known; `note` is shown on hovering."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.low is None or self.high is None or not math.isfinite(self.low + self.high):
            return None
        return self.low, self.high


@dataclass(frozen=True)
class Series:
    """`style` is the number of its colour and shape: the same in all charts of a page."""

    name: str
    points: tuple[Point, ...]
    style: int
    joined: bool = True


@dataclass(frozen=True)
class Guide:
    """A dashed line between two points of the plot."""

    start: tuple[float, float]
    end: tuple[float, float]


def line_chart(
    ident: str, title: str, x_axis: Axis, y_axis: Axis, series: Sequence[Series], guides: Sequence[Guide] = ()
) -> str:
    """Series over a numeric x. `ident` is unique in the page."""
    points = [point for each in series for point in _known(each)]
    left, bottom = 56.0, TOP + PLOT_HEIGHT
    x = scale((point.x for point in points), x_axis, left, WIDTH - RIGHT)
    y = scale((value for point in points for value in _extent(point)), y_axis, bottom, TOP)
    root = _root(ident, title, _describe(x_axis, y_axis, series), bottom + BELOW, series)
    for tick in y.ticks:
        _line(root, "grid", x.start, y.at(tick), x.end, y.at(tick))
        _text(root, tick_label(tick, y_axis, y.step), left - 8, y.at(tick) + 4, "end")
    for tick in x.ticks:
        _line(root, "axis", x.at(tick), bottom, x.at(tick), bottom + 5)
        _text(root, tick_label(tick, x_axis, x.step), x.at(tick), bottom + 18, "middle")
    _line(root, "axis", x.start, bottom, x.end, bottom)
    _text(root, x_axis.label, (x.start + x.end) / 2, bottom + 36, "middle")
    middle = (TOP + bottom) / 2
    turned = _text(root, y_axis.label, 12, middle, "middle")
    turned.set("transform", f"rotate(-90 12 {middle:.1f})")
    for guide in guides:
        (x1, y1), (x2, y2) = guide.start, guide.end
        _line(root, "guide", x.at(x1), y.at(y1), x.at(x2), y.at(y2))
    for each in series:
        _draw(root, each, x, y)
    if not points:
        _text(root, "no data", (x.start + x.end) / 2, middle, "middle")
    return ET.tostring(root, encoding="unicode")


def _draw(root: ET.Element, series: Series, x: Scale, y: Scale) -> None:
    group = _add(root, "g", {"class": _colour(series.style)})
    if series.joined:
        for run in _unbroken(series.points):
            corners = " ".join(f"{x.at(point.x):.1f},{y.at(value):.1f}" for point, value in run)
            shape = {"class": "line", "points": corners, "fill": "none", "stroke": "currentColor"}
            _add(group, "polyline", shape)
    for point, value in _valued(series.points):
        across = x.at(point.x)
        if point.interval is not None:
            low, high = point.interval
            _line(group, "whisker", across, y.at(low), across, y.at(high))
        _mark(group, series, across, y.at(value), point.note)


def rows_chart(ident: str, title: str, axis: Axis, rows: Sequence[str], series: Sequence[Series]) -> str:
    """A named row for each thing that was measured; in it a mark for each series, whose whisker lies along the row.

    A point's `x` is the index of its row, its `y` the value.
    """
    points = [point for each in series for point in _known(each)]
    left = 16 + CHARACTER * max((len(_short(row, LONGEST_ROW)) for row in rows), default=0)
    height = 12 + 11.0 * max(1, len(series))
    bottom = TOP + height * max(1, len(rows))
    x = scale((value for point in points for value in _extent(point)), axis, left, WIDTH - RIGHT)
    root = _root(ident, title, _describe(Axis(""), axis, series, rows), bottom + BELOW, series)
    for tick in x.ticks:
        _line(root, "grid", x.at(tick), TOP, x.at(tick), bottom)
        _text(root, tick_label(tick, axis, x.step), x.at(tick), bottom + 18, "middle")
    for index, row in enumerate(rows):
        label = _text(root, _short(row, LONGEST_ROW), left - 8, TOP + height * (index + 0.5) + 4, "end")
        _add(label, "title", {}).text = printable(row)
        _line(root, "grid", left, TOP + height * (index + 1), x.end, TOP + height * (index + 1))
    _text(root, axis.label, (x.start + x.end) / 2, bottom + 36, "middle")
    for place, each in enumerate(series):
        _draw_in_rows(root, each, x, TOP + 11.5 + 11.0 * place, height)
    if not points:
        _text(root, "no data", (x.start + x.end) / 2, (TOP + bottom) / 2 + 4, "middle")
    return ET.tostring(root, encoding="unicode")


def _draw_in_rows(root: ET.Element, series: Series, x: Scale, top: float, height: float) -> None:
    """`top`: where the series' marks are in row 0."""
    group = _add(root, "g", {"class": _colour(series.style)})
    for point, value in _valued(series.points):
        down = top + height * point.x
        if point.interval is not None:
            low, high = point.interval
            _line(group, "whisker", x.at(low), down, x.at(high), down)
        _mark(group, series, x.at(value), down, point.note)


def _root(ident: str, title: str, description: str, height: float, series: Sequence[Series]) -> ET.Element:
    """The SVG with its accessible name and its legend under `height`."""
    names = [_short(each.name, LONGEST_NAME) for each in series]
    places, legend_height = _legend_places(names)
    attributes = {
        "viewBox": f"0 0 {WIDTH:g} {height + legend_height:g}",
        "role": "img",
        "aria-labelledby": f"{ident}-title {ident}-desc",
        "class": "chart",
    }
    root = ET.Element("svg", attributes)
    _add(root, "title", {"id": f"{ident}-title"}).text = printable(title)
    _add(root, "desc", {"id": f"{ident}-desc"}).text = printable(description)
    for each, name, (left, top) in zip(series, names, places, strict=True):
        group = _add(root, "g", {"class": _colour(each.style)})
        _mark(group, each, left + 6, height + top + 9, "")
        _text(group, name, left + 16, height + top + 13, "start")
    return root


def _legend_places(names: Sequence[str]) -> tuple[list[tuple[float, float]], float]:
    """Left and top of each entry, which flow into lines, and the height of them all."""
    places: list[tuple[float, float]] = []
    left = top = 0.0
    for name in names:
        width = 28 + CHARACTER * len(name)
        if left and left + width > WIDTH:
            left, top = 0.0, top + LINE
        places.append((left, top))
        left += width
    return places, (top + LINE if names else 0.0)


def _describe(x: Axis, y: Axis, series: Sequence[Series], rows: Sequence[str] = ()) -> str:
    """What a reader who cannot see the chart is told: the axes and every point."""
    axes = " against ".join(axis.label for axis in (y, x) if axis.label)
    told = []
    for each in series:
        pairs = [
            f"{rows[int(point.x)] if rows else f'{point.x:g}'}: {value:.3g}" for point, value in _valued(each.points)
        ]
        told.append(f"{each.name}: {', '.join(pairs) or 'no data'}")
    return f"{axes}. {'; '.join(told)}"


def _known(series: Series) -> list[Point]:
    return [point for point, _ in _valued(series.points)]


def _valued(points: Iterable[Point]) -> Iterator[tuple[Point, float]]:
    """Points that can be drawn, with their value."""
    for point in points:
        if point.y is not None and math.isfinite(point.y) and math.isfinite(point.x):
            yield point, point.y


def _unbroken(points: Iterable[Point]) -> Iterator[list[tuple[Point, float]]]:
    """Runs of at least two neighbours that can be drawn."""
    run: list[tuple[Point, float]] = []
    for point in points:
        found = list(_valued([point]))
        if found:
            run += found
            continue
        if len(run) > 1:
            yield run
        run = []
    if len(run) > 1:
        yield run


def _extent(point: Point) -> tuple[float | None, ...]:
    return (point.y, point.low, point.high)


def _colour(style: int) -> str:
    return f"s{style % NUM_COLOURS}"


def _short(label: str, longest: int) -> str:
    return label if len(label) <= longest else label[: longest - 1] + "…"


def _mark(parent: ET.Element, series: Series, x: float, y: float, note: str) -> None:
    place = f"translate({x:.1f} {y:.1f})"
    shape = SHAPES[series.style % len(SHAPES)]
    mark = _add(parent, "path", {"class": "mark", "d": shape, "transform": place, "fill": "currentColor"})
    if note:
        _add(mark, "title", {}).text = printable(note)


def _line(parent: ET.Element, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    _add(parent, "line", {"class": kind, **ends, "stroke": "currentColor"})


def _text(parent: ET.Element, text: str, x: float, y: float, anchor: str) -> ET.Element:
    place = {"class": "label", "x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    element = _add(parent, "text", place)
    element.text = printable(text)
    return element


def _add(parent: ET.Element, tag: str, attributes: Mapping[str, str]) -> ET.Element:
    return ET.SubElement(parent, tag, dict(attributes))
