"""The learning curve of a run as one SVG: divergences, and held-out acceptance by position of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from specdec.charts.scale import Axis
from specdec.charts.svg import Point, Series, line_chart

GAP = 24.0
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
STYLE = (
    "text{font:11px sans-serif;fill:#222}.grid{color:#ddd}.axis,.guide{color:#444}.line{stroke-width:1.5}"
    + "".join(f".s{i}{{color:{colour}}}" for i, colour in enumerate(COLOURS))
    + ".label{fill:#222}"
)


def learning_curve(history: Sequence[Mapping[str, Any]]) -> str:
    """`history` are the looks at the held-out samples, as the loop keeps them."""
    tokens = Axis("million tokens seen", low=0.0)
    charts = [
        line_chart("loss", "Loss", tokens, Axis("forward KL, nats", low=0.0), _series(history, "divergences")),
        line_chart(
            "acceptance",
            "Held-out acceptance",
            tokens,
            Axis("accepted, given all before", low=0.0, high=1.0, percent=True),
            _series(history, "conditional"),
        ),
    ]
    return _stacked(charts)


def _series(history: Sequence[Mapping[str, Any]], key: str) -> list[Series]:
    depth = max((len(look[key]) for look in history), default=0)
    return [
        Series(
            f"position {i + 1}",
            tuple(Point(look["tokens"] / 1e6, look[key][i]) for look in history if i < len(look[key])),
            i,
        )
        for i in range(depth)
    ]


def _stacked(charts: Sequence[str]) -> str:
    """One picture of `charts`, each under the one before, on white."""
    parts = [ET.fromstring(chart) for chart in charts]
    sizes = [[float(number) for number in part.attrib["viewBox"].split()[2:]] for part in parts]
    width, height = max(size[0] for size in sizes), sum(size[1] + GAP for size in sizes)
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height:g}"})
    ET.SubElement(root, "style").text = STYLE
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#fff"})
    top = GAP / 2
    for part, (own_width, own_height) in zip(parts, sizes, strict=True):
        part.attrib |= {"y": f"{top:g}", "width": f"{own_width:g}", "height": f"{own_height:g}"}
        root.append(part)
        top += own_height + GAP
    return ET.tostring(root, encoding="unicode")
