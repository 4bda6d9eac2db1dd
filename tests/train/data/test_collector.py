"""Outcomes in any order become the same shards, without what was kept before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.train.data.collector import Collector
from specdec.train.data.conversation import Answer, Outcome
from specdec.train.data.dataset import open_dataset
from specdec.train.data.prompts import SELF_WRITTEN
from specdec.train.data.record import Record
from specdec.train.data.shards import find_shards, read_shard
from tests.train.data.toys import files

JOBS, SHARD = 11, 4


def outcome(job: int, *answers: int, source: str = "s", prompt: int | None = None, dropped: str = "") -> Outcome:
    """Of a job, answers by their digests."""
    made = tuple(
        Answer(job, turn, np.array([1, 2, digest]), 2, source, 1.0, job, prompt or job, digest, True)
        for turn, digest in enumerate(answers)
    )
    return Outcome(job, made, (dropped,) if dropped else ())


OUTCOMES = [
    outcome(0, 50),
    outcome(1, dropped="loop"),
    outcome(2, 51, 52),
    outcome(3, 50),
    outcome(4, 53, source=SELF_WRITTEN, prompt=9),
    outcome(5, 54, source=SELF_WRITTEN, prompt=9),
    outcome(6, 55, 51),
    outcome(7, dropped="empty"),
    outcome(8, 55),
    outcome(9, 54),
    outcome(10, 56, dropped="failed"),
]


def collector(folder: Path) -> Collector:
    return Collector(folder, JOBS, SHARD, 99)


def kept(folder: Path) -> list[int]:
    Record({}, {}).write(folder)
    dataset = open_dataset(folder)
    return [int(dataset[i].token_ids[-1]) for i in range(len(dataset))]


@settings(max_examples=12)
@given(st.permutations(OUTCOMES), st.lists(st.integers(1, JOBS), max_size=4))
def test_the_order_of_outcomes_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, order: list[Outcome], stops: list[int]
) -> None:
    straight, folder = tmp_path_factory.mktemp("straight"), tmp_path_factory.mktemp("other")
    whole = collector(straight)
    for each in OUTCOMES:
        whole.add(each)
    rest = list(order)
    for count in [*stops, JOBS]:
        other = collector(folder)
        other.resume(read_shard(paths, 0) for paths in find_shards(folder))
        known = {*range(other.next_job), *other.done_jobs()}
        for each in [o for o in rest if o.job not in known][:count]:
            other.add(each)
        other.write_partial()
        if other.is_done:
            break
    assert other.is_done
    assert files(folder) == files(straight)
    assert (other.totals.samples, other.totals.dropped) == (whole.totals.samples, whole.totals.dropped)
    assert kept(straight) == [50, 51, 52, 53, 55, 54, 56]


def test_drops_are_counted_by_reason(tmp_path: Path) -> None:
    own = collector(tmp_path)
    for each in OUTCOMES:
        own.add(each)
    assert own.totals.dropped == {
        "loop": 1,
        "duplicate answer": 3,
        "duplicate prompt": 1,
        "empty": 1,
        "failed": 1,
    }
    assert (own.totals.answer_tokens, own.totals.tokens, own.totals.finished) == (7, 21, 7)
    assert sum(sum(read_shard(paths, 0).dropped.values()) for paths in find_shards(tmp_path)) == 7


def test_a_partial_shard_has_what_is_done_of_it_in_the_order_of_jobs(tmp_path: Path) -> None:
    own = collector(tmp_path)
    for job in (3, 0, 9, 2):
        own.add(OUTCOMES[job])
    own.write_partial()
    assert kept(tmp_path) == [50, 51, 52]
    again = collector(tmp_path)
    again.resume(read_shard(paths, 0) for paths in find_shards(tmp_path))
    assert again.done_jobs() == {0, 2}, "a job that lost a sample is done again"


def test_shards_of_another_size_are_refused(tmp_path: Path) -> None:
    own = collector(tmp_path)
    for each in OUTCOMES:
        own.add(each)
    other = replace(collector(tmp_path), shard_jobs=3)
    with pytest.raises(ValueError, match="does not follow the shard before it"):
        other.resume(read_shard(paths, 0) for paths in find_shards(tmp_path))
