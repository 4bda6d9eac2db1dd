"""Drafts that are verified where they were not proposed are seen, and what is kept of a draft is what became of it."""

from __future__ import annotations

from collections.abc import Sequence as Many

import pytest
import torch

from specdec.core.scheduler import ScheduledRow, Scheduler
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.eval.driving import Job, Watch, drive
from specdec.eval.witness import Witness, witnessed
from specdec.proposers.base import ProposalInput
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Computed
from specdec.types import Draft, Request, SamplingParams, Verdict
from tests.eval.tiny import PROMPTS, Tiny, config, scripted
from tests.toys import RandomProposer, ScriptedModel, SelfProposer
from tests.trees import SelfTree

GREEDY = SamplingParams(temperature=0, max_tokens=20)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=20, seed=1, n=2)


def run(engine: Engine, params: SamplingParams) -> tuple[Witness, list[list[int]]]:
    with witnessed(engine) as witness:
        jobs = [Job(prompt, params) for prompt in PROMPTS]
        outputs = drive(engine, jobs, Watch(), "x", lambda: witness.settle(engine.scheduler.waiting))
    return witness, [sample.token_ids for output in outputs for sample in output.outputs]


def target_of(models: Tiny) -> ScriptedModel:
    assert isinstance(models.target, ScriptedModel)
    return models.target


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("method", ["ngram", "suffix", "draft"])
def test_nothing_is_stale_and_counts_are_the_engines(method: str, params: SamplingParams) -> None:
    engine = scripted().build(config(method, kv_cache_tokens=64))
    with witnessed(engine) as witness:
        jobs = [Job(prompt, params) for prompt in PROMPTS]
        outputs = drive(engine, jobs, Watch(), "x", lambda: witness.settle(engine.scheduler.waiting))
    assert engine.scheduler.num_preemptions > 0
    assert not witness.faults
    stats = [sample.speculation for output in outputs for sample in output.outputs]
    assert len(witness.verified) == sum(each.num_drafts for each in stats)
    assert sum(v.num_accepted for v in witness.verified) == sum(each.num_accepted_tokens for each in stats)
    by_key = {(o.request_id, s.index): s for o in outputs for s in o.outputs}
    for seen in witness.verified:
        sample = by_key[seen.key]
        assert tuple(sample.token_ids[seen.index : seen.index + len(seen.token_ids)]) == seen.token_ids
        assert seen.is_cut + seen.is_bonus + seen.is_recovered == 1
        kinds = {"bonus": seen.is_bonus, "recovered": seen.is_recovered}
        assert kinds.get(sample.provenance[seen.index + len(seen.token_ids) - 1], seen.is_cut)


def test_the_engine_is_as_before_afterwards() -> None:
    engine = scripted().build(config("suffix"))
    model, proposers = engine.runner.model, dict(engine.runner.proposers)
    _, tokens = run(engine, GREEDY)
    assert engine.runner.model is model
    assert engine.runner.proposers == proposers
    assert tokens == run(engine, GREEDY)[1]


@pytest.mark.parametrize("width", [1, 2])
def test_laws_are_those_of_the_draft(width: int) -> None:
    target = target_of(scripted())
    own = {"own": lambda: SelfTree(target, width) if width > 1 else SelfProposer(target)}
    engine = Tiny(target, own=own).build(config("own"))
    witness, _ = run(engine, SAMPLED)
    assert len(witness.verified) > 10
    for seen in witness.verified:
        assert seen.trials
        assert all(len(trial.tokens) == 1 for trial in seen.trials), "the first of those with a law"
        assert all(0 <= place <= 1 for place in seen.draft_places)
        assert all(trial.draft_prob is not None and 0 < trial.draft_prob <= 1 for trial in seen.trials)
        kept = sum(trial.is_kept for trial in seen.trials)
        assert kept <= seen.num_accepted <= len(seen.trials)
        assert width > 1 or kept == seen.num_accepted
        assert seen.is_recovered == (seen.draft_prob is not None)


def test_a_draft_that_survives_its_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is verified again, one position on, whenever no new one takes its place."""
    commit = Scheduler._commit_row

    def keeps(self: Scheduler, row: ScheduledRow, verdict: Verdict) -> None:
        draft = row.sequence.draft
        commit(self, row, verdict)
        row.sequence.draft = draft

    class Now(RandomProposer):
        """Answers every other time."""

        def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:  # type: ignore[override]
            listed = zip(sequences, inp.lengths, strict=True)
            return [Draft((1, 2)[:n], proposer="now") if s.num_tokens % 2 else None for s, n in listed]

    monkeypatch.setattr(Scheduler, "_commit_row", keeps)
    engine = Tiny(scripted().target, own={"now": lambda: Now(13)}).build(config("now"))
    witness, _ = run(engine, GREEDY)
    assert any(
        fault.startswith("stale draft: proposed for position 9, verified at position") for fault in witness.faults
    )


def test_a_draft_that_survives_a_preemption_is_seen_before_it_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def keeps(self: Scheduler, sequence: Sequence) -> None:
        draft = sequence.draft
        preempt(self, sequence)
        sequence.draft = draft

    monkeypatch.setattr(Scheduler, "_preempt", keeps)
    witness, _ = run(scripted().build(config("suffix", kv_cache_tokens=40)), GREEDY)
    assert any(fault.startswith("stale draft: a sequence preempted at position") for fault in witness.faults)


def test_other_tokens_and_another_law_are_seen() -> None:
    sequence = Sequence(Request("r", (1, 2, 3), GREEDY, seed=0, arrival=0), 0, [1, 2, 3])
    law = torch.full((2, 13), 1 / 13, dtype=torch.float64)
    for verified, word in (
        (Draft((4, 6), None, law), "the tokens verified at position 3"),
        (Draft((4, 5), (-1, -1), law), "the tokens verified at position 3"),
        (Draft((4, 5), None, law * 0.5), "the law verified at position 3"),
        (Draft((4, 5)), "the law verified at position 3"),
        (Draft((4,), None, law[:1]), ""),
        (Draft((4, 5), None, law.clone()), ""),
    ):
        witness = Witness()
        witness.propose([sequence], [Draft((4, 5), None, law)])
        fault = witness.stale(ScheduledRow(sequence, 2, 1 + len(verified), verified))
        assert (fault is None) if not word else word in str(fault)
    witness = Witness()
    witness.propose([sequence], [Draft((4, 5))])
    sequence.num_preemptions += 1
    assert "proposed before a preemption and verified after it, at position 3" in str(
        witness.stale(ScheduledRow(sequence, 2, 3, Draft((4, 5))))
    )
    sequence.token_ids.append(4)
    assert "proposed for position 3, verified at position 4" in str(
        witness.stale(ScheduledRow(sequence, 3, 2, Draft((5,))))
    )
    assert "nobody proposed" in str(Witness().stale(ScheduledRow(sequence, 2, 2, Draft((1,)))))


class AtOnce(ScriptedModel):
    """Has a `compute` of its own, as the real decoder has."""

    num_at_once = 0

    def compute(self, batch: Batch, kv: KVCache, aux_layers: Many[int] = ()) -> Computed:
        self.num_at_once += 1
        hidden = self.forward(batch, kv)
        return Computed(hidden, {}, self.compute_logits(hidden))


def test_what_is_seen_is_computed_as_what_serves() -> None:
    """A target that computes logits in one pass with its states does so under a witness too."""
    models = scripted()
    target = target_of(models)
    target.__class__ = AtOnce
    assert isinstance(target, AtOnce)
    seen = run(models.build(config("ngram")), GREEDY)[1]
    witnessed_steps, target.num_at_once = target.num_at_once, 0
    engine = models.build(config("ngram"))
    outputs = drive(engine, [Job(prompt, GREEDY) for prompt in PROMPTS], Watch(), "x")
    assert witnessed_steps == target.num_at_once > 0
    assert seen == [sample.token_ids for output in outputs for sample in output.outputs]
