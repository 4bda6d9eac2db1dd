"""The jobs of a plan: their order, temperatures and seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.train.data.filters import Exclusion
from specdec.train.data.plan import Mix, make_plan
from specdec.train.data.prompts import Message, Prompt, Source
from tests.train.data.toys import sources


def source(*texts: str, name: str = "s") -> Source:
    return Source(name, tuple(Prompt(name, (Message("user", text),)) for text in texts))


def test_a_plan_does_not_depend_on_the_order_of_files() -> None:
    a, b = source("x", "y", "z"), source("u", "v", name="t")
    one, other = (make_plan(given, Exclusion(()), Mix(), 2, 7) for given in ([a, b], [b, a]))
    assert one == other
    assert [job.number for job in one.jobs] == list(range(10))


@given(st.integers(0, 2**40), st.integers(1, 4))
def test_a_prompt_has_one_greedy_sample_at_most(seed: int, samples: int) -> None:
    jobs = make_plan([source("a", "b", "c", "d")], Exclusion(()), Mix(), samples, seed).jobs
    assert len(jobs) == 4 * samples
    assert len({job.key for job in jobs}) == len(jobs)
    greedy = Counter(job.prompt.key for job in jobs if job.temperature == 0)
    assert all(count == 1 for count in greedy.values())


def test_weights_are_shares() -> None:
    many = source(*(f"prompt {i}" for i in range(4000)))
    jobs = make_plan([many], Exclusion(()), Mix((0.0, 0.5, 1.0), (1, 0, 3)), 1, 0).jobs
    counts = Counter(job.temperature for job in jobs)
    assert counts[0.5] == 0
    assert counts[1.0] / len(jobs) == pytest.approx(0.75, abs=0.03)


def test_what_is_left_out_is_counted() -> None:
    given = [
        source("one two three", "ONE, two three!", "four five six seven", "eight", "nine"),
        source("ten", name="t"),
    ]
    made = make_plan(given, Exclusion(["five six"]), Mix(), 1, 0, most=2)
    assert made.left_out == {"repeated prompt": 1, "evaluation prompt": 1, "beyond its source's share": 1}
    assert len(made.jobs) == 3
    assert {job.prompt.source for job in made.jobs} == {"s", "t"}


def test_seeds_of_turns_differ_and_depend_on_the_job_alone() -> None:
    jobs = make_plan(sources(), Exclusion(()), Mix(), 1, 0).jobs
    seeds = [job.seed(turn) for job in jobs for turn in (-1, 0, 1)]
    assert len(set(seeds)) == len(seeds)
    assert replace(jobs[0], number=99).seed(0) == jobs[0].seed(0)


@pytest.mark.parametrize(
    ("temperatures", "weights", "message"),
    [
        ((0.0,), (1.0, 2.0), "a weight for each temperature; got 2 for 1"),
        ((1.0, 1.0), (1.0, 1.0), "a temperature stands twice among 1, 1"),
        ((-1.0,), (1.0,), "a temperature must be at least 0; got -1"),
        ((1.0,), (float("nan"),), "a weight must be at least 0; got nan"),
        ((1.0,), (0.0,), "one weight at least must be above 0"),
        ((), (), "a weight for each temperature"),
    ],
)
def test_a_wrong_mix_is_refused(temperatures: tuple[float, ...], weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mix(temperatures, weights)


def test_plans_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="several samples of a prompt need a temperature above 0"):
        make_plan([source("a")], Exclusion(()), Mix((0.0,), (1.0,)), 2, 0)
    with pytest.raises(ValueError, match="all of them are evaluation prompts"):
        make_plan([source("a")], Exclusion(["a"]), Mix(), 1, 0)
