"""The head that comes with the package drafts as well as it did when it was put there."""

from __future__ import annotations

import pytest

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine
from specdec.eval.measure import prepare
from specdec.eval.session import Job, answer_all
from specdec.eval.tasks import load_tasks
from specdec.types import SamplingParams, SpeculationParams

RECORDED = 1.91
"""Tokens a step of `NUM_PROMPTS` prompts of the built-in tasks, 64 tokens each, with drafts of 4."""
NUM_PROMPTS = 20
TOLERANCE = 0.02
"""Kernels of another machine round otherwise, and so some answers are others."""


@pytest.mark.model
@pytest.mark.slow
def test_acceptance_is_what_was_recorded() -> None:
    entry = SpeculativeConfig("eagle3", 4)
    engine = Engine.from_config(EngineConfig(model="smollm2-135m", dtype="bfloat16", speculative=(entry,)))
    _, token_ids, _ = prepare(engine, load_tasks(["all"]), 3, 64)
    params, speculation = SamplingParams(temperature=0, max_tokens=64), SpeculationParams("eagle3", 4)
    jobs = {i: Job(ids, params, speculation, str(i)) for i, ids in enumerate(token_ids[:NUM_PROMPTS])}
    assert len(jobs) == NUM_PROMPTS
    answers = {}
    answer_all(engine, jobs, 8, lambda *_: None, answers)
    # The first token of each answer comes with its prompt, without a draft.
    num_tokens = sum(len(answer.token_ids) - 1 for answer in answers.values())
    assert num_tokens / sum(len(answer.steps) for answer in answers.values()) >= RECORDED - TOLERANCE
