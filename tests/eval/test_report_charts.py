"""Which charts a result has, and what is in them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from specdec.eval.report_charts import charts, group_name, run_groups, styles
from specdec.eval.results import FORMULAS, Estimate
from tests.eval.examples import PREDICTION, group, result, run


def notes(svg: str) -> list[str]:
    """What the marks say on hovering."""
    return [title.text or "" for path in ET.fromstring(svg).iter("path") for title in path]


def test_each_temperature_has_its_charts_and_speed_has_two() -> None:
    found = charts(result(run(temperature=0.0), run("suffix", 8), run(temperature=0.7)))
    titles = [chart.title for chart in found]
    assert len(set(titles)) == len(titles) == 2 * 4 + 2
    assert sum("T = 0.7" in title for title in titles) == 4
    assert {name for chart in found for name in chart.formulas} <= FORMULAS.keys()
    idents = [ET.fromstring(chart.svg).attrib["aria-labelledby"] for chart in found]
    assert len(set(idents)) == len(idents)


def test_what_was_not_measured_has_no_chart() -> None:
    bare = replace(result(run(prediction=None)), curve=None)
    assert len(charts(bare)) == 4
    assert charts(replace(bare, runs=())) == []


def test_points_say_their_values() -> None:
    unconditional, conditional, by_output, by_category, predictions, curve = charts(result())
    assert notes(unconditional.svg) == ["ngram, k = 2, position 1: 97.0 %", "ngram, k = 2, position 2: 95.6 %"]
    assert notes(conditional.svg)[1] == "ngram, k = 2, position 2: 98.2 %"
    assert notes(by_output.svg)[0] == "ngram, k = 2, tokens 0 to 31: 45.0 %"
    assert notes(by_category.svg)[-1] == "ngram, k = 2, code: rust: 2.24, 2.04 to 2.44"
    assert notes(predictions.svg) == ["ngram, k = 2, T = 0: predicted 1.55, measured 1.43"]
    assert notes(curve.svg) == ["M = 1: 1.00", "M = 2: 1.04", "M = 3: 1.11"]


def test_a_variant_looks_the_same_in_every_chart() -> None:
    runs = (run(), run("suffix", 8), run(temperature=0.7), run("suffix", 8, 0.7))
    assert styles(runs) == {"ngram, k = 2": 0, "suffix, k = 8": 1}
    for chart in charts(result(*runs)):
        groups = ET.fromstring(chart.svg).iter("g")
        looks = {(g.attrib["class"], path.attrib["d"]) for g in groups for path in g.iter("path")}
        assert len(looks) == (1 if "T(M)" in chart.title else 2)


def test_groups_are_not_told_twice() -> None:
    names = ["all", "chat", "code", "code: python", "code: rust"]
    assert [group_name(each) for each in run_groups(run())] == names
    one_task = replace(run(), groups=(group(None, None, 5), group("chat", None, 5), group("chat", "chat", 5)))
    assert [group_name(each) for each in run_groups(one_task)] == ["all"]


def test_guides_stay_in_the_chart() -> None:
    far = run(prediction=replace(PREDICTION, measured_speedup=0.05, tokens_per_step=9.0))
    wide = replace(run(), speeds=(replace(run().speeds[0], speedup=Estimate(1.0, 0.0, 7.0)),))
    narrow = replace(run(prediction=replace(PREDICTION, measured_speedup=1.01, tokens_per_step=1.21)), speeds=())
    for drawn in ((far,), (wide,), (narrow,), (far, wide, narrow)):
        (svg,) = (chart.svg for chart in charts(result(*drawn)) if "Predicted" in chart.title)
        guides = [line.attrib for line in ET.fromstring(svg).iter("line") if line.attrib["class"] == "guide"]
        assert len(guides) == 3
        for guide in guides:
            assert 56 <= float(guide["x1"]) < float(guide["x2"]) <= 624
            assert 252 >= float(guide["y1"]) > float(guide["y2"]) >= 12
