"""The charts of a report: which figures of a result are drawn, against what, and in which style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from specdec.charts.scale import Axis
from specdec.charts.svg import Guide, Point, Series, line_chart, rows_chart
from specdec.eval.report_text import known, number, percent, temperature, variant
from specdec.eval.results import Curve, Group, Position, Result, Run

AGREEMENT = 0.1
"""The gap of a prediction that is still a good one: the band in its chart."""

POSITION = Axis("position in the draft", low=1, whole=True)
ACCEPTED = Axis("accepted", low=0, high=1, percent=True)


@dataclass(frozen=True)
class Chart:
    """`formulas`: the names of the figures drawn, as in `specdec.eval.results.FORMULAS`."""

    title: str
    svg: str
    formulas: tuple[str, ...]
    note: str = ""


def styles(runs: Iterable[Run]) -> dict[str, int]:
    """Proposer and draft length -> its style, the same in every chart and whatever the temperature."""
    return {name: number for number, name in enumerate(dict.fromkeys(map(variant, runs)))}


def charts(result: Result) -> list[Chart]:
    """Those that there are figures for: at each temperature acceptance, then speed."""
    style = styles(result.runs)
    made = []
    for place, level in enumerate(dict.fromkeys(run.temperature for run in result.runs)):
        runs = [run for run in result.runs if run.temperature == level]
        made += [
            _by_position(f"unconditional-{place}", runs, style),
            _by_position_given(f"conditional-{place}", runs, style),
            _by_output(f"output-{place}", runs, style),
            _by_category(f"category-{place}", runs, style),
        ]
    if any(run.prediction is not None for run in result.runs):
        made.append(_predictions(result.runs, style))
    if result.curve is not None:
        made.append(_curve(result.curve))
    return made


def _by_position(ident: str, runs: Sequence[Run], style: Mapping[str, int]) -> Chart:
    title = f"Acceptance by position, {temperature(runs[0].temperature)}"
    series = [_positions(run, style, lambda position: position.unconditional) for run in runs]
    return Chart(title, line_chart(ident, title, POSITION, ACCEPTED, series), ("unconditional",))


def _by_position_given(ident: str, runs: Sequence[Run], style: Mapping[str, int]) -> Chart:
    title = f"Acceptance by position, given the one before, {temperature(runs[0].temperature)}"
    series = [_positions(run, style, lambda position: position.conditional) for run in runs]
    return Chart(title, line_chart(ident, title, POSITION, ACCEPTED, series), ("conditional",))


def _positions(run: Run, style: Mapping[str, int], figure: Callable[[Position], float | None]) -> Series:
    name = variant(run)
    points = (
        Point(each.position, figure(each), note=f"{name}, position {each.position}: {percent(figure(each))}")
        for each in run.overall.positions
    )
    return Series(name, tuple(points), style[name])


def _by_output(ident: str, runs: Sequence[Run], style: Mapping[str, int]) -> Chart:
    title = f"Acceptance by position in the output, {temperature(runs[0].temperature)}"
    across = Axis("output token at which the draft began", low=0, whole=True)
    up = Axis("accepted / drafted", low=0, high=1, percent=True)
    svg = line_chart(ident, title, across, up, [_ranges(run, style) for run in runs])
    return Chart(title, svg, ("by_output_position", "acceptance_rate"))


def _ranges(run: Run, style: Mapping[str, int]) -> Series:
    """A range of output tokens stands at its middle."""
    name = variant(run)
    points = (
        Point(
            (each.start + each.end - 1) / 2,
            each.acceptance_rate,
            note=f"{name}, tokens {each.start} to {each.end - 1}: {percent(each.acceptance_rate)}",
        )
        for each in run.output_ranges
    )
    return Series(name, tuple(points), style[name])


def _by_category(ident: str, runs: Sequence[Run], style: Mapping[str, int]) -> Chart:
    title = f"Mean acceptance length by category, {temperature(runs[0].temperature)}"
    rows = list(dict.fromkeys(group_name(group) for run in runs for group in run_groups(run)))
    series = [_lengths(run, style, rows) for run in runs]
    axis = Axis("tokens per verified draft", low=1)
    return Chart(title, rows_chart(ident, title, axis, rows, series), ("mean_acceptance_length", "interval"))


def _lengths(run: Run, style: Mapping[str, int], rows: Sequence[str]) -> Series:
    points = []
    for group in run_groups(run):
        name, found = group_name(group), group.mean_acceptance_length
        note = f"{variant(run)}, {name}: {number(found.value)}, {number(found.low)} to {number(found.high)}"
        points.append(Point(rows.index(name), found.value, found.low, found.high, note))
    return Series(variant(run), tuple(points), style[variant(run)], joined=False)


def run_groups(run: Run) -> list[Group]:
    """All prompts, the tasks, and the categories, without a group that has the prompts of the one above it."""
    several = len(run.tasks) > 1
    kept = [run.overall]
    for task in run.tasks:
        own = [group for group in run.categories if group.task == task.task]
        kept += [task] if several else []
        kept += own if len(own) > 1 else []
    return kept


def group_name(group: Group) -> str:
    """For example `all`, `chat` or `spec_bench: writing`."""
    if group.task is None:
        return "all"
    return group.task if group.category is None else f"{group.task}: {group.category}"


def _predictions(runs: Sequence[Run], style: Mapping[str, int]) -> Chart:
    """Both axes span the same values; the guides are equality and the borders of `AGREEMENT`."""
    title = "Predicted and measured speed-up at batch 1"
    points: dict[str, list[Point]] = {}
    for run in runs:
        if run.prediction is not None:
            points.setdefault(variant(run), []).append(_predicted(run))
    drawn = [known(value) for own in points.values() for each in own for value in (each.x, each.y, each.low, each.high)]
    values = [1.0, *(value for value in drawn if value is not None)]
    low, high = min(values) * (1 - AGREEMENT), max(values) * (1 + AGREEMENT)
    guides = [
        Guide((max(low, low * gap), max(low, low * gap) / gap), (min(high, high * gap), min(high, high * gap) / gap))
        for gap in (1.0, 1.0 + AGREEMENT, 1.0 - AGREEMENT)
    ]
    series = [Series(name, tuple(own), style[name], joined=False) for name, own in points.items()]
    across, up = (Axis(f"{name} speed-up", low=low, high=high) for name in ("predicted", "measured"))
    svg = line_chart("predictions", title, across, up, series, guides)
    note = f"Dashed: as predicted, and {percent(AGREEMENT)} off either way."
    return Chart(title, svg, ("predicted_speedup", "measured_speedup", "gap"), note)


def _predicted(run: Run) -> Point:
    assert run.prediction is not None
    found = run.prediction
    at_one = [speed.speedup for speed in run.speeds if speed.plain.batch_size == 1]
    low, high = (at_one[0].low, at_one[0].high) if at_one else (None, None)
    note = (
        f"{variant(run)}, {temperature(run.temperature)}: predicted {number(found.predicted_speedup)}, "
        f"measured {number(found.measured_speedup)}"
    )
    return Point(found.predicted_speedup, found.measured_speedup, low, high, note)


def _curve(curve: Curve) -> Chart:
    title = f"Cost of verifying M tokens at once, T(M) / T(1), context {number(curve.context)}"
    points = tuple(
        Point(point.num_tokens, point.ratio, note=f"M = {point.num_tokens}: {number(point.ratio)}")
        for point in curve.points
    )
    svg = line_chart(
        "curve",
        title,
        Axis("M, tokens in one forward pass", low=1, whole=True),
        Axis("T(M) / T(1)", low=0),
        [Series("target", points, 0)],
    )
    return Chart(title, svg, ("curve",))
