"""Token Recycling in engines: it costs no token, and where the target repeats itself its trees are accepted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import LLM
from specdec.types import RequestOutput, SamplingParams, SpeculationParams
from tests.toys import ScriptedModel, generate, looping_script, make_engine, run, tokens

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12]]


def model() -> ScriptedModel:
    return ScriptedModel(looping_script(VOCABULARY, 5), VOCABULARY)


def recycled(k: int = 4, **options: object):
    return make_engine(model(), proposer="recycling", k=k, **options)


def plain(params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    return generate(make_engine(model()), prompts, params)


def accepted(outputs: list[RequestOutput]) -> int:
    return sum(sample.speculation.num_accepted_tokens for output in outputs for sample in output.outputs)


@pytest.mark.parametrize("tree", ["chain", "breadth", "ranked"])
@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_of_plain_decoding(tree: str, k: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=11, n=1 if temperature == 0 else 2, logprobs=1)
    outputs = generate(recycled(k, settings={"tree": tree}, verifier="coupled"), PROMPTS, params)
    assert tokens(outputs) == tokens(plain(params))
    assert accepted(outputs) > 0
    assert {output.exactness for output in outputs} == {"bytes"}


def test_a_target_that_loops_is_followed_to_the_end_of_the_shape() -> None:
    """Once every token of the loop has been seen, all that is drafted along the first ranks is right."""

    def script(prefix: tuple[int, ...]) -> list[float]:
        return [5.0 if token == (3 * prefix[-1] + 1) % VOCABULARY else -float(token) for token in range(VOCABULARY)]

    params = SamplingParams(temperature=0, max_tokens=200)
    target = ScriptedModel(script, VOCABULARY)
    (output,) = generate(make_engine(target, proposer="recycling"), PROMPTS[:1], params)
    stats = output.outputs[0].speculation
    assert stats.mean_acceptance_length > 4.5
    assert len(stats.accepted_per_position) == 4
    assert output.outputs[0].provenance.count("recycling") == stats.num_accepted_tokens


def test_what_one_request_taught_helps_the_next_of_its_salt() -> None:
    engine = recycled(enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=8)

    def num_accepted(name: str, salt: str | None) -> int:
        engine.add_request(name, PROMPTS[0], params, cache_salt=salt)
        return accepted([run(engine)[name]])

    first, again, salted = (num_accepted(*each) for each in (("a", None), ("b", None), ("c", "salt")))
    assert again > first == salted


@settings(max_examples=30)
@given(data=st.data())
def test_recycled_trees_ignore_mates_chunks_and_preemption(data: st.DataObject) -> None:
    """Any batch, budget, pool and tree, twice through one engine: a seed decides the tokens."""
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), min_size=1, max_size=5)
    )
    params = SamplingParams(temperature=data.draw(st.sampled_from([0.0, 1.0])), max_tokens=20, seed=3)
    block_size, max_num_seqs = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    engine = recycled(
        data.draw(st.integers(1, 6)),
        settings={
            "tree": data.draw(st.sampled_from(["chain", "breadth", "ranked"])),
            "tree_nodes": data.draw(st.integers(1, 30)),
            "recycling_max_rejected": data.draw(st.sampled_from([0, 2, 64])),
        },
        verifier="coupled",
        block_size=block_size,
        kv_cache_tokens=data.draw(st.integers(-(-40 // block_size) * block_size, 150)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=data.draw(st.integers(max(32, max_num_seqs), 60)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    expected = tokens(plain(params, prompts))
    for _ in range(2):
        assert tokens(generate(engine, prompts, params)) == expected


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_sampled_trees_are_verified_by_the_rule_of_fixed_children(verifier: str) -> None:
    params = SamplingParams(temperature=0.7, max_tokens=60, seed=2)
    outputs = generate(recycled(verifier=verifier), PROMPTS, params)
    assert accepted(outputs) > 20
    assert all(len(output.outputs[0].token_ids) == 60 for output in outputs)


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_accepts_what_it_thought_before() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        llm = LLM(dtype="float32", kv_cache_tokens=2048, speculative_config={"method": "recycling"})
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        prompt = "one two three one two three one two three one two"
        by_two = [SpeculationParams("recycling"), SpeculationParams("none")]
        drafted, alone = llm.generate([prompt, prompt], params, speculation=by_two)
    finally:
        torch.set_num_threads(threads)
    assert tokens([drafted]) == tokens([alone])
    assert accepted([drafted]) > 10
