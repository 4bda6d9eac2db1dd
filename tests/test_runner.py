"""The runner's border: plain values cross it, draft laws stay."""

from collections.abc import Sequence as Many
from dataclasses import replace

import torch

from specdec.core.sequence import Sequence
from specdec.proposers.base import ProposalInput
from specdec.step.record import StepRecord
from specdec.types import Draft, SamplingParams
from tests.toys import RandomProposer, ScriptedModel, SelfProposer, generate, make_engine, random_script


def test_draft_laws_never_leave_the_runner() -> None:
    model = ScriptedModel(random_script(9), 9)
    engine = make_engine(model, proposer="self", proposers={"self": SelfProposer(model)})
    engine.add_request("r", [1, 2], SamplingParams(temperature=1.0, max_tokens=50, seed=1))
    while engine.has_unfinished_requests():
        engine.step()
        for sequence in engine.scheduler.running:
            assert sequence.draft.draft_probs is None
            assert isinstance(engine.runner._draft_probs.get(sequence.key), torch.Tensor) or not sequence.draft
    assert engine.runner._draft_probs == {}


class Nameless(RandomProposer):
    """Leaves out whose drafts they are."""

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        return [replace(draft, proposer="none") for draft in super().propose(sequences, inp)]


def test_a_draft_without_a_name_has_that_of_its_proposer() -> None:
    model = ScriptedModel(random_script(4, spread=0.1), 4)
    engine = make_engine(model, proposer="own", proposers={"own": Nameless(4)})
    (output,) = generate(engine, [[1, 2]], SamplingParams(temperature=0, max_tokens=100))
    (sample,) = output.outputs
    assert sample.provenance.count("own") == sample.speculation.num_accepted_tokens > 0
    assert set(sample.provenance) == {"own", "recovered", "bonus"}


def test_finished_sequences_are_forgotten() -> None:
    model = ScriptedModel(random_script(9), 9)
    engine = make_engine(model, proposer="ngram")
    generate(engine, [[1, 2, 1, 2]], SamplingParams(temperature=1.0, n=3, max_tokens=10))
    assert engine.runner.proposers["ngram"]._indexes == {}


def test_a_record_adds_up_its_stages() -> None:
    record = StepRecord()
    with record.time("sample"):
        pass
    with record.time("sample"):
        pass
    with record.time("forward"):
        pass
    assert 0 < record.sample == record.overhead
    assert record.forward > 0
