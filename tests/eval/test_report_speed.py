"""What the tables of time say of a run."""

from __future__ import annotations

from specdec.eval import report_speed
from specdec.eval.report_tables import Cell
from tests.eval.examples import result, run


def test_both_sides_of_a_run_at_each_batch_size() -> None:
    table = report_speed.speed(result())
    names = [column.name for column in table.columns]
    plain, own = table.bodies
    assert [row[names.index("batch")].text for row in (*plain, *own)] == ["1", "4", "1", "4"]
    row = dict(zip(names, own[0], strict=True))
    assert row["tokens/s"] == Cell("24.4")
    assert row["plain tokens/s"] == Cell("17.0", "702 in 41.30 s")
    assert row["measured speed-up"] == Cell("1.44", "1.31 to 1.57")
    assert row["ms per token"] == Cell("40.89")


def test_the_parts_of_a_prediction_are_in_milliseconds() -> None:
    table = report_speed.prediction(result(run(), run("suffix", prediction=None)))
    ((row,),) = table.bodies
    cells = dict(zip((column.name for column in table.columns), (cell.text for cell in row), strict=True))
    times = [cells[f"{part}, ms"] for part in report_speed.PARTS]
    assert times == ["51.10", "61.70", "0.2130", "1.490", "1.510", "52.30"]
    assert cells["c per draft token"] == "0.00204"


def test_lengths_of_drafts_that_never_occurred_are_left_out() -> None:
    table = report_speed.draft_lengths(result())
    assert [column.name for column in table.columns[3:]] == ["0 drafted", "2 drafted"]
    assert [cell.text for cell in table.bodies[0][0][3:]] == ["29.7 %", "70.3 %"]
