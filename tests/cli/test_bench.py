"""`specdec bench overhead` measures what it says it does; how fast this is, no test asks."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from specdec.cli import overhead
from specdec.cli.overhead import (
    PROPOSER_TARGETS_US,
    Overhead,
    ProposerTime,
    StepTime,
    measure_proposer,
    measure_step,
    report,
)
from tests.cli.fake import invoke

STAGES = ["schedule", "batch", "sample", "commit", "propose", "outputs"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_steps_are_full_of_drafts_of_which_some_fail(batch_size: int) -> None:
    step = measure_step(batch_size, target_ms=1.0, num_steps=25)
    assert step.drafted_per_step == 4
    assert 0.2 < step.acceptance_rate < 0.95
    assert list(step.stages_ms) == STAGES
    assert all(value > 0 for value in step.stages_ms.values())
    assert step.total_ms > max(step.stages_ms.values())


@pytest.mark.parametrize("method", PROPOSER_TARGETS_US)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_proposer_is_measured_by_rows_and_context(method: str, batch_size: int) -> None:
    timed = measure_proposer(method, batch_size, 512, 50.0, num_steps=5)
    assert (timed.method, timed.batch_size, timed.context, timed.target_us) == (method, batch_size, 512, 50.0)
    assert timed.median_us > 0


RESULT = Overhead(
    steps=(
        StepTime(1, dict.fromkeys(STAGES, 0.1), 0.6, 1.0, 4.0, 0.5),
        StepTime(32, dict.fromkeys(STAGES, 1.2), 7.2, 6.0, 4.0, 0.5),
    ),
    proposers=(ProposerTime("ngram", 16, 32_000, 6.0, 50.0),),
    num_speculative_tokens=4,
    vocab_size=49_152,
    num_steps=200,
    torch_version="2",
    torch_threads=2,
    python_version="3",
)


def test_the_table_says_which_targets_are_met() -> None:
    rows = [line.split() for line in report(RESULT).splitlines()]
    assert rows[1] == ["rows", *STAGES, "total", "target", "drafted", "accepted"]
    assert rows[2] == ["1", *["0.100"] * 6, "0.600", "<", "1", "4.00", "50", "%"]
    assert rows[3] == ["32", *["1.200"] * 6, "7.200", "NOT", "<", "6", "4.00", "50", "%"]
    assert ["ngram", "16", "32,000", "6.0", "<", "50"] in rows


def test_the_command_prints_the_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "measure_overhead", lambda: RESULT)
    assert invoke("bench", "overhead").stdout == report(RESULT) + "\n"
    assert json.loads(invoke("bench", "overhead", "--json").stdout) == json.loads(json.dumps(asdict(RESULT)))
