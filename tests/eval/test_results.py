"""The result's figures are what their formulas say, and the whole of it survives JSON."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec.eval import results
from specdec.eval.results import FORMULAS, Estimate, Group, Position, Prediction, Result, Run, from_json, to_json


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a class of the result, its numbers positive, so that every quotient is finite."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        own = {field.name: strategy(hints[field.name]) for field in fields(kind) if field.name != "format"}
        return st.builds(kind, **own)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return st.one_of(*(st.none() if part is type(None) else strategy(part) for part in parts))
    if origin is tuple:
        return st.lists(strategy(parts[0]), max_size=2).map(tuple)
    return {int: st.integers(1, 100), float: st.floats(0.01, 100), str: st.text(max_size=3), bool: st.booleans()}[kind]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(strategy(Result))
def test_json_holds_the_whole_result(result: Result) -> None:
    assert from_json(json.loads(json.dumps(to_json(result)))) == result


@pytest.mark.parametrize("value", [None, [], {}, {"format": 99}, {"format": 1}])
def test_what_is_no_result_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="result"):
        from_json(value)


def classes() -> list[type]:
    return [kind for kind in vars(results).values() if isinstance(kind, type) and kind.__module__ == results.__name__]


def test_every_figure_has_a_formula() -> None:
    for kind in classes():
        for name, entry in vars(kind).items():
            if isinstance(entry, property) and name not in ("overall", "tasks", "categories"):
                assert entry.__doc__, f"{kind.__name__}.{name}"
                assert name in FORMULAS, f"{kind.__name__}.{name}"
    assert all(name in FORMULAS for name in ("acceptance_rate", "mean_acceptance_length", "interval", "curve"))
    assert not any("\n" in formula for formula in FORMULAS.values())


def group(task: str | None = None, category: str | None = None) -> Group:
    return Group(task, category, 2, 16, 8, 4, 12, 6, Estimate(0.5), Estimate(2.5), ())


def test_figures_of_a_group() -> None:
    assert group().tokens_per_step == (16 - 2) / 8
    assert group().mean_draft_length == 3


def test_a_position_is_judged_among_all_drafts_and_among_those_that_came_so_far() -> None:
    position = Position(2, num_drafts=10, num_reached=5, num_accepted=4)
    assert position.unconditional == 0.4
    assert position.conditional == 0.8
    assert Position(2, 3, 0, 0).conditional is None


def test_groups_of_a_run_by_kind() -> None:
    groups = (group(), group("chat"), group("code"), group("chat", "a"), group("code", "b"))
    run = Run("ngram", 4, 0.0, groups, (), (), results.Exactness("greedy", "bytes", True), ())
    assert run.overall is groups[0]
    assert run.tasks == groups[1:3]
    assert run.categories == groups[3:]


def test_prediction_by_hand() -> None:
    made = Prediction(
        tokens_per_step=2.0,
        draft_lengths=(0.5, 0.0, 0.5),
        forward_1=0.1,
        verify=0.5 * 0.1 + 0.5 * 0.2,
        draft=0.03,
        overhead=0.02,
        plain_overhead=0.01,
        plain_forward=0.12,
        measured_speedup=1.0,
    )
    assert made.predicted_speedup == pytest.approx(2.0 * 0.11 / 0.2)
    assert made.gap == pytest.approx(0.1)
    assert made.draft_cost == pytest.approx(0.25)
    assert made.draft_cost_per_token == pytest.approx(0.125)
