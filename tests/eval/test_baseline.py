"""Recorded acceptance bounds later runs from below, and from below only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.eval.baseline import Baseline, check_comparable, compare, conditions, read, record, write
from specdec.eval.results import (
    Estimate,
    Exactness,
    Group,
    Machine,
    Origin,
    Result,
    Run,
    Settings,
    Versions,
)

ORIGIN = Origin(
    "specdec eval acceptance",
    "abc",
    "2025-01-01T00:00:00+00:00",
    Versions("1", "2", "3", "4"),
    Machine("cpu", 2, 2, 0.5),
)
SETTINGS = Settings("m", "float32", "auto", ("chat", "code"), 64, 5, 0, 0, (), 2000, 0.95)


def group(task: str | None, length: Estimate, rate: Estimate) -> Group:
    return Group(task, None, 5, 100, 40, 20, 80, 40, rate, length, ())


LENGTH, RATE = Estimate(2.5, 2.2, 2.8), Estimate(0.5, 0.4, 0.6)


def result(length: Estimate = LENGTH, rate: Estimate = RATE) -> Result:
    groups = tuple(group(task, length, rate) for task in (None, "chat", "code"))
    run = Run("ngram", 4, 0.0, groups, (), (), Exactness("greedy", "bytes", True), ())
    return Result(ORIGIN, SETTINGS, (), (run, replace(run, num_speculative_tokens=2)), None)


BASELINE = record(result())


def test_a_baseline_has_an_entry_for_each_run_and_task() -> None:
    assert [entry.key for entry in BASELINE.entries] == [
        ("chat", "ngram", 4, 0.0),
        ("code", "ngram", 4, 0.0),
        ("chat", "ngram", 2, 0.0),
        ("code", "ngram", 2, 0.0),
    ]
    assert BASELINE.origin == ORIGIN
    assert BASELINE.conditions == conditions(result())


def test_it_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    write(BASELINE, path)
    assert read(path) == BASELINE
    assert path.read_text("utf-8").endswith("}\n")


def test_the_same_result_has_not_regressed() -> None:
    assert compare(BASELINE, result()) == ()


@pytest.mark.parametrize(
    ("length", "regressed"),
    [
        (Estimate(2.4, 2.2, 2.5), False),
        (Estimate(2.4, 2.2, 2.4999), True),
        (Estimate(2.4), True),
        (Estimate(2.5), False),
        (Estimate(9.0, 8.0, 10.0), False),
        (Estimate(1.0, 1.0, 1.0), True),
    ],
)
def test_only_an_interval_that_ends_below_the_record_is_a_regression(length: Estimate, regressed: bool) -> None:
    found = compare(BASELINE, result(length=length))
    assert len(found) == (4 if regressed else 0)
    if regressed:
        upper = length.value if length.high is None else length.high
        assert found[0] == (
            f"ngram k=4 T=0 on chat: mean acceptance length {length.value:.3f}, at most {upper:.3f} with its interval; "
            "2.500 was recorded"
        )


def test_the_acceptance_rate_is_bounded_too() -> None:
    found = compare(BASELINE, result(rate=Estimate(0.3, 0.2, 0.45)))
    assert [line.split(": ")[1].split(" 0.")[0] for line in found] == ["acceptance rate"] * 4


def test_what_only_one_side_has_is_passed_over() -> None:
    fewer = replace(BASELINE, entries=BASELINE.entries[:1])
    assert len(compare(fewer, result(length=Estimate(1.0)))) == 1
    assert compare(BASELINE, replace(result(), runs=())) == ()


def test_an_interrupted_evaluation_is_no_baseline() -> None:
    with pytest.raises(ValueError, match="interrupted"):
        record(replace(result(), interrupted=True))


OWN = conditions(result())
COUNTS = {"chat": 5, "code": 5}


def test_a_run_as_recorded_compares() -> None:
    check_comparable(BASELINE, OWN, COUNTS, [("ngram", 4, 0.0)])
    check_comparable(BASELINE, OWN, {"chat": 5, "new": 3}, [("ngram", 4, 0.0), ("suffix", 4, 0.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": "other"},
            "the baseline was recorded with model m, and this run has other; run it as recorded: specdec",
        ),
        ({"max_tokens": 32}, "recorded with max_tokens 64, and this run has 32"),
        ({"limit": None}, "recorded with limit 5, and this run has None"),
        ({"seed": 1}, "recorded with seed 0, and this run has 1"),
    ],
)
def test_other_conditions_do_not_compare(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_comparable(BASELINE, replace(OWN, **change), COUNTS, [("ngram", 4, 0.0)])  # type: ignore[arg-type]


def test_other_prompts_or_none_in_common_do_not_compare() -> None:
    with pytest.raises(ValueError, match="recorded with 5 prompts of code, and this run has 6; record it anew"):
        check_comparable(BASELINE, OWN, {"chat": 5, "code": 6}, [("ngram", 4, 0.0)])
    with pytest.raises(
        ValueError, match="has none of the tasks, proposers, k and temperatures of this run; it has ngram"
    ):
        check_comparable(BASELINE, OWN, COUNTS, [("ngram", 8, 0.0)])
    with pytest.raises(ValueError, match="it has nothing"):
        check_comparable(Baseline(ORIGIN, OWN, ()), OWN, COUNTS, [("ngram", 4, 0.0)])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 2, "entries": []}'])
def test_what_is_no_baseline_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"b\.json: "):
        read(path)


def test_what_is_wrong_in_a_baseline_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    write(BASELINE, path)
    value = json.loads(path.read_text())
    value["entries"][1]["temperature"] = "hot"
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"b\.json: baseline\.entries\[1\]\.temperature must be of type float"):
        read(path)
    with pytest.raises(ValueError, match="No such file"):
        read(tmp_path / "nowhere.json")
