"""The tables of a report that speak of time."""

from __future__ import annotations

from specdec.eval.report_tables import (
    EMPTY,
    GAP,
    MEASURED,
    PER_STEP,
    PREDICTED,
    WHICH,
    C,
    Cell,
    Column,
    Row,
    Table,
    timing_cells,
    which,
    which_plain,
)
from specdec.eval.report_text import interval, milliseconds, number, percent, signed_percent, significant
from specdec.eval.results import Curve, Prediction, Result, Timing

TIMING = (
    Column("batch"),
    Column("answers"),
    Column("tokens"),
    Column("seconds"),
    Column("tokens/s", "tokens_per_second"),
    Column("ms per token", "time_per_output_token"),
)
PARTS = ("T(1)", "verifying", "T_draft", "O", "O_plain", "T_target")
"""Columns of times, in milliseconds per step, in the order of `_parts`."""


def speed(result: Result) -> Table:
    """Plain decoding and every run at each batch size; for each run both sides of its own groups of prompts."""
    columns = (*WHICH, *TIMING, Column("plain tokens/s", "tokens_per_second"), MEASURED)
    plain = tuple(
        (*which_plain(run), Cell(number(timing.batch_size)), *timing_cells(timing), EMPTY, EMPTY)
        for run in result.plain
        for timing in run.timings
    )
    bodies = tuple(
        tuple(
            (
                *which(run),
                Cell(number(each.proposer.batch_size)),
                *timing_cells(each.proposer),
                _against(each.plain.tokens_per_second, each.plain.num_tokens, each.plain.seconds),
                Cell(number(each.speedup.value), interval(each.speedup)),
            )
            for each in run.speeds
        )
        for run in result.runs
    )
    return Table("Speed by batch size", columns, (plain, *bodies))


def group_speed(result: Result) -> Table:
    """Both sides of batch 1 for each task and category."""
    columns = (
        *(*WHICH, Column("task"), Column("category"), Column("prompts")),
        *(Column("plain tokens/s", "tokens_per_second"), Column("tokens/s", "tokens_per_second")),
        *(MEASURED, PREDICTED, GAP),
    )
    bodies = tuple(
        tuple(
            (
                *which(run),
                Cell(each.task),
                Cell(each.category or "all"),
                Cell(number(each.speed.plain.num_answers)),
                _side(each.speed.plain),
                _side(each.speed.proposer),
                Cell(number(each.speed.speedup.value), interval(each.speed.speedup)),
                EMPTY if each.prediction is None else Cell(number(each.prediction.predicted_speedup)),
                EMPTY if each.prediction is None else Cell(signed_percent(each.prediction.gap)),
            )
            for each in run.group_speeds
        )
        for run in result.runs
    )
    return Table("Speed at batch 1 by task and category", columns, bodies)


def _side(timing: Timing) -> Cell:
    took = f"{number(timing.num_answers)} answers, {number(timing.num_tokens)} tokens in {number(timing.seconds)} s"
    per_token = timing.time_per_output_token
    return Cell(
        number(timing.tokens_per_second, 1),
        took if per_token is None else f"{took}, {milliseconds(per_token)} ms each",
    )


def _against(rate: float, num_tokens: int, seconds: float) -> Cell:
    return Cell(number(rate, 1), f"{number(num_tokens)} in {number(seconds)} s")


def prediction(result: Result) -> Table:
    """What each predicted speed-up is made of."""
    columns = (
        *(*WHICH, PER_STEP),
        *(Column(f"{part}, ms", "draft_cost" if part == "T_target" else "predicted_speedup") for part in PARTS),
        *(C, Column("c per draft token", "draft_cost_per_token"), PREDICTED, MEASURED, GAP),
    )
    rows = tuple((*which(run), *_parts(run.prediction)) for run in result.runs if run.prediction is not None)
    return Table("Predicted speed-up at batch 1, and the mean times per step that it is made of", columns, (rows,))


def _parts(found: Prediction) -> Row:
    times = (found.forward_1, found.verify, found.draft, found.overhead, found.plain_overhead, found.plain_forward)
    return (
        Cell(number(found.tokens_per_step)),
        *(Cell(milliseconds(seconds)) for seconds in times),
        Cell(significant(found.draft_cost)),
        Cell(significant(found.draft_cost_per_token)),
        Cell(number(found.predicted_speedup)),
        Cell(number(found.measured_speedup)),
        Cell(signed_percent(found.gap)),
    )


def draft_lengths(result: Result) -> Table:
    """The shares of steps by the number of draft tokens they verified; what never occurred is left out."""
    made = [(run, run.prediction.draft_lengths) for run in result.runs if run.prediction is not None]
    seen = sorted({m for _, shares in made for m, share in enumerate(shares) if share})
    columns = (*WHICH, *(Column(f"{m} drafted", "predicted_speedup") for m in seen))
    rows = tuple(
        (*which(run), *(Cell(percent(shares[m] if m < len(shares) else 0.0)) for m in seen)) for run, shares in made
    )
    return Table("Share of steps by the number of draft tokens verified", columns, (rows,))


def curve(found: Curve) -> Table:
    """T(M) and T(M) / T(1)."""
    columns = (Column("M"), Column("T(M), ms", "curve"), Column("T(M) / T(1)", "curve"))
    rows = tuple(
        (Cell(number(point.num_tokens)), Cell(milliseconds(point.seconds)), Cell(number(point.ratio)))
        for point in found.points
    )
    caption = (
        f"A forward pass over M tokens at a context of {number(found.context)}; medians of {number(found.repeats)}"
    )
    return Table(caption, columns, (rows,))
