"""The table shows the result's figures, each in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.eval.results import Divergence, Exactness, Result
from specdec.eval.summary import evaluate
from specdec.eval.table import table
from tests.eval.helpers import toy_engine, toy_plan


@pytest.fixture(scope="module")
def result() -> Result:
    engine = toy_engine()
    return evaluate(engine, toy_plan(engine, temperatures=[0.0, 0.7]), "c", load=0.5)


def test_without_a_draft_nothing_counts_as_checked(result: Result) -> None:
    first = result.runs[0]
    undrafted = replace(first, groups=tuple(replace(group, num_drafts=0) for group in first.groups))
    text = table(replace(result, runs=(undrafted,)))
    assert "no draft was verified, so nothing was checked: 6 of 6 outputs are plain decoding's tokens" in text


def rows(text: str, first: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def test_acceptance_and_speed_of_each_run(result: Result) -> None:
    text = table(result)
    greedy = result.runs[0]
    acceptance, speed, by_category, _ = (
        row for row in rows(text, "ngram") if row[1:3] in (["4", "0"], ["k=4", "T=0:"])
    )
    overall = greedy.overall
    assert acceptance[3:8] == [
        "all",
        "6",
        str(overall.num_draft_tokens),
        f"{100 * overall.acceptance_rate.value:.0f}",
        "%",
    ]
    assert acceptance[8] == f"{overall.mean_acceptance_length.value:.2f}"
    assert greedy.prediction is not None
    assert speed[3] == "1"
    assert speed[8] == f"{greedy.speeds[0].speedup.value:.2f}"
    assert f"{greedy.prediction.predicted_speedup:.2f}" in speed
    first = next(each for each in greedy.group_speeds if each.category is not None)
    assert by_category[3:6] == [first.task, first.category, str(first.speed.plain.num_answers)]
    assert by_category[8] == f"{first.speed.speedup.value:.2f}"
    before_times = text[: text.index("Speed")]
    assert [row[0] for row in rows(before_times, "chat") + rows(before_times, "code")] == ["chat"] * 2 + ["code"] * 2


def test_heading_curve_and_machine(result: Result) -> None:
    text = table(result)
    assert text.startswith("scripted, float64: 6 prompts of chat, code, at most 24 tokens each\n")
    assert [row[1:4] for row in rows(text, "M")] == [["1", "2", "3"]]
    assert rows(text, "T(M)/T(1)")[0][1] == "1.00"
    assert "load 0.5" in text.splitlines()[-1]
    assert "plain decoding at T=0.7: " in text
    assert "interrupted" not in text


def test_exactness_is_told_in_words(result: Result) -> None:
    text = table(result)
    assert "ngram k=4 T=0: exactness bytes (verifier greedy), checked: 6 of 6 outputs are plain decoding's" in text
    assert "ngram k=4 T=0.7: exactness distribution (verifier rejection), not checked in this run" in text
    wrong = Exactness("greedy", "bytes", True, 6, 5, (Divergence("chat", "chat-1", 17, 1, 2),))
    text = table(replace(result, runs=(replace(result.runs[0], exactness=wrong),)))
    assert (
        "5 of 6 outputs are plain decoding's tokens; the first that is not: chat/chat-1, from output token 17" in text
    )


def test_what_was_not_measured_is_left_out(result: Result) -> None:
    runs = tuple(replace(run, speeds=(), prediction=None, group_speeds=()) for run in result.runs)
    text = table(replace(result, runs=runs, curve=None, interrupted=True))
    assert "speed-up" not in text
    assert "T(M)" not in text
    assert "interrupted: what follows is what was measured by then" in text
    assert "exactness" not in table(replace(result, runs=(), plain=(), curve=None))
