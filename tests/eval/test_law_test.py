"""The law test's error level, its cells, and that wrong verifiers fail it."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest
import torch

from specdec.config import KV_CACHE_DTYPES, EngineConfig
from specdec.core.scheduler import Scheduler
from specdec.core.sequence import Sequence
from specdec.eval.checks import FAILED, PASSED, Check
from specdec.eval.drift import TOLERANCE
from specdec.eval.driving import Watch
from specdec.eval.law_test import LENIENCE, LawTest
from specdec.eval.losslessness import contexts
from specdec.eval.verify_settings import TEST_LEVEL, Size
from specdec.models.tensors import kv_dtype
from specdec.sampling import rejection
from specdec.sampling.process import Span
from specdec.types import Draft
from tests.eval.tiny import PROMPTS, Tiny, config, scripted
from tests.sampling.wrong import WRONG
from tests.toys import ScriptedModel, SelfProposer
from tests.trees import SelfTree


def run(models: Tiny, own: EngineConfig, *, draws: int = 512, seed: int = 0, temperature: float = 0.8) -> list[Check]:
    listed = contexts(PROMPTS, 200)
    return LawTest(models.build(own), models.build, listed, temperature, draws, seed, Watch()).run()


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if check.status == FAILED}


def test_right_engines_pass_with_many_seeds_and_their_p_values_are_uniform() -> None:
    models, own = scripted(), config("draft", verifier="rejection")
    runs = [run(models, own, draws=96, seed=1000 * seed) for seed in range(24)]
    assert [failed(checks) for checks in runs] == [set()] * len(runs)
    for name in ("law", "draft law", "bonus"):
        values = np.sort([check.figures["p_value"] for checks in runs for check in checks if check.name == name])
        steps = (np.arange(len(values)) + 0.5) / len(values)
        assert np.abs(values - steps).max() < 1.95 / np.sqrt(len(values)), name  # Kolmogorov-Smirnov, 0.1 %


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_verifier_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    acceptance_probs, emission_logits = WRONG[name]
    monkeypatch.setattr(rejection, "acceptance_probs", acceptance_probs)
    monkeypatch.setattr(rejection, "emission_logits", emission_logits)
    expected = {"accepts": "acceptance", "forgets": "acceptance", "takes": "bonus"}
    assert expected.get(name.split()[0], "recovered") in failed(run(scripted(), config("draft", verifier="rejection")))


def test_dropping_a_draft_after_looking_at_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only drafts that begin with the target's likeliest token are submitted."""
    models = scripted()
    set_drafts, target = Scheduler.set_drafts, models.target
    assert isinstance(target, ScriptedModel)

    def peeks(
        self: Scheduler, sequences: Many[Sequence], drafts: Many[Draft | None], kv_answers: Many[Draft | None]
    ) -> None:
        best = [int(target.logits(tuple(sequence.token_ids)).argmax()) for sequence in sequences]
        kept = [d if d and d.token_ids[0] == b else Draft() for d, b in zip(drafts, best, strict=True)]
        set_drafts(self, sequences, kept)

    monkeypatch.setattr(Scheduler, "set_drafts", peeks)
    assert "draft law" in failed(run(models, config("draft", verifier="rejection"), temperature=1.2))


def test_the_law_itself_shows_what_no_kind_of_token_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that no draft preceded are too often the likeliest."""
    emission = rejection.emission_logits

    def sharp(logits: torch.Tensor, spans: Many[Span], accepted: Many[int]) -> torch.Tensor:
        weights = emission(logits, spans, accepted)
        weights[[i for i, span in enumerate(spans) if not len(span.row.draft)]] *= 2
        return weights

    monkeypatch.setattr(rejection, "emission_logits", sharp)
    assert failed(run(scripted(), config("ngram", verifier="rejection"))) == {"law"}


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_trees_drawn_from_the_targets_own_law_pass(width: int, verifier: str) -> None:
    models = scripted()
    target = models.target
    models = Tiny(target, own={"tree": lambda: SelfTree(target, width) if width > 1 else SelfProposer(target)})
    checks = run(models, config("tree", k=2, verifier=verifier), draws=320)
    assert failed(checks) == set()
    law = checks[-1].figures
    assert law["num_accepted_tokens"] > law["num_drafts"]


def test_siblings_that_are_the_likeliest_and_not_drawn_fail() -> None:
    """Their law is reported all the same."""
    models = scripted()
    target = models.target
    assert isinstance(target, ScriptedModel)
    likeliest = Tiny(target, own={"tree": lambda: Likeliest(target)})
    assert "draft law" in failed(run(likeliest, config("tree", k=1, verifier="rejection")))


class Likeliest(SelfTree):
    """Two children, which are the target's likeliest."""

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        if not length:
            return Draft(proposer="tree")
        law = torch.softmax(self.model.logits(tuple(sequence.token_ids)) / sequence.request.params.temperature, dim=-1)
        return Draft(tuple(law.topk(2).indices.tolist()), (-1, -1), torch.stack([law, law]), "tree")


def test_cells_expect_five_samples_each() -> None:
    assert Size.of(512, 4) == Size(512, 3, 4)
    assert Size.of(100_000, 4).num_cells == 64
    assert Size.of(40, 4).num_cells == 8
    assert Size.of(20, 1).num_cells == 4
    for draws in range(40, 400):
        assert draws / Size.of(draws, 3).num_cells >= 5
    with pytest.raises(ValueError, match="at least 40"):
        Size.of(39, 2)


def test_the_summary_tells_what_the_draws_can_show() -> None:
    checks = run(scripted(), config("draft", verifier="rejection"), draws=320)
    law = checks[-1]
    assert law.status == PASSED
    assert law.figures["level"] == TEST_LEVEL
    assert law.figures["num_draws"] == 320
    assert f"a distance of {law.figures['detectable_total_variation']:.2f}" in law.summary
    assert f"needs {law.figures['draws_needed']['0.05']:,} draws" in law.summary


def test_failed_requests_are_faults() -> None:
    target = scripted().target
    broken = Tiny(_Sometimes(target), own={"self": lambda: SelfProposer(target)})  # type: ignore[arg-type]
    checks = run(broken, config("self", verifier="rejection"), draws=64)
    assert any("a request failed" in fault for check in checks for fault in check.faults)


class _Sometimes:
    """A target whose logits are no numbers after token 3."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def forward(self, batch, kv):  # type: ignore[no-untyped-def]
        hidden = self.inner.forward(batch, kv)  # type: ignore[attr-defined]
        hidden[batch.token_ids == 3] = float("nan")
        return hidden


def test_every_cache_has_a_lenience_and_a_tolerance() -> None:
    caches = {kv_dtype(name) for name in KV_CACHE_DTYPES if name != "auto"} | {torch.float64, torch.float16}
    assert caches == LENIENCE.keys() == TOLERANCE.keys()
