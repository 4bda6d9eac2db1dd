"""States as the engine computes them, whatever drafts, however prompts are cut, and through preemptions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from specdec.engine import Engine
from specdec.train.data.features import Recomputed
from specdec.train.data.tap import Tap
from specdec.types import RequestOutput, SamplingParams
from tests.heads import HIDDEN
from tests.toys import RandomProposer, run
from tests.train.data.toys import LAYERS, engine_around, small_decoder

PROMPTS = [[5, 6, 7] * 4, [9] * 17, [1, 2, 3, 4], [8, 9, 8, 9, 8, 9]]
LENGTH = 24


def answer(engine: Engine, tap: Tap, temperature: float = 0.0) -> list[tuple[list[int], RequestOutput]]:
    """Tokens of the prompts' sequences, and the outputs."""
    params = SamplingParams(temperature=temperature, max_tokens=LENGTH, seed=1)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, params)
        tap.watch(str(i), len(prompt) + LENGTH)
    outputs = run(engine)
    return [([*prompt, *outputs[str(i)].outputs[0].token_ids], outputs[str(i)]) for i, prompt in enumerate(PROMPTS)]


TREE = {"tree_nodes": 8, "tree_width": 3}


@pytest.mark.parametrize(
    ("proposer", "settings"), [("none", {}), ("ngram", {}), ("suffix", {}), ("recycling", TREE), ("auto", {})]
)
@pytest.mark.parametrize("kv_cache_tokens", [4096, 80])
def test_kept_states_are_those_of_a_plain_pass(
    proposer: str, settings: Mapping[str, object], kv_cache_tokens: int
) -> None:
    model = small_decoder()
    tap = Tap(model, LAYERS)
    engine = engine_around(
        tap, proposer=proposer, settings=settings, kv_cache_tokens=kv_cache_tokens, max_num_batched_tokens=24
    )
    answers = answer(engine, tap)
    assert (engine.scheduler.num_preemptions > 0) == (kv_cache_tokens == 80)
    if proposer in ("ngram", "recycling"):
        assert sum(sum(out.outputs[0].speculation.accepted_per_position) for _, out in answers) > 5
    plain = Recomputed(model, LAYERS)  # type: ignore[arg-type]
    for i, (token_ids, _) in enumerate(answers):
        states = tap.take(str(i), token_ids)
        assert states is not None
        assert states.shape == (len(token_ids), (len(LAYERS) + 1) * HIDDEN)
        assert states.dtype == torch.bfloat16
        torch.testing.assert_close(states, plain.of(token_ids), rtol=2**-7, atol=1e-6)
        assert not states[-1].any()
        assert states[:-1].any(dim=-1).all()
        assert tap.take(str(i), token_ids) is None


def test_states_of_rejected_tokens_are_not_kept() -> None:
    """Noise is drafted: hardly anything is accepted, and what a draft left behind is another token's."""
    model = small_decoder()
    tap = Tap(model, LAYERS)
    engine = engine_around(tap, proposer="noise", proposers={"noise": RandomProposer(13)})
    answers = answer(engine, tap, temperature=1.0)
    assert sum(out.outputs[0].speculation.num_draft_tokens for _, out in answers) > 50
    plain = Recomputed(model, LAYERS)  # type: ignore[arg-type]
    for i, (token_ids, _) in enumerate(answers):
        states = tap.take(str(i), token_ids)
        assert states is not None
        torch.testing.assert_close(states, plain.of(token_ids), rtol=2**-7, atol=1e-6)


def test_only_what_is_watched_is_kept() -> None:
    tap = Tap(small_decoder(), LAYERS)
    engine = engine_around(tap)
    for name in ("watched", "other", "dropped"):
        engine.add_request(name, [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    tap.watch("watched", 7)
    tap.watch("dropped", 7)
    tap.drop("dropped")
    outputs = run(engine)
    taken = {name: tap.take(name, [1, 2, 3, *out.outputs[0].token_ids]) for name, out in outputs.items()}
    assert {name for name, states in taken.items() if states is not None} == {"watched"}


def test_states_that_were_not_all_computed_are_not_given() -> None:
    tap = Tap(small_decoder(), LAYERS)
    engine = engine_around(tap)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    engine.step()
    tap.watch("a", 7)
    output = run(engine)["a"]
    assert tap.take("a", [1, 2, 3, *output.outputs[0].token_ids]) is None
