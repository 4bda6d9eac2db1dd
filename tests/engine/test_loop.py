"""The loop: streaming, cached prompts, stops at every place, several engines in one process."""

from itertools import pairwise

import pytest

from specdec.types import SamplingParams, SpeculationParams
from tests.toys import (
    EOS,
    OracleProposer,
    ScriptedModel,
    byte_tokenizer,
    generate,
    looping_script,
    make_engine,
    random_script,
    run,
    tokens,
)


def test_a_cached_prompt_is_not_computed_again() -> None:
    model = ScriptedModel(random_script(20), 20, max_model_len=8192)
    engine = make_engine(model, block_size=16, kv_cache_tokens=16384, max_num_batched_tokens=1000)
    prompt = [i % 19 for i in range(4000)]
    params = SamplingParams(temperature=0, max_tokens=1)
    generate(engine, [prompt], params)
    model.num_computed = 0
    (output,) = generate(engine, [prompt + [3] * 50], params)
    assert 50 <= model.num_computed <= 66
    assert output.num_cached_tokens == 4000
    assert engine.reset_prefix_cache()
    (output,) = generate(engine, [prompt + [3] * 50], params)
    assert output.num_cached_tokens == 0


def test_cache_salts_separate_requests() -> None:
    engine = make_engine(ScriptedModel(random_script(20), 20))
    params = SamplingParams(temperature=0, max_tokens=1)
    for i, (salt, expected) in enumerate([("a", 0), ("b", 0), ("a", 16), (None, 0)]):
        engine.add_request(str(i), [5] * 17, params, cache_salt=salt)
        assert run(engine)[str(i)].num_cached_tokens == expected


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["eos", "stop_token_ids"])
def test_an_end_anywhere_in_a_draft_cuts_there(k: int, kind: str) -> None:
    """Declare the i-th plain token an end, for every i."""
    script = random_script(40)
    params = SamplingParams(temperature=0, max_tokens=16)
    plain = generate(make_engine(ScriptedModel(script, 40)), [[1, 2]], params)[0].outputs[0].token_ids
    for i, token in enumerate(plain):
        if token in plain[:i]:
            continue
        target = ScriptedModel(script, 40)
        engine = make_engine(
            target,
            proposer="oracle",
            k=k,
            proposers={"oracle": OracleProposer(target, k)},
            eos=[token] if kind == "eos" else [],
        )
        ends = {"stop_token_ids": [token]} if kind == "stop_token_ids" else {}
        (output,) = generate(engine, [[1, 2]], SamplingParams(temperature=0, max_tokens=16, **ends))
        sample = output.outputs[0]
        assert sample.token_ids == plain[: i + 1]
        assert sample.finish_reason == "stop"
        assert sample.stop_reason == (None if kind == "eos" else token)
        stats = sample.speculation
        assert stats.num_accepted_tokens == sum(origin == "oracle" for origin in sample.provenance)
        assert sum(stats.accepted_per_position) == stats.num_accepted_tokens


@pytest.mark.parametrize("k", [0, 1, 4])
def test_streamed_text_only_grows_and_never_shows_what_is_cut(k: int) -> None:
    text = "one two three STOP four"

    def script(prefix):
        logits = [0.0] * 258
        logits[text.encode()[(len(prefix) - 1) % len(text)]] = 9.0
        return logits

    model = ScriptedModel(script, 258)
    engine = make_engine(
        model, tokenizer=byte_tokenizer(), proposer="oracle", k=k, proposers={"oracle": OracleProposer(model, k)}
    )
    engine.add_request("r", [1], SamplingParams(temperature=0, max_tokens=60, stop=["STOP"]))
    seen = [""]
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen.append(output.outputs[0].text)
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert seen[-1] == "one two three "


def test_characters_are_never_split() -> None:
    text = "né 日本 🙂 ok"
    data = text.encode()

    def script(prefix):
        logits = [0.0] * 258
        logits[data[len(prefix) - 1] if len(prefix) <= len(data) else EOS] = 9.0
        return logits

    engine = make_engine(ScriptedModel(script, 258), tokenizer=byte_tokenizer(), eos=[EOS])
    engine.add_request("r", [1], SamplingParams(temperature=0, max_tokens=60))
    seen = []
    while engine.has_unfinished_requests():
        seen += [output.outputs[0].text for output in engine.step()]
    assert all(text.startswith(shown) for shown in seen)
    assert seen[-1] == text


def test_k_may_change_and_go_to_nothing_and_back() -> None:
    target = ScriptedModel(looping_script(13, 5), 13)
    engine = make_engine(target, proposer="oracle", k=3, proposers={"oracle": OracleProposer(target, 9)})
    params = SamplingParams(temperature=0, max_tokens=30)
    jobs = [SpeculationParams(), SpeculationParams("none"), SpeculationParams(num_speculative_tokens=0)]
    jobs.append(SpeculationParams(num_speculative_tokens=7))
    for i, speculation in enumerate(jobs):
        engine.add_request(str(i), [1, 2], params, speculation=speculation)
    outputs = run(engine)
    assert len({tuple(outputs[str(i)].outputs[0].token_ids) for i in range(4)}) == 1
    assert [outputs[str(i)].num_speculative_tokens for i in range(4)] == [3, 0, 0, 7]
    assert outputs["1"].outputs[0].speculation.num_drafts == 0
    assert (
        outputs["3"].outputs[0].speculation.mean_acceptance_length
        > outputs["0"].outputs[0].speculation.mean_acceptance_length
    )


def test_two_engines_in_one_process_do_not_meet() -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20)
    solo = [tokens(generate(make_engine(ScriptedModel(random_script(9, salt=s), 9)), [[1]], params)) for s in (0, 1)]
    engines = [
        make_engine(ScriptedModel(random_script(9, salt=s), 9), proposer="ngram", verifier="coupled") for s in (0, 1)
    ]
    for engine in engines:
        engine.add_request("r", [1], params)
    finished = [{}, {}]
    while any(engine.has_unfinished_requests() for engine in engines):
        for engine, done in zip(engines, finished, strict=True):
            for output in engine.step():
                done[output.request_id] = output
    assert [tokens([done["r"]]) for done in finished] == solo


def test_times_are_ordered_and_steps_recorded() -> None:
    engine = make_engine(ScriptedModel(random_script(9), 9))
    (output,) = generate(engine, [[1]], SamplingParams(temperature=0, max_tokens=3))
    times = output.metrics
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.finished_time
    record = engine.last_step
    assert record.num_rows == record.num_tokens == 1
    assert record.forward > 0
    assert record.overhead > 0


def test_parallel_samples_compute_their_prompt_once() -> None:
    model = ScriptedModel(random_script(20), 20)
    engine = make_engine(model, enable_prefix_caching=False)
    params = SamplingParams(temperature=1.0, n=4, max_tokens=5, seed=2)
    (output,) = generate(engine, [[1] * 30], params)
    assert model.num_computed == 30 + 4 * 4 + 3
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 4
    assert [sample.index for sample in output.outputs] == [0, 1, 2, 3]
