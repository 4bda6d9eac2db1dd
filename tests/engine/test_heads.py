"""Heads draft from the target's states; their KV of committed tokens is that of true features however it came there."""

from __future__ import annotations

import warnings

import pytest
import torch

from specdec.core.control.controller import Controller
from specdec.engine import Engine
from specdec.models.decoder import Decoder
from specdec.models.eagle import EagleHead
from specdec.types import SamplingParams, SpeculationParams
from tests.heads import head_engine, naive_head, tiny_eagle, tiny_medusa, tiny_target
from tests.toys import generate, tokens

PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12], [3, 1] * 8]
TREES = [
    {},
    {"tree": "breadth", "tree_nodes": 12, "tree_width": 2},
    {"tree": "confidence", "tree_nodes": 8, "tree_width": 3},
]
KINDS = ["eagle", "eagle3", "reduced"]


def make_head(target: Decoder, kind: str) -> tuple[str, EagleHead]:
    is_reduced = kind == "reduced"
    method = "eagle3" if is_reduced else kind
    return method, tiny_eagle(target, method, reduced=is_reduced)


@torch.inference_mode()
def check_head(engine: Engine, target: Decoder, method: str, head: EagleHead, *, chains: bool = True) -> int:
    """The head's KV and next drafts are those computed from scratch; answers how many entries were compared."""
    own, compared = engine.runner.proposers[method].kv, 0
    for sequence in engine.scheduler.running:
        count = min(sequence.num_draft_computed_tokens, sequence.num_tokens)
        if count < 2:
            continue
        drafted = list(sequence.draft.token_ids)
        naive, chain = naive_head(target, head, sequence.token_ids, drafted if chains else [])
        size = own.block_size
        slots = torch.tensor([sequence.block_table[p // size] * size + p % size for p in range(1, count)])
        for ours, theirs in zip(own.read(0, slots), naive.read(0, torch.arange(1, count)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        if chains:
            assert drafted == chain
        compared += count - 1
    return compared


def finish(engine: Engine, target: Decoder, method: str, head: EagleHead, *, chains: bool = True):
    """Step to the end under `check_head`; the outputs by request."""
    finished, compared = {}, 0
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_integrity()
        compared += check_head(engine, target, method, head, chains=chains)
    assert compared > 0
    return finished


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [9, 64])
def test_drafts_are_those_of_the_plain_head_in_chunks_and_whole(kind: str, budget: int) -> None:
    target = tiny_target()
    method, head = make_head(target, kind)
    engine = head_engine(target, method, head, max_num_batched_tokens=budget)
    params = SamplingParams(temperature=0, max_tokens=12)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(f"r{i}", prompt, params)
    outputs = finish(engine, target, method, head)
    plain = generate(head_engine(target), PROMPTS, params)
    assert [outputs[f"r{i}"].outputs[0].token_ids for i in range(5)] == [o.outputs[0].token_ids for o in plain]
    assert sum(each.outputs[0].speculation.num_accepted_tokens for each in outputs.values()) > 0


@pytest.mark.parametrize("kind", [*KINDS, "medusa"])
def test_auto_knows_what_a_head_costs_before_the_first_request(kind: str) -> None:
    """A head drafts from what a step leaves it, so it is timed after one."""
    target = tiny_target()
    method, head = (kind, tiny_medusa()) if kind == "medusa" else make_head(target, kind)
    engine = head_engine(target, method, head, auto=True)
    controller = engine.speculation.controller
    assert isinstance(controller, Controller)
    assert controller.beliefs.drafting[method].seconds(4) > 0
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks
    params = SamplingParams(temperature=0, max_tokens=12)
    plain = generate(head_engine(target), PROMPTS, params)
    assert tokens(generate(engine, PROMPTS, params)) == tokens(plain)


@pytest.mark.parametrize(("kind", "settings"), list(zip(KINDS, TREES, strict=True)))
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "auto"), (1.0, "coupled"), (1.0, "block")])
def test_preemption_prefix_hits_and_samples_leave_the_head_right(kind, settings, temperature, verifier) -> None:
    """A tiny pool preempts; prompts share whole blocks and differ then; samples share a prompt."""
    target = tiny_target()
    method, head = make_head(target, kind)
    engine = head_engine(target, method, head, settings=settings, verifier=verifier, kv_cache_tokens=64)
    shared = [7, 8, 9, 10, 11, 12, 1, 2]
    prompts = [[*shared, 3, 4, 5], [*shared, 4], [*shared, 5, 5], shared]
    n = 2 if temperature else 1
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=3, n=n, frequency_penalty=0.3)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"r{i}", prompt, params)
        engine.step()
        check_head(engine, target, method, head, chains=False)
    outputs = finish(engine, target, method, head, chains=False)
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.num_prefix_hits > 0
    if verifier != "block":
        plain = generate(head_engine(target, verifier=verifier), prompts, params)
        assert [[s.token_ids for s in outputs[f"r{i}"].outputs] for i in range(4)] == tokens(plain)
    assert sum(s.speculation.num_draft_tokens for each in outputs.values() for s in each.outputs) > 0


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("shared", [4, 8, 12])
def test_after_a_prefix_hit_nothing_cached_is_computed_again(kind: str, shared: int) -> None:
    """The second prompt shares exactly `shared` tokens: the target and the head compute the rest, and no block less."""
    target = tiny_target()
    method, head = make_head(target, kind)
    engine = head_engine(target, method, head)
    params = SamplingParams(temperature=0, max_tokens=6)
    first = [(3 * i) % 13 for i in range(13)]
    second = [*first[:shared], *((token + 1) % 13 for token in first[shared:]), 4, 4]
    generate(engine, [first], params)
    widths = []
    read = head.read
    head.read = lambda batch, kv, features: widths.append(batch.num_tokens) or read(batch, kv, features)
    engine.add_request("second", second, params)
    engine.step()
    check_head(engine, target, method, head)
    outputs = finish(engine, target, method, head)
    assert outputs["second"].num_cached_tokens == shared
    assert widths[0] == len(second) + 1 - shared
    alone = generate(head_engine(target, method, tiny_eagle(target, kind)), [second], params)
    assert outputs["second"].outputs[0] == alone[0].outputs[0]


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_steps_without_a_draft_are_followed(kind: str) -> None:
    """Other requests take the whole budget for a while, so that nothing is drafted; one asks for no draft at all."""
    target = tiny_target()
    method, head = make_head(target, kind)
    engine = head_engine(target, method, head, max_num_batched_tokens=8)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=40))
    engine.add_request(
        "b", [1, 2, 4], SamplingParams(temperature=0, max_tokens=20), speculation=SpeculationParams("none")
    )
    for i in range(5):
        engine.step()
        check_head(engine, target, method, head)
        engine.add_request(f"long-{i}", [i, *range(12)] * 2, SamplingParams(temperature=0, max_tokens=3))
    outputs = finish(engine, target, method, head)
    assert outputs["a"].outputs[0].speculation.num_drafts > 0
    assert outputs["b"].outputs[0].speculation.num_drafts == 0


def test_a_shorter_head_stops_drafting_and_says_so_once() -> None:
    target = tiny_target()
    engine = head_engine(target, "eagle3", tiny_eagle(target, "eagle3", max_model_len=16))
    params = SamplingParams(temperature=0, max_tokens=30)
    with pytest.warns(UserWarning, match="the draft head takes at most 16 tokens") as caught:
        outputs = generate(engine, PROMPTS, params)
    assert len(caught) == 1
    assert tokens(outputs) == tokens(generate(head_engine(target), PROMPTS, params))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("early", [False, True])
def test_steps_whose_drafting_failed_are_caught_up(kind: str, error: type[BaseException], early: bool) -> None:
    """For several steps in a row, among them the prompt's chunks or not: afterwards the head goes on as ever."""
    target = tiny_target()
    method, head = make_head(target, kind)
    engine = head_engine(target, method, head, max_num_batched_tokens=8)
    params = SamplingParams(temperature=0, max_tokens=30)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(f"r{i}", prompt, params)
    for _ in range(0 if early else 8):
        engine.step()
    grow = engine.runner.proposers[method]._grower.grow
    engine.runner.proposers[method]._grower.grow = lambda *_: (_ for _ in ()).throw(error("no"))
    for _ in range(4):
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        else:
            with pytest.warns(UserWarning, match="failed and gives no draft"):
                engine.step()
        check_head(engine, target, method, head)
    engine.runner.proposers[method]._grower.grow = grow
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.step()
        assert all(each.num_draft_computed_tokens >= each.num_computed_tokens for each in engine.scheduler.running)
        outputs = finish(engine, target, method, head)
    plain = generate(head_engine(target), PROMPTS, params)
    assert [outputs[f"r{i}"].outputs[0].token_ids for i in range(5)] == [o.outputs[0].token_ids for o in plain]


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_conversation_goes_on_from_blocks_whose_last_feature_is_there(kind: str) -> None:
    """The second turn begins with all of the first; wherever that ended, no block without its feature is hit."""
    target = tiny_target()
    method, head = make_head(target, kind)
    for length in range(3, 20):
        engine = head_engine(target, method, head)
        prompt = [1, 2, 3, 4, 5]
        first = generate(engine, [prompt], SamplingParams(temperature=0, max_tokens=length))[0].outputs[0].token_ids
        engine.add_request("second", [*prompt, *first, 6, 7, 8], SamplingParams(temperature=0, max_tokens=4))
        engine.step()
        assert check_head(engine, target, method, head)
        engine.abort("second")


def test_the_shortest_request_that_can_have_a_draft_does_not_disturb_others() -> None:
    """The last token of its prompt is computed beside a draft for the only token before the last."""
    target = tiny_target()
    method, head = make_head(target, "eagle3")
    engine = head_engine(target, method, head, k=3, max_num_batched_tokens=32)
    engine.add_request("long", [i % 13 for i in range(31)], SamplingParams(temperature=0, max_tokens=60))
    for _ in range(3):
        engine.step()
    engine.add_request("short", [5] * 29, SamplingParams(temperature=0, max_tokens=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(engine, target, method, head)


@pytest.mark.parametrize("settings", TREES)
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "auto"), (1.0, "coupled"), (1.0, "block")])
def test_medusa_heads(settings, temperature: float, verifier: str) -> None:
    target, head = tiny_target(), tiny_medusa()
    engine = head_engine(target, "medusa", head, settings=settings, verifier=verifier, kv_cache_tokens=64)
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=3)
    outputs = generate(engine, PROMPTS, params)
    assert engine.scheduler.num_preemptions > 0
    stats = [output.outputs[0].speculation for output in outputs]
    assert sum(each.num_draft_tokens for each in stats) > 0
    assert max(len(each.accepted_per_position) for each in stats) <= head.num_heads
    if verifier != "block":
        assert tokens(outputs) == tokens(generate(head_engine(target, verifier=verifier), PROMPTS, params))


@torch.inference_mode()
def test_medusa_drafts_what_its_heads_say() -> None:
    target, head = tiny_target(), tiny_medusa()
    engine = head_engine(target, "medusa", head)
    engine.add_request("r", [1, 2, 3], SamplingParams(temperature=0, max_tokens=20))
    seen = []
    forward = head.forward
    head.forward = lambda hidden: seen.append((hidden, forward(hidden))) or seen[-1][1]
    while engine.has_unfinished_requests():
        engine.step()
        for sequence in engine.scheduler.running:
            hidden, logits = seen[-1]
            assert int(target.compute_logits(hidden).argmax()) == sequence.token_ids[-1]
            assert list(sequence.draft.token_ids) == logits[:, 0].argmax(-1).tolist()[: len(sequence.draft)]
