"""Proposers that misbehave in ways that others would pay for: they cost their drafts, and no answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import NoReturn

import pytest
import torch

from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, ProposalInput
from specdec.types import Draft, ProposerWarning, SamplingParams
from tests.toys import ScriptedModel, generate, make_engine, random_script

V = 20
PROMPTS = [[1, 2, 3], [4, 5], [6]]
Answer = Callable[[Many[Sequence], ProposalInput], Many[Draft | None]]


class Own:
    """Proposes what a function answers."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> Many[Draft | None]:
        return self._answer(sequences, inp)

    def forget(self, sequence: Sequence) -> None:
        pass


def each(draft: Callable[[Sequence, int], Draft]) -> Answer:
    return lambda sequences, inp: [draft(s, n) for s, n in zip(sequences, inp.lengths, strict=True)]


def grows_on_the_list(sequence: Sequence, length: int) -> Draft:
    start = sequence.num_tokens
    for _ in range(length):
        sequence.token_ids.append(sequence.token_ids[-1])
    return Draft(tuple(sequence.token_ids[start:]))


def goes_round(sequence: Sequence, length: int) -> Draft:
    list.append(sequence.token_ids, 7)
    return Draft((7,) * length)


def overwrites(sequence: Sequence, length: int) -> Draft:
    sequence.token_ids[0] = 7
    return Draft((7,) * length)


def replaces(sequence: Sequence, length: int) -> Draft:
    sequence.token_ids = [*sequence.token_ids, 7]
    return Draft((7,) * length)


def asks_for_more(sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
    inp.lengths[:] = [50] * len(sequences)  # type: ignore[index]
    return [Draft((1,) * 50)] * len(sequences)


def empties(sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
    count = len(sequences)
    sequences.clear()  # type: ignore[attr-defined]
    return [Draft((1,))] * (count + 1)


class _Unspeakable(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("cannot say")

    __repr__ = __str__


def raises_the_unspeakable(sequences: Many[Sequence], inp: ProposalInput) -> NoReturn:
    raise _Unspeakable


def one_of_a_kind(sequence: Sequence, length: int) -> Draft:
    return Draft((1,), {-1}) if length else Draft()  # type: ignore[arg-type]


def law(probs: torch.Tensor) -> Answer:
    return each(lambda sequence, length: Draft((1,) * length, None, probs[:1].expand(length, V)))


def sparse(sequence: Sequence, length: int) -> Draft:
    return Draft((1,) * length, None, torch.full((length, V), 1 / V).to_sparse())


MISBEHAVING: dict[str, Answer] = {
    "grows on the list": each(grows_on_the_list),
    "goes round": each(goes_round),
    "overwrites": each(overwrites),
    "replaces": each(replaces),
    "asks for more": asks_for_more,
    "empties": empties,
    "raises the unspeakable": raises_the_unspeakable,
    "a set of parents": each(one_of_a_kind),
    "a sparse law": each(sparse),
    "a law of NaN": law(torch.full((1, V), float("nan"))),
    "a law of integers": law(torch.ones((1, V), dtype=torch.int64)),
    "a negative law": law(-torch.ones((1, V))),
}


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block", "typical"])
@pytest.mark.parametrize("how", MISBEHAVING)
def test_it_costs_its_drafts_is_told_and_nothing_else(how: str, verifier: str) -> None:
    model = ScriptedModel(random_script(V), V)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    expected = generate(make_engine(model), PROMPTS, params)
    engine = make_engine(model, proposer="own", proposers={"own": Own(MISBEHAVING[how])}, verifier=verifier)
    with pytest.warns(ProposerWarning, match="proposer 'own' failed and gives no draft this step: ") as told:
        outputs = generate(engine, PROMPTS, params)
    for output, plain in zip(outputs, expected, strict=True):
        (sample,), (own,) = output.outputs, plain.outputs
        assert (sample.error, sample.finish_reason) == (None, own.finish_reason)
        assert sample.token_ids == own.token_ids
        assert sample.speculation.num_drafts == 0
    assert len({warning.message.kind for warning in told}) == 1  # type: ignore[union-attr]
    assert all("torch" not in warning.filename for warning in told), "it names the engine's step"


def test_forgetting_may_fail_unspeakably_too() -> None:
    class Clinging(Own):
        def forget(self, sequence: Sequence) -> None:
            raise _Unspeakable

    model = ScriptedModel(random_script(V), V)
    own = Clinging(each(lambda sequence, length: Draft()))
    engine = make_engine(model, proposer="own", proposers={"own": own})
    with pytest.warns(ProposerWarning, match="forget a sequence: _Unspeakable: its message cannot be read"):
        (output,) = generate(engine, PROMPTS[:1], SamplingParams(max_tokens=3))
    assert output.finished


def test_a_catch_that_hides_the_refusal_changes_nothing() -> None:
    def stubborn(sequence: Sequence, length: int) -> Draft:
        try:
            sequence.token_ids.append(7)
        except TypeError:
            return Draft((7,) * length)
        raise AssertionError("it was let through")

    model, params = ScriptedModel(random_script(V), V), SamplingParams(temperature=0, max_tokens=12)
    engine = make_engine(model, proposer="own", proposers={"own": Own(each(stubborn))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = generate(engine, PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [
        o.outputs[0].token_ids for o in generate(make_engine(model), PROMPTS, params)
    ]
