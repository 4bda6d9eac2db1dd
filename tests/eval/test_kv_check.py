"""Cached state against a fresh computation: right on every kind of model, and wrong wherever an entry is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specdec.core.block_manager import BlockManager
from specdec.core.sequence import Sequence
from specdec.engine.build import load_models
from specdec.eval.checks import FAILED, PASSED, Check
from specdec.eval.driving import Watch
from specdec.eval.kv_check import KVCheck, answer_length
from specdec.eval.losslessness import contexts
from specdec.eval.snapshots import TARGET, Entries, Snapshot, compare, poison, recompute, take
from specdec.runner import Runner
from specdec.step.kv_cache import KVCache
from specdec.types import SamplingParams
from tests.engine.test_draft_files import save
from tests.eval.tiny import PROMPTS, Tiny, config, layered, scripted, tiny_for
from tests.toys import OracleProposer, RandomProposer, ScriptedModel
from tests.trees import OracleTree

NUM_CHECKS = {"ngram": 2, "draft": 3, "eagle": 3, "eagle3": 3}


def run(models: Tiny, method: str, temperature: float = 0.0, **options: object) -> list[Check]:
    own = config(method, **options)  # type: ignore[arg-type]
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=answer_length(own, 256))
    check = KVCheck(models.build, own, contexts(PROMPTS, 200)[::2], params, Watch())
    check.run()
    return check.checks()


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("method", NUM_CHECKS)
def test_every_owner_is_checked_whatever_the_blocks(method: str, block_size: int) -> None:
    models = layered(2) if method == "draft" else tiny_for(method)
    checks = run(models, method, 0.9, block_size=block_size)
    assert [check.status for check in checks] == [PASSED] * NUM_CHECKS[method], checks
    figures = checks[0].figures
    assert figures["num_preemptions"] > 0
    assert figures["num_rejections"] > 0
    assert figures["num_positions"] > 100
    assert by_name(checks)["draft positions"].figures["num_drafts"] > figures["num_rejections"] // 2


def test_without_a_prefix_cache_there_are_no_hits_to_check() -> None:
    checks = run(scripted(), "suffix", enable_prefix_caching=False)
    assert checks[0].status == PASSED
    assert checks[0].figures["num_prefix_hit_tokens"] == 0
    assert checks[0].notes == ()


def test_what_did_not_happen_is_said() -> None:
    target = scripted().target
    assert isinstance(target, ScriptedModel)
    checks = run(Tiny(target, own={"oracle": lambda: OracleProposer(target, 9)}), "oracle")
    assert checks[0].status == PASSED
    assert checks[0].notes == ("nothing is known of the state after a rejection: there was none",)
    assert checks[0].unseen == ("a rejection",)


def test_a_lone_prompt_is_preempted_too() -> None:
    own = config("suffix")
    params = SamplingParams(temperature=0, max_tokens=16)
    check = KVCheck(scripted().build, own, [(1, 2, 3, 1, 2)], params, Watch())
    check.run()
    assert check.checks()[0].status == PASSED
    assert check.checks()[0].figures["num_preemptions"] >= 4
    assert len(check.answers) == 1


def test_a_path_that_is_not_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tree the accepted nodes stay where they were computed."""
    target = scripted().target
    assert isinstance(target, ScriptedModel)
    models = Tiny(target, own={"tree": lambda: OracleTree(target, 2)})
    assert run(models, "tree")[0].status == PASSED
    monkeypatch.setattr(Runner, "keep_paths", lambda self, schedule, verdicts: None)
    found = run(models, "tree")[0]
    assert found.status == FAILED
    assert "(oracle-tree token" in found.faults[0]


def test_a_block_that_is_shared_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix hit on the wrong block."""
    match = BlockManager.match_prefix

    def mixed_up(self: BlockManager, sequence: Sequence) -> None:
        match(self, sequence)
        sequence.block_table[:2] = sequence.block_table[:2][::-1]

    monkeypatch.setattr(BlockManager, "match_prefix", mixed_up)
    found = by_name(run(scripted(), "suffix"))["target KV"]
    assert found.status == FAILED
    assert "the target's KV of position" in found.faults[0]


def test_copies_that_are_not_made_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel samples write into blocks of their own, which begin with what they shared."""
    monkeypatch.setattr(KVCache, "copy_blocks", lambda self, copies: None)
    found = by_name(run(scripted(), "suffix", 0.9))["target KV"]
    assert found.status == FAILED


def test_a_proposer_that_fails_is_told() -> None:
    class Broken(RandomProposer):
        def propose(self, sequences, inp):  # type: ignore[no-untyped-def]
            raise RuntimeError("no idea")

    checks = by_name(run(Tiny(scripted().target, own={"broken": lambda: Broken(13)}), "broken"))
    assert checks["requests"].faults == ("the proposer failed: RuntimeError: no idea",)


def entries(values: list[float]) -> Snapshot:
    """One layer, keys and values alike, of vectors with one component."""
    layer = torch.tensor(values, dtype=torch.float64)[None, None, :, None].expand(1, 2, -1, 1)
    return Snapshot((Entries(TARGET, layer.clone()),), 0)


def test_differences() -> None:
    right = entries([1.0, 2.0, 0.0, 4.0])
    assert [d.relative for d in compare(right, right)] == [0.0]
    (found,) = compare(entries([1.0, 2.0, 0.5, 4.0]), right)
    assert (found.position, found.layer, found.what, found.relative) == (2, 0, "key", 1.0)
    (found,) = compare(entries([1.0, 2.5, math.nan, 4.0]), right)
    assert (found.position, found.relative) == (2, math.inf)
    (found,) = compare(entries([1.0, 2.0]), right)
    assert found.relative == 0.0
    (found,) = compare(right, entries([1.0, math.nan, 0.0, 4.0]))
    assert found.relative == 0.0, "what a fresh computation leaves out need not be right"


def test_positions_without_a_slot_are_never_computed() -> None:
    engine = scripted().build(config("suffix"))
    poison(engine)
    snapshot = recompute(engine, [1, 2, 3, 4, 5])
    assert isinstance(snapshot, Snapshot)
    assert snapshot.entries[0].values[0, 0, :, 0].tolist() == [1, 2, 3, 4, 5]
    engine.add_request("x", [1, 2, 3], SamplingParams(temperature=0, max_tokens=8))
    engine.step()
    (sequence,) = engine.scheduler.running
    sequence.num_computed_tokens = 6
    values = take(engine, sequence).entries[0].values[0, 0, :, 0]
    assert values.isnan().tolist() == [False] * 3 + [True] * 3
    sequence.num_computed_tokens = 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_of_narrow_types_is_allowed_for(tmp_path: Path, dtype: str) -> None:
    own = replace(config("draft"), model=str(save(tmp_path, layers=3)), dtype=dtype, kernels="reference")
    own = replace(own, speculative=(replace(own.speculative[0], settings={"num_draft_layers": 2}),))
    models = load_models(own)
    params = SamplingParams(temperature=0, max_tokens=16)
    texts = [tuple(range(40 + i, 52 + 3 * i)) for i in range(4)]
    check = KVCheck(models.engine, own, texts, params, Watch())
    check.run()
    found = by_name(check.checks())
    for name in ("target KV", "proposer KV"):
        assert found[name].status == PASSED, found[name]
        assert found[name].figures["largest_relative_difference"] > 0
