"""Rows as long as their headings, and the cells that a reader looks for first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.eval import report_oracle, report_speed, report_tables
from specdec.eval.report_tables import Cell, Table
from specdec.eval.results import FORMULAS, Exactness, Result
from tests.eval.examples import result, run

RESULTS = {
    "one run": result(),
    "several": result(run(), run("suffix", 8, 0.7, complete=False), run("draft", 4, alarm="never drafts")),
    "nothing timed": replace(result(replace(run(prediction=None), speeds=())), curve=None),
    "nothing": replace(result(), runs=(), plain=(), oracles=()),
}


def tables(found: Result) -> list[Table]:
    made = [
        make(found)
        for make in (
            report_tables.summary,
            report_tables.acceptance,
            report_tables.counts,
            report_tables.output_ranges,
            report_tables.repetition,
            report_tables.exactness,
            report_tables.divergences,
            report_oracle.choices,
            report_oracle.members,
            report_oracle.agreed,
            report_speed.speed,
            report_speed.prediction,
            report_speed.draft_lengths,
        )
    ]
    return made if found.curve is None else [*made, report_speed.curve(found.curve)]


@pytest.mark.parametrize("found", RESULTS.values(), ids=RESULTS)
def test_rows_are_as_long_as_the_heading(found: Result) -> None:
    for table in tables(found):
        assert {len(row) for body in table.bodies for row in body} <= {len(table.columns)}, table.caption
        assert all(column.formula in FORMULAS for column in table.columns if column.formula), table.caption
        assert all(cell.text for body in table.bodies for row in body for cell in row), table.caption


def by_column(table: Table, body: int, row: int) -> dict[str, Cell]:
    return dict(zip((column.name for column in table.columns), table.bodies[body][row], strict=True))


def test_the_summary_of_a_run() -> None:
    row = by_column(report_tables.summary(result()), 1, 0)
    assert row["mean acceptance length"] == Cell("2.21", "2.01 to 2.41")
    assert row["acceptance rate"] == Cell("52.1 %", "42.1 to 62.1 %")
    assert row["c"] == Cell("0.00407")
    assert row["predicted speed-up"] == Cell("1.55")
    assert row["measured speed-up"] == Cell("1.43", "1.31 to 1.57")
    assert row["gap"] == Cell("+8.3 %")
    assert row["tokens/s, batch 4"] == Cell("56.5", "1.47 times plain")
    assert row["exactness"] == Cell("bytes, checked: 210 of 211 equal")


def test_plain_decoding_heads_the_summary() -> None:
    row = by_column(report_tables.summary(result()), 0, 0)
    assert row["proposer"] == Cell("plain decoding")
    assert row["tokens/s, batch 1"] == Cell("17.0")
    assert row["gap"] == Cell("–")


def test_what_a_run_was_not_timed_at_is_a_dash() -> None:
    found = result(replace(run(prediction=None, complete=False), speeds=run().speeds[:1]))
    row = by_column(report_tables.summary(found), 1, 0)
    assert row["proposer"] == Cell("ngram", marks=("interrupted",))
    assert row["tokens/s, batch 1"] != Cell("–")
    assert [row[name] for name in ("tokens/s, batch 4", "c", "gap", "predicted speed-up")] == [Cell("–")] * 4


def test_shares_at_a_position_and_what_they_are_made_of() -> None:
    assert by_column(report_tables.acceptance(result()), 0, 0)["position 2"] == Cell("95.6 %", "98.2 %")
    assert by_column(report_tables.counts(result()), 0, 0)["position 2"] == Cell("218 / 222 / 228")


def test_a_run_with_shorter_drafts_has_dashes_for_the_rest() -> None:
    shorter = replace(run("suffix"), groups=tuple(replace(each, positions=()) for each in run().groups))
    table = report_tables.acceptance(result(run(), shorter))
    assert by_column(table, 1, 0)["position 1"] == Cell("–")


@pytest.mark.parametrize(
    ("exactness", "drafts", "text"),
    [
        (Exactness("greedy", "bytes", True, 1000, 1000), 9, "checked: 1,000 of 1,000 equal"),
        (
            Exactness("greedy", "bytes", True, 1000, 1000),
            0,
            "not checked, for no draft was verified: 1,000 of 1,000 equal",
        ),
        (Exactness("rejection", "distribution", False), 9, "not checked in this run"),
    ],
)
def test_whether_exactness_was_checked(exactness: Exactness, drafts: int, text: str) -> None:
    own = run()
    groups = tuple(replace(each, num_drafts=drafts) for each in own.groups)
    assert report_tables.checked(replace(own, exactness=exactness, groups=groups)) == text


def test_an_oracle_with_what_it_was_chosen_from() -> None:
    row = by_column(report_oracle.choices(result()), 0, 0)
    assert (row["chosen from"], row["k"], row["task"]) == (Cell("auto"), Cell("18"), Cell("all prompts"))
    assert row["oracle"] == Cell("1.46", "1,372")
    assert row["measured"] == Cell("1.45", "1,384")
    assert row["share"] == Cell("0.91", "0.81 to 0.96")
    row = by_column(report_oracle.choices(result()), 0, 2)
    assert (row["chosen from"], row["measured"], row["share"]) == (Cell("ngram+suffix"), Cell("–"), Cell("–"))


def test_the_drafts_of_an_oracles_member() -> None:
    row = by_column(report_oracle.members(result()), 0, 0)
    assert (row["proposer"], row["its k"]) == (Cell("ngram"), Cell("18"))
    assert (row["perfect"], row["sayable"]) == (Cell("7.18", "279"), Cell("4.38", "457"))
    assert row["fresh"] == Cell("3.33", "601")
    assert by_column(report_oracle.members(result()), 0, 1)["fresh"] == Cell("–")
    assert row["position 2"] == Cell("99.2 %", "95.7 %; 1,330 / 1,341 / 1,390")
    assert by_column(report_oracle.agreed(result()), 0, 0)["2 right"] == Cell("32.8 %", "1,332")
    assert by_column(report_oracle.agreed(result()), 0, 1)["2 right"] == Cell("–")
