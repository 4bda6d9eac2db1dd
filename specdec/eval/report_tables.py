"""The tables of a report, as cells of text: every count and figure of a result stands in one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdec.eval.report_charts import group_name, run_groups
from specdec.eval.report_text import (
    DASH,
    interval,
    milliseconds,
    number,
    percent,
    percent_interval,
    signed_percent,
    significant,
)
from specdec.eval.results import Group, PlainRun, Position, Result, Run, Speed, Timing


@dataclass(frozen=True)
class Column:
    """`formula`: the figure's name in `specdec.eval.results.FORMULAS`, empty for what needs none."""

    name: str
    formula: str = ""


@dataclass(frozen=True)
class Cell:
    """`detail` stands under the text, in small; `marks` say that a run is not to be taken for whole."""

    text: str
    detail: str = ""
    marks: tuple[str, ...] = ()


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A row's first cell heads it; the rows of a body belong together."""

    caption: str
    columns: tuple[Column, ...]
    bodies: tuple[tuple[Row, ...], ...]

    @property
    def is_empty(self) -> bool:
        return not any(self.bodies)


EMPTY = Cell(DASH)
WHICH = (Column("proposer"), Column("k"), Column("T"))
RATE = Column("acceptance rate", "acceptance_rate")
LENGTH = Column("mean acceptance length", "mean_acceptance_length")
PER_STEP = Column("tokens per step", "tokens_per_step")
DRAFT_LENGTH = Column("mean draft length", "mean_draft_length")
C = Column("c", "draft_cost")
PREDICTED = Column("predicted speed-up", "predicted_speedup")
MEASURED = Column("measured speed-up", "measured_speedup")
GAP = Column("gap", "gap")
COUNTS = (Column("drafts"), Column("drafted"), Column("accepted"))


def marks(run: Run) -> tuple[str, ...]:
    """What is wrong with a run as a whole, in a word each."""
    return tuple(mark for mark, holds in (("interrupted", not run.complete), ("alarm", run.alarm is not None)) if holds)


def which(run: Run) -> Row:
    return (
        Cell(run.proposer, marks=marks(run)),
        Cell(number(run.num_speculative_tokens)),
        Cell(f"{run.temperature:g}"),
    )


def which_plain(run: PlainRun) -> Row:
    return Cell("plain decoding"), Cell("0"), Cell(f"{run.temperature:g}")


def summary(result: Result) -> Table:
    """A line for each run, over all prompts, under plain decoding's."""
    sizes = result.settings.batch_sizes
    columns = (
        *(*WHICH, LENGTH, RATE, PER_STEP, DRAFT_LENGTH, C, PREDICTED, MEASURED, GAP),
        *(Column(f"tokens/s, batch {size}", "tokens_per_second") for size in sizes),
        Column("exactness"),
    )
    plain = tuple(_plain_summary(run, sizes) for run in result.plain)
    runs = tuple(_summary(run, sizes) for run in result.runs)
    return Table("Every proposer over all prompts", columns, (plain, runs))


def _plain_summary(run: PlainRun, sizes: Sequence[int]) -> Row:
    rates = {timing.batch_size: number(timing.tokens_per_second, 1) for timing in run.timings}
    return *which_plain(run), *[EMPTY] * 8, *(Cell(rates.get(size, DASH)) for size in sizes), EMPTY


def _summary(run: Run, sizes: Sequence[int]) -> Row:
    speeds = {speed.plain.batch_size: speed for speed in run.speeds}
    group = run.overall
    return (
        *which(run),
        _length(group),
        _rate(group),
        Cell(number(group.tokens_per_step)),
        Cell(number(group.mean_draft_length)),
        *_predicted(run),
        *(_tokens_per_second(speeds[size]) if size in speeds else EMPTY for size in sizes),
        Cell(f"{run.exactness.level}, {checked(run)}"),
    )


def _predicted(run: Run) -> Row:
    found = run.prediction
    if found is None:
        return EMPTY, EMPTY, EMPTY, EMPTY
    measured = [interval(speed.speedup) for speed in run.speeds if speed.plain.batch_size == 1]
    return (
        Cell(significant(found.draft_cost)),
        Cell(number(found.predicted_speedup)),
        Cell(number(found.measured_speedup), measured[0] if measured else ""),
        Cell(signed_percent(found.gap)),
    )


def _tokens_per_second(speed: Speed) -> Cell:
    return Cell(number(speed.proposer.tokens_per_second, 1), f"{number(speed.speedup.value)} times plain")


def checked(run: Run) -> str:
    """Whether this run compared its outputs with plain decoding's, and what came of it."""
    exactness = run.exactness
    if not exactness.checked:
        return "not checked in this run"
    how = "checked" if run.overall.num_drafts else "not checked, for no draft was verified"
    return f"{how}: {number(exactness.num_equal)} of {number(exactness.num_prompts)} equal"


def _rate(group: Group) -> Cell:
    return Cell(percent(group.acceptance_rate.value), percent_interval(group.acceptance_rate))


def _length(group: Group) -> Cell:
    return Cell(number(group.mean_acceptance_length.value), interval(group.mean_acceptance_length))


def acceptance(result: Result) -> Table:
    """A line for each group of prompts of each run."""
    deepest = _deepest(result.runs)
    columns = (
        *(*WHICH, Column("task"), Column("prompts"), RATE, LENGTH, PER_STEP, DRAFT_LENGTH),
        *(Column(f"position {place}", "unconditional") for place in range(1, deepest + 1)),
    )
    bodies = tuple(
        tuple(
            (
                *which(run),
                Cell(group_name(group)),
                Cell(number(group.num_prompts)),
                _rate(group),
                _length(group),
                Cell(number(group.tokens_per_step)),
                Cell(number(group.mean_draft_length)),
                *_padded(map(_shares, group.positions), deepest),
            )
            for group in run_groups(run)
        )
        for run in result.runs
    )
    caption = "Acceptance; at a position: of all drafts that had it, and of those whose token before it was accepted"
    return Table(caption, columns, bodies)


def counts(result: Result) -> Table:
    """What the shares of `acceptance` are made of."""
    deepest = _deepest(result.runs)
    columns = (
        *(*WHICH, Column("task"), Column("tokens"), Column("steps"), *COUNTS),
        *(Column(f"position {place}", "conditional") for place in range(1, deepest + 1)),
    )
    bodies = tuple(
        tuple(
            (
                *which(run),
                Cell(group_name(group)),
                *(Cell(number(count)) for count in (group.num_tokens, group.num_steps, group.num_drafts)),
                *(Cell(number(count)) for count in (group.num_draft_tokens, group.num_accepted_tokens)),
                *_padded(map(_counts, group.positions), deepest),
            )
            for group in run_groups(run)
        )
        for run in result.runs
    )
    return Table("Counts; at a position: accepted / reached / drafts that had it", columns, bodies)


def _deepest(runs: Iterable[Run]) -> int:
    return max((len(group.positions) for run in runs for group in run.groups), default=0)


def _shares(position: Position) -> Cell:
    return Cell(percent(position.unconditional), percent(position.conditional))


def _counts(position: Position) -> Cell:
    return Cell(" / ".join(map(number, (position.num_accepted, position.num_reached, position.num_drafts))))


def _padded(cells: Iterable[Cell], length: int) -> Row:
    row = tuple(cells)
    return *row, *[EMPTY] * (length - len(row))


def output_ranges(result: Result) -> Table:
    """A line for each range of output tokens of each run."""
    columns = (*WHICH, Column("output tokens", "by_output_position"), *COUNTS, RATE, LENGTH)
    bodies = tuple(
        tuple(
            (
                *which(run),
                Cell(f"{number(each.start)} to {number(each.end - 1)}"),
                Cell(number(each.num_drafts)),
                Cell(number(each.num_draft_tokens)),
                Cell(number(each.num_accepted_tokens)),
                Cell(percent(each.acceptance_rate)),
                Cell(number(each.mean_acceptance_length)),
            )
            for each in run.output_ranges
        )
        for run in result.runs
    )
    return Table("Drafts by the output token at which they began", columns, bodies)


def repetition(result: Result) -> Table:
    """How much outputs repeat themselves, plain decoding's first."""
    columns = (*WHICH, Column("prompts"), Column("tokens"), *(Column(f"distinct-{n}", "distinct_n") for n in (1, 2, 3)))
    plain = tuple(
        (*which_plain(run), Cell(number(run.num_prompts)), Cell(number(run.num_tokens)), *_distinct(run.distinct))
        for run in result.plain
    )
    runs = tuple(
        (
            *which(run),
            Cell(number(run.overall.num_prompts)),
            Cell(number(run.overall.num_tokens)),
            *_distinct(run.distinct),
        )
        for run in result.runs
    )
    return Table("Different n-grams of the outputs", columns, (plain, runs))


def _distinct(shares: Sequence[float | None]) -> Row:
    return _padded((Cell(number(share, 3)) for share in shares), 3)


def exactness(result: Result) -> Table:
    """What each run's verifier promises, and what was seen of it."""
    columns = (*WHICH, Column("verifier"), Column("level"), Column("in this run", "num_equal"))
    rows = tuple(
        (*which(run), Cell(run.exactness.verifier), Cell(run.exactness.level), Cell(checked(run)))
        for run in result.runs
    )
    return Table("Exactness against plain decoding", columns, (rows,))


def divergences(result: Result) -> Table:
    """The first outputs of each run that are not plain decoding's."""
    columns = (*WHICH, *map(Column, ("prompt", "from output token", "plain decoding's token id", "the proposer's")))
    bodies = tuple(
        tuple(
            (*which(run), Cell(f"{each.task}/{each.prompt_id}"), *_ids(each.index, each.plain, each.proposer))
            for each in run.exactness.divergences
        )
        for run in result.runs
    )
    return Table("Outputs that are not plain decoding's", columns, bodies)


def _ids(*ids: int | None) -> Row:
    return tuple(Cell(DASH if each is None else str(each)) for each in ids)


def timing_cells(timing: Timing) -> Row:
    """Answers, tokens, seconds, tokens a second, milliseconds a token."""
    return (
        Cell(number(timing.num_answers)),
        Cell(number(timing.num_tokens)),
        Cell(number(timing.seconds)),
        Cell(number(timing.tokens_per_second, 1)),
        Cell(milliseconds(timing.time_per_output_token)),
    )
