"""Every proposer passes with every verifier, and five faults that engines have had are caught where they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.scheduler import ScheduledRow, Scheduler
from specdec.core.sequence import Sequence as Sample
from specdec.engine import Engine
from specdec.eval import kv_check
from specdec.eval.checks import EMPTY, FAILED, PASSED
from specdec.eval.driving import Watch
from specdec.eval.losslessness import contexts, verify_losslessness
from specdec.eval.verify_settings import Settings, check_settings
from specdec.kernels import Kernels
from specdec.proposers import growing
from specdec.proposers.base import ProposalInput
from specdec.proposers.registry import PROPOSERS
from specdec.sampling import block, coupled, rejection, trees
from specdec.sampling.emission import law
from specdec.sampling.process import Span
from specdec.step.kv_cache import KVCache
from specdec.types import Draft, ProposerWarning, Verdict
from tests.eval.tiny import PROMPTS, Tiny, config, layered, named, scripted, tiny_for, verify
from tests.sampling.enumeration import EmissionLogits
from tests.sampling.wrong import recover_from_next_row, subtract_drafted_token_only
from tests.toys import RandomProposer, ScriptedModel

METHODS = sorted(set(PROPOSERS) - {"none"})
CASES = [("auto", 0.0), ("coupled", 0.8), ("rejection", 0.8), ("block", 0.8)]


@pytest.mark.parametrize(("verifier", "temperature"), CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_proposer_passes_with_every_verifier(method: str, verifier: str, temperature: float) -> None:
    report = verify(tiny_for(method), config(method, verifier=verifier), temperature, max_tokens=16, draws=96)
    assert report.is_verified, report
    assert report.verdict.startswith("verified: ")
    promised = {"auto": "greedy equality", "coupled": "coupled equality"}.get(verifier, "law")
    assert named(report, promised).status == PASSED
    kv = named(report, "target KV")
    assert kv.status == PASSED
    assert min(kv.figures[f"num_{what}"] for what in ("rejections", "preemptions", "prefix_hit_tokens")) > 0
    assert named(report, "draft positions").status == PASSED
    assert report.not_run


def choosing(*members: SpeculativeConfig, k: int = 6, **options: object) -> EngineConfig:
    """Of `auto`, which has these beside its own."""
    return replace(config("auto", k=k, **options), speculative=(SpeculativeConfig("auto", k), *members))


OWN_LAYERS = SpeculativeConfig("draft", 2, {"num_draft_layers": 1})
"""A draft model, whose KV lags behind where others draft."""


@pytest.mark.parametrize(("verifier", "temperature"), CASES)
def test_whatever_auto_may_choose_is_verified(verifier: str, temperature: float) -> None:
    """Every member has its turn, also where drafts would not pay on this machine."""
    report = verify(scripted(), choosing(OWN_LAYERS, verifier=verifier), temperature, max_tokens=16, draws=96)
    assert report.is_verified, report
    assert {named(report, name).status for name in ("target KV", "proposer KV", "draft positions")} == {PASSED}
    choices = named(report, "choices")
    assert choices.status == PASSED
    assert set(choices.figures["num_drafts"]) == {"ngram", "suffix", "draft"}
    assert min(choices.figures["num_drafts"].values()) > 0
    assert choices.figures["lengths"]["suffix"] == list(range(7))
    assert choices.figures["lengths"]["draft"] == list(range(3))
    assert "by chance (seed 0), not by what pays: ngram " in choices.summary


def test_choices_by_chance_are_those_of_the_seed() -> None:
    reports = [verify(scripted(), choosing(OWN_LAYERS), max_tokens=16, seed=seed) for seed in (3, 3, 4)]
    figures = [named(report, "choices").figures for report in reports]
    assert figures[0] == figures[1]
    assert figures[0] != figures[2]
    assert reports[0].checks == reports[1].checks


def test_who_never_drafted_is_told() -> None:
    class Silent(RandomProposer):
        def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
            return [Draft()] * len(inp.lengths)

    models = Tiny(scripted().target, own={"silent": lambda: Silent(13)})
    report = verify(models, choosing(SpeculativeConfig("silent", 4)), max_tokens=16)
    assert report.is_verified
    assert report.verdict.endswith("; never happened: a draft of silent")
    assert "choices" not in {check.name for check in verify(scripted(), config("suffix"), max_tokens=3).checks}


@pytest.mark.parametrize(("verifier", "temperature"), CASES[:3])
@pytest.mark.parametrize(("method", "tree"), [("eagle", "breadth"), ("eagle3", "confidence"), ("medusa", "ranked")])
def test_heads_that_draft_trees_pass(method: str, tree: str, verifier: str, temperature: float) -> None:
    own = config(method, verifier=verifier)
    shaped = replace(own.speculative[0], settings={**own.speculative[0].settings, "tree": tree, "tree_nodes": 6})
    report = verify(tiny_for(method), replace(own, speculative=(shaped,)), temperature, max_tokens=16, draws=96)
    assert report.is_verified, report


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_models_own_layers_pass(temperature: float) -> None:
    report = verify(layered(2), config("draft"), temperature, draws=96)
    assert report.is_verified, report
    assert 0 < named(report, "proposer KV").figures["largest_relative_difference"] < 1e-9


def caught(report: object, name: str, *words: str) -> str:
    """The fault of a check, which must be failed, and name the cause."""
    check = named(report, name)  # type: ignore[arg-type]
    assert check.status == FAILED, report
    assert report.verdict.startswith("NOT lossless: ")  # type: ignore[attr-defined]
    assert all(word in check.faults[0] for word in words), check.faults[0]
    return check.faults[0]


def others(report: object, *names: str) -> None:
    """Only these checks failed."""
    assert {check.name for check in report.failed} <= set(names), report  # type: ignore[attr-defined]


def test_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "emission_logits", subtract_drafted_token_only)
    report = verify(scripted(), config("draft", verifier="rejection"), 0.8)
    caught(
        report, "recovered", "max(target - draft, 0)", "less the rejected token alone", "kept the draft's other mass"
    )
    others(report, "recovered", "law")


def test_wrong_residual_of_block_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_subtracted(
        target: torch.Tensor, draft: torch.Tensor, carried: Sequence[float], count: int
    ) -> torch.Tensor:
        return target[count]

    monkeypatch.setattr(block, "prefix_excess", nothing_subtracted)
    report = verify(scripted(), config("draft", verifier="block"), 0.8)
    caught(report, "recovered", "the target's own law, as if nothing were subtracted")


@pytest.mark.parametrize("method", ["draft", "suffix"])
def test_wrong_correction_row(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drafts with a law and without."""
    monkeypatch.setattr(rejection, "emission_logits", recover_from_next_row if method == "draft" else _next_row)
    report = verify(scripted(), config(method, verifier="rejection"), 0.8)
    caught(report, "recovered", "another row of logits")
    others(report, "recovered", "law")
    assert named(report, "bonus").status == PASSED


def _next_row(logits: torch.Tensor, spans: Sequence[object], accepted: Sequence[int]) -> torch.Tensor:
    """Recovered tokens of drafts without a law, read one row too late."""
    weights = []
    for span, count in zip(spans, accepted, strict=True):
        tokens = span.row.draft.token_ids  # type: ignore[attr-defined]
        rejected = count < len(tokens)
        row = logits[span.start + count + rejected].double().clone()  # type: ignore[attr-defined]
        if rejected:
            row[tokens[count]] = float("-inf")
        weights.append(row)
    return torch.stack(weights)


@pytest.mark.parametrize(("first", "k"), [(1, 3), (2, 4)])
def test_acceptance_of_later_positions(first: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right at the first positions, and then whatever is drafted is kept."""
    right = rejection.acceptance_probs

    def keeps_later(logits: torch.Tensor, spans: Sequence[Span], kernels: Kernels) -> list[list[float]]:
        return [[p if i < first else 1.0 for i, p in enumerate(own)] for own in right(logits, spans, kernels)]

    monkeypatch.setattr(rejection, "acceptance_probs", keeps_later)
    own = config("draft", verifier="rejection")
    longer = replace(own.speculative[0], num_speculative_tokens=k)
    report = verify(scripted(), replace(own, speculative=(longer,)), 0.8)
    caught(report, "acceptance", "expected by the target's law and the draft's")


@pytest.mark.parametrize(
    ("has_law", "wrong"), [(True, subtract_drafted_token_only), (True, recover_from_next_row), (False, _next_row)]
)
def test_a_wrong_verifier_shows_with_auto(
    has_law: bool, wrong: EmissionLogits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of drafts with a law, which one of three members makes, or of those without."""
    right = rejection.emission_logits

    def sometimes_wrong(logits: torch.Tensor, spans: Sequence[Span], accepted: Sequence[int]) -> torch.Tensor:
        weights = right(logits, spans, accepted)
        mine = [i for i, span in enumerate(spans) if (span.row.draft.draft_probs is not None) == has_law]
        if mine:
            weights[mine] = wrong(logits, [spans[i] for i in mine], [accepted[i] for i in mine])
        return weights

    monkeypatch.setattr(rejection, "emission_logits", sometimes_wrong)
    report = verify(scripted(), choosing(OWN_LAYERS, verifier="rejection"), 0.8, draws=1024)
    caught(report, "recovered", "residual" if has_law else "another row of logits")
    others(report, "recovered", "law")


def test_an_accepted_token_that_is_not_the_targets_shows_with_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coupled, "_child", lambda draft, node, token: next(iter(draft.children(node)), None))
    caught(verify(scripted(), choosing(OWN_LAYERS)), "greedy equality", "so no tie")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_member_that_does_not_see_what_others_drafted_shows_with_auto(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a draft of somebody else the draft model's KV counts as complete, asked to follow or not."""
    commit = Scheduler._commit_row

    def counts_all(self: Scheduler, row: ScheduledRow, verdict: Verdict) -> None:
        commit(self, row, verdict)
        if row.draft.proposer in ("ngram", "suffix"):
            row.sequence.num_draft_computed_tokens = row.sequence.num_tokens - 1

    monkeypatch.setattr(Scheduler, "_commit_row", counts_all)
    own = choosing(SpeculativeConfig("draft", 2, {"num_draft_layers": 2}))
    report = verify(layered(2), own, temperature, draws=96)
    caught(report, "proposer KV", "the proposer draft's KV of position", "counts as computed and")
    others(report, "proposer KV")


def test_a_member_that_writes_into_the_targets_kv_shows_with_auto() -> None:
    """Of what is committed, where no draft is verified again."""
    target = scripted().target

    class Writes(RandomProposer):
        kv: KVCache | None = None

        def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
            if self.kv is not None and any(inp.lengths):
                self.kv.keys[0][sequences[0].block_table[0], 0] += 1
            return super().propose(sequences, inp)

    models = Tiny(target, own={"writes": lambda: Writes(13)})

    def build(own: EngineConfig) -> Engine:
        engine = models.build(own)
        writes = engine.runner.proposers.get("writes")
        if isinstance(writes, Writes):
            writes.kv = engine.runner.kv
        return engine

    own = choosing(SpeculativeConfig("writes", 4))
    report = verify_losslessness(build, build(own), PROMPTS, Settings(max_tokens=16), Watch())
    caught(report, "target KV", "the target's KV of position 0", "counts as computed and differs by")


def test_acceptance_of_drawn_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hangs first under a node is kept."""

    def keeps_all(target: torch.Tensor, token_ids: Sequence[int], probs: torch.Tensor) -> Iterator[trees.Trial]:
        return ((1.0, target) for _ in token_ids)

    monkeypatch.setattr(trees, "drawn_children", keeps_all)
    own = config("draft", verifier="rejection")
    shape = {"tree": "breadth", "tree_nodes": 6, "tree_width": 2}
    shaped = replace(own.speculative[0], settings={**own.speculative[0].settings, **shape})
    report = verify(scripted(), replace(own, speculative=(shaped,)), 0.8)
    caught(report, "acceptance", "expected by the target's law and the draft's")


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_temperature_left_out_of_the_reported_law(verifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "law", lambda logits: law(logits * 0.5))
    report = verify(scripted(), config("draft", verifier=verifier), 0.5)
    caught(report, "draft law", "not drawn from the law that the proposer reports", "temperature")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("claims_all", [False, True])
def test_bonus_token_missing_from_the_drafts_kv(
    temperature: float, claims_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a whole draft the draft's KV counts as one token longer than it is, or as complete."""
    commit = Scheduler._commit_row

    def counts_too_many(self: Scheduler, row: ScheduledRow, verdict: Verdict) -> None:
        commit(self, row, verdict)
        sequence = row.sequence
        if row.num_draft_tokens and verdict.num_accepted == row.num_draft_tokens:
            claimed = sequence.num_tokens if claims_all else sequence.num_draft_computed_tokens + 1
            sequence.num_draft_computed_tokens = claimed

    monkeypatch.setattr(Scheduler, "_commit_row", counts_too_many)
    report = verify(layered(2), config("draft"), temperature, draws=96)
    fault = caught(report, "proposer KV", "the proposer draft's KV of position", "counts as computed and")
    assert "(draft token" in fault or "(bonus token" in fault
    others(report, "proposer KV", "requests")


def test_stale_counter_after_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft's KV counts as computed though its blocks are gone."""
    preempt = Scheduler._preempt

    def keeps_the_counter(self: Scheduler, sequence: Sample) -> None:
        count = sequence.num_draft_computed_tokens
        preempt(self, sequence)
        sequence.num_draft_computed_tokens = count

    monkeypatch.setattr(Scheduler, "_preempt", keeps_the_counter)
    report = verify(layered(2), config("draft"))
    caught(report, "proposer KV", "preemption", "counts as computed")
    others(report, "proposer KV", "requests")


def test_stale_draft_after_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def keeps_the_draft(self: Scheduler, sequence: Sample) -> None:
        draft = sequence.draft
        preempt(self, sequence)
        sequence.draft = draft

    monkeypatch.setattr(Scheduler, "_preempt", keeps_the_draft)
    report = verify(scripted(), config("draft"))
    caught(report, "draft positions", "stale draft", "preempted")
    others(report, "draft positions")


def test_an_accepted_token_that_is_not_the_targets_is_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk goes on along the draft whatever the target chose."""
    monkeypatch.setattr(coupled, "_child", lambda draft, node, token: next(iter(draft.children(node)), None))
    report = verify(scripted(), config("suffix"))
    caught(report, "greedy equality", "top-2 margin", "measured drift 0: more than 4 times the drift, so no tie")
    assert named(report, "target KV").faults


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("error", [AssertionError("odd"), ValueError("odd"), KeyError("odd")])
def test_a_check_that_breaks_down_is_a_verdict(
    temperature: float, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise error

    monkeypatch.setattr(kv_check, "recompute", breaks)
    report = verify(scripted(), config("suffix"), temperature, draws=64)
    assert not report.is_verified
    broken = named(report, "equality" if temperature == 0 else "cached state")
    assert (broken.status, broken.broke_down) == (FAILED, True)
    assert report.verdict.startswith(f"NOT verified: {broken.name}: broke down: {type(error).__name__}: ")
    assert "odd" in report.verdict
    assert "(test_losslessness.py, line " in report.verdict


def test_what_a_part_found_before_it_broke_down_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(coupled, "_child", lambda draft, node, token: next(iter(draft.children(node)), None))
    monkeypatch.setattr(kv_check, "recompute", breaks)
    report = verify(scripted(), config("suffix"))
    assert {check.name for check in report.failed} >= {"greedy equality", "equality"}
    assert report.verdict.startswith("NOT lossless: greedy equality: ")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_proposer_that_changes_the_committed_tokens_is_told(temperature: float) -> None:
    class Grows(RandomProposer):
        def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
            sequences[0].token_ids.append(7)
            return super().propose(sequences, inp)

    models = Tiny(scripted().target, own={"grows": lambda: Grows(13)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProposerWarning)
        report = verify(models, config("grows"), temperature, draws=64)
    assert not report.is_verified
    assert not any(check.broke_down for check in report.checks)
    if temperature:
        assert "the committed tokens of a sequence are read-only" in named(report, "law").faults[0]


def test_nothing_drafted_verifies_nothing() -> None:
    report = verify(scripted(), config("ngram"), prompts=[(1, 2, 3)], max_tokens=3)
    assert not report.is_verified
    assert named(report, "greedy equality").status == EMPTY
    assert report.verdict.startswith("NOT verified: greedy equality: no draft was verified in")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_never_happened_is_in_the_last_line(temperature: float) -> None:
    """Every drafted token is wrong, as far as the target has a say."""

    class Wrong(RandomProposer):
        def propose(self, sequences: Sequence[Sample], inp: ProposalInput) -> list[Draft]:
            return [Draft((12,) * length) for length in inp.lengths]

    right = scripted().target
    assert isinstance(right, ScriptedModel)
    bias = torch.tensor([0.0] * 12 + [-40.0])
    target = ScriptedModel(lambda prefix: (right.logits(prefix) + bias).numpy(), 13)
    report = verify(Tiny(target, own={"wrong": lambda: Wrong(13)}), config("wrong", verifier="auto"), temperature)
    assert report.is_verified
    assert "never happened: " in report.verdict
    assert "a draft that was accepted whole" in report.verdict
    assert temperature or "an accepted drafted token (so no row after one, no bonus row" in report.verdict
    everything = verify(scripted(), config("suffix"))
    assert "never happened" not in everything.verdict


@pytest.mark.parametrize(("after", "names"), [(3, []), (60, [])])
def test_stopping_leaves_what_was_found(after: int, names: list[str]) -> None:
    calls = iter(range(10_000))
    report = verify(scripted(), config("draft"), watch=Watch(stopped=lambda: next(calls) > after))
    assert report.interrupted
    assert not report.is_verified
    assert [check.name for check in report.checks] == names
    assert report.verdict.startswith("interrupted: ")


def test_stopping_keeps_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "emission_logits", recover_from_next_row)
    lines: list[str] = []
    watch = Watch(lines.append, lambda: bool(lines) and lines[-1].startswith("KV, with a prefix"))
    report = verify(scripted(), config("draft", verifier="rejection"), 0.8, watch=watch)
    assert report.interrupted
    assert report.verdict.startswith("NOT lossless: recovered")


def test_contexts_are_each_prompt_and_one_that_repeats_it() -> None:
    assert contexts([(1, 2, 3, 4)], 100) == [(1, 2, 3, 4, 1, 2), (1, 2, 3, 4)]
    assert max(map(len, contexts([tuple(range(13)) * 40], 1000))) == 256
    assert contexts([(1, 2, 3, 4)], 3) == [(1, 2, 3)]


def test_a_short_model_and_a_lone_short_prompt() -> None:
    models = replace(scripted(), max_model_len=16)
    for method in ("suffix", "draft"):
        report = verify(models, config(method, kv_cache_tokens=64, block_size=2), prompts=[(3,)], max_tokens=14)
        assert not report.failed, report


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"verifier": "typical"}, Settings(0.5), "lossy and promises nothing"),
        ({"verifier": "greedy"}, Settings(0.5), "needs temperature 0"),
        ({"k": 0}, Settings(), "nothing is drafted"),
        ({"method": "none"}, Settings(), "without a proposer there is nothing to verify"),
        ({}, Settings(0.5, draws=39), "at least 40"),
        ({"k": 1}, Settings(0.5, draws=19), "at least 20"),
        ({}, Settings(-1.0), "temperature must be"),
        ({}, Settings(max_tokens=0), "max_tokens must be"),
    ],
)
def test_what_cannot_be_verified_is_refused(options: dict[str, object], settings: Settings, message: str) -> None:
    asked = {"method": "ngram", **options}
    with pytest.raises(ValueError, match=message) as refused:
        check_settings(config(**asked), settings)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
