"""Drafts that are recorded at every token predict the steps that verifying them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specdec.config import SpeculativeConfig
from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.eval.measure import PLAIN, Choice, Measured, Plan, Variant, choices, measure
from specdec.eval.oracle import fewest_steps, gains, longest, num_steps
from specdec.eval.prompts import EvalPrompt
from specdec.eval.shadow import passes
from specdec.proposers.base import ProposalInput
from specdec.proposers.registry import build_proposer
from specdec.types import Draft, ProposerWarning
from tests.eval.helpers import PROMPTS, copying_script, toy_engine, toy_model, toy_plan
from tests.heads import head_engine, tiny_eagle, tiny_medusa, tiny_target
from tests.toys import BYTE_VOCABULARY, RandomProposer, Script, ScriptedModel

FORGETFUL = {"suffix_decoding_max_cached_requests": 0}
TREE = {"tree": "ranked", "tree_nodes": 9, "tree_width": 3}


def slipping(script: Script) -> Script:
    """Like the script, but with slips of its own."""

    def slipped(prefix: tuple[int, ...]) -> np.ndarray:
        logits = np.array(script(prefix))
        return np.roll(logits, 1) if len(prefix) % 7 == 3 else logits

    return slipped


def looked_up(method: str, settings: Mapping[str, Any]) -> Engine:
    return toy_engine(proposer=method, settings=settings)


def drafted(settings: Mapping[str, Any]) -> Engine:
    draft = ScriptedModel(slipping(copying_script()), BYTE_VOCABULARY)
    return toy_engine(proposer="draft", settings={"model": "given", **settings}, draft_model=draft)


def headed(method: str, settings: Mapping[str, Any]) -> Engine:
    target = tiny_target()
    head = tiny_medusa() if method == "medusa" else tiny_eagle(target, method)
    return head_engine(target, method, head, settings=settings)


ENGINES: dict[str, tuple[str, Callable[[], Engine]]] = {
    "ngram": ("ngram", lambda: looked_up("ngram", {})),
    "suffix": ("suffix", lambda: looked_up("suffix", FORGETFUL)),
    "draft model": ("draft", lambda: drafted({})),
    "draft model, tree": ("draft", lambda: drafted(TREE)),
    "eagle": ("eagle", lambda: headed("eagle", {})),
    "eagle, tree": ("eagle", lambda: headed("eagle", TREE)),
    "eagle3": ("eagle3", lambda: headed("eagle3", {})),
    "medusa, tree": ("medusa", lambda: headed("medusa", TREE)),
}


def plan_of(engine: Engine, variants: list[Variant], concurrency: int = 2, max_tokens: int = 24) -> Plan:
    """Prompts of numbers, which need no tokenizer; the first proposer alone is a choice, too."""
    ids = [tuple((start * step + i * step) % 11 for i in range(9)) for start in (1, 4) for step in (1, 3)]
    if engine.tokenizer is not None:
        asked = PROMPTS[::2]
        plan = toy_plan(engine, prompts=asked, timing_prompts=0, concurrency=concurrency, max_tokens=max_tokens)
        return replace(plan, variants=tuple(variants), choices=choices(engine, variants))
    prompts = tuple(EvalPrompt("numbers", "numbers", str(i), "-") for i in range(len(ids)))
    return Plan(
        prompts,
        tuple(ids),
        tuple(variants),
        (0.0,),
        max_tokens,
        seed=0,
        timing_prompts=0,
        batch_sizes=(),
        concurrency=concurrency,
        choices=choices(engine, variants),
    )


def alone(found: Measured, variant: Variant) -> dict[int, int]:
    """By prompt the steps that the recorded drafts predict."""
    return {index: num_steps(gains(each.track())) for index, each in found.recordings[variant].items()}


def verified(found: Measured, variant: Variant) -> dict[int, int]:
    return {index: len(answer.steps) for index, answer in found.answers[0.0, variant].items()}


@pytest.mark.parametrize("name", ENGINES)
def test_recorded_drafts_predict_the_measured_steps_of_each_answer(name: str) -> None:
    method, make = ENGINES[name]
    engine, variant = make(), Variant(method, 4)
    loaded = engine.runner.proposers[method]
    found = measure(engine, plan_of(engine, [variant]))
    assert alone(found, variant) == verified(found, variant)
    places = sum(len(each.track()) for each in found.recordings[variant].values())
    assert sum(alone(found, variant).values()) < places, "nothing was right, so nothing was tested"
    for index, recording in found.recordings[variant].items():
        assert recording.answer.token_ids == found.answers[0.0, PLAIN][index].token_ids
        assert recording.answer.stats.num_drafts == 0
    assert engine.runner.proposers[method] is loaded
    engine.scheduler.check_integrity()


def test_what_was_learned_is_the_same_where_answers_come_one_after_the_other() -> None:
    engine, variant = toy_engine(proposer="suffix"), Variant("suffix", 4)
    found = measure(engine, plan_of(engine, [variant], concurrency=1))
    assert alone(found, variant) == verified(found, variant)
    forgetful = measure(looked_up("suffix", FORGETFUL), plan_of(engine, [variant], concurrency=1))
    assert sum(alone(forgetful, variant).values()) > sum(alone(found, variant).values())


def test_who_goes_by_token_ids_alone_shares_a_pass() -> None:
    entry = SpeculativeConfig("suffix", 4, FORGETFUL)
    draft = ScriptedModel(slipping(copying_script()), BYTE_VOCABULARY)
    noise = RandomProposer(BYTE_VOCABULARY)
    engine = toy_engine(
        proposer="draft",
        settings={"model": "given"},
        draft_model=draft,
        proposers={"ngram": build_proposer(SpeculativeConfig("ngram", 4)), "suffix": build_proposer(entry), "x": noise},
    )
    variants = [Variant(name, k) for name in ("draft", "ngram", "suffix", "x") for k in (2, 4)]
    plan = plan_of(engine, variants)
    assert passes(engine.runner, [(each.proposer, each.num_speculative_tokens) for each in plan.recorded]) == [
        (("ngram", 2), ("suffix", 2), ("ngram", 4), ("suffix", 4)),
        (("draft", 2),),
        (("x", 2),),
        (("draft", 4),),
        (("x", 4),),
    ]
    found = measure(engine, plan)
    for variant in variants[:6]:
        assert alone(found, variant) == verified(found, variant), variant
    for length in (2, 4):
        own = [variant for variant in variants if variant.num_speculative_tokens == length]
        for index in found.recordings[own[0]]:
            oracle = fewest_steps(longest([found.recordings[each][index].track() for each in own]))
            assert all(oracle <= alone(found, each)[index] for each in own)


def test_the_members_of_auto_draft_as_long_as_auto_lets_them() -> None:
    engine = toy_engine(
        proposer="auto",
        k=8,
        settings={"proposers": ["ngram", "suffix"]},
        proposers={"ngram": build_proposer(SpeculativeConfig("ngram", 4))},
    )
    engine.config = replace(
        engine.config,
        speculative=tuple(
            replace(each, num_speculative_tokens=4) if each.method == "ngram" else each
            for each in engine.config.speculative
        ),
    )
    variants = [Variant("auto", 8), Variant("ngram", 4)]
    own = choices(engine, variants)
    assert own == (
        Choice("auto", 8, (Variant("ngram", 8), Variant("suffix", 8))),
        Choice(None, 4, (Variant("ngram", 4),)),
    )
    found = measure(engine, replace(toy_plan(engine, timing_prompts=0), variants=tuple(variants), choices=own))
    depths = {
        each: max(draft.depth for own in found.recordings[each].values() for draft in own.drafts.values())
        for each in found.recordings
    }
    assert depths == {Variant("ngram", 8): 8, Variant("suffix", 8): 8, Variant("ngram", 4): 4}
    for index, answer in found.answers[0.0, variants[0]].items():
        tracks = [found.recordings[member][index].track() for member in own[0].members]
        assert fewest_steps(longest(tracks)) <= len(answer.steps)


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_a_member_with_kv_or_states_of_its_own_has_its_pass(method: str) -> None:
    target = tiny_target()
    head = tiny_medusa() if method == "medusa" else tiny_eagle(target, method)
    engine = head_engine(target, method, head, auto=True)
    variants = [Variant("auto", 4), Variant(method, 4)]
    plan = plan_of(engine, variants)
    assert plan.choices[0] == Choice("auto", 4, (variants[1],))
    assert plan.recorded == (variants[1],)
    found = measure(engine, plan)
    assert alone(found, variants[1]) == verified(found, variants[1])
    for index, answer in found.answers[0.0, variants[0]].items():
        assert fewest_steps(gains(found.recordings[variants[1]][index].track())) <= len(answer.steps)


class Failing(RandomProposer):
    """Breaks its contract wherever it is asked."""

    def propose(self, sequences: list[Sequence], inp: ProposalInput) -> list[Draft]:  # type: ignore[override]
        return [Draft((self.vocab_size,)) for _ in sequences]


def test_a_proposer_that_fails_is_told_of_and_recorded_with_no_draft() -> None:
    engine = toy_engine(toy_model(), proposers={"failing": Failing(BYTE_VOCABULARY)})
    variant = Variant("failing", 4)
    with pytest.warns(ProposerWarning, match="outside the vocabulary"):
        found = measure(engine, plan_of(engine, [variant]))
    assert all(not each.drafts for each in found.recordings[variant].values())
    assert alone(found, variant) == verified(found, variant)


@pytest.mark.parametrize("after", [1, 30, 60])
def test_an_interruption_leaves_what_was_recorded_and_the_proposer_in_its_place(after: int) -> None:
    engine, variant = toy_engine(), Variant("ngram", 4)
    loaded, asked = engine.runner.proposers["ngram"], 0
    plan = plan_of(engine, [variant], max_tokens=40)

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return False

    measure(engine, replace(plan, choices=()), stopped=counted)
    before = asked

    def stopped() -> bool:
        return counted() or asked > before + before + after

    found = measure(engine, plan, stopped=stopped)
    whole = measure(engine, plan)
    assert found.interrupted
    assert len(found.recordings[variant]) < len(whole.recordings[variant])
    for index, recording in found.recordings[variant].items():
        assert recording.track() == whole.recordings[variant][index].track()
    assert (after > 50) == bool(found.recordings[variant])
    assert engine.runner.proposers["ngram"] is loaded
    assert not engine.has_unfinished_requests()
