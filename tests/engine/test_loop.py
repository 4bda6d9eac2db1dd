"""The loop: streaming, cached prompts, stops at every place, several engines in one process."""

from itertools import count, pairwise

import pytest

from specdec.core import scheduler
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


def test_every_request_has_its_own_k() -> None:
    target = ScriptedModel(looping_script(13, 5), 13)
    engine = make_engine(target, proposer="oracle", k=7, proposers={"oracle": OracleProposer(target, 9)})
    params = SamplingParams(temperature=0, max_tokens=30)
    jobs = [SpeculationParams(num_speculative_tokens=k) for k in (3, 0)]
    jobs += [SpeculationParams("none"), SpeculationParams()]
    for i, speculation in enumerate(jobs):
        engine.add_request(str(i), [1, 2], params, speculation=speculation)
    outputs = run(engine)
    assert len({tuple(outputs[str(i)].outputs[0].token_ids) for i in range(4)}) == 1
    assert [outputs[str(i)].num_speculative_tokens for i in range(4)] == [3, 0, 0, 7]
    assert outputs["1"].outputs[0].speculation.num_drafts == 0
    assert outputs["2"].proposer == "none"
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


class Interrupted(ScriptedModel):
    """Is interrupted at its `when`-th forward pass, before or after writing KV."""

    def __init__(self, when: int, late: bool) -> None:
        super().__init__(looping_script(13, 5), 13)
        self.countdown, self.late = when, late

    def forward(self, batch, kv):
        self.countdown -= 1
        if self.countdown == 0:
            if self.late:
                super().forward(batch, kv)
            raise KeyboardInterrupt
        return super().forward(batch, kv)


def run_through_interrupts(engine) -> dict:
    """Go on after every interrupt, as a program with a handler of its own would."""
    finished = {}
    for _ in range(1000):
        if not engine.has_unfinished_requests():
            return finished
        try:
            finished.update((o.request_id, o) for o in engine.step() if o.finished)
        except KeyboardInterrupt:
            engine.scheduler.check_integrity()
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("when", range(1, 7))
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_interrupted_step_is_computed_again(when: int, late: bool, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, n=3 if temperature else 1, seed=2, max_tokens=12)
    prompts = [[1, 2, 3, 4, 5, 6], [7] * 9]
    plain = tokens(generate(make_engine(ScriptedModel(looping_script(13, 5), 13)), prompts, params))
    engine = make_engine(Interrupted(when, late), proposer="ngram", verifier="coupled", max_num_batched_tokens=17)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    finished = run_through_interrupts(engine)
    assert tokens([finished["0"], finished["1"]]) == plain


def test_an_interrupt_while_blocks_are_copied_loses_no_copy(monkeypatch) -> None:
    params = SamplingParams(temperature=1.0, n=3, seed=2, max_tokens=12)
    plain = tokens(generate(make_engine(ScriptedModel(random_script(13), 13)), [[1] * 6], params))
    engine = make_engine(ScriptedModel(random_script(13), 13))
    copy, interrupts = engine.runner.kv.copy_blocks, iter([True])

    def copy_or_not(copies):
        if copies and next(interrupts, False):
            raise KeyboardInterrupt
        copy(copies)

    monkeypatch.setattr(engine.runner.kv, "copy_blocks", copy_or_not)
    engine.add_request("r", [1] * 6, params)
    assert tokens([run_through_interrupts(engine)["r"]]) == plain


@pytest.mark.parametrize("when", range(1, 20, 2))
@pytest.mark.parametrize("place", ["append_token", "commit"])
def test_an_interrupt_while_a_step_is_committed(when: int, place: str, monkeypatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    prompts = [[1, 2, 3], [4] * 6, [5]]
    plain = generate(make_engine(ScriptedModel(looping_script(13, 5), 13)), prompts, params)
    engine = make_engine(ScriptedModel(looping_script(13, 5), 13), proposer="ngram")
    home, calls = (scheduler, count()) if place == "append_token" else (engine.scheduler.blocks, count())
    whole = getattr(home, place)

    def cut(*arguments):
        if next(calls) == when:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(home, place, cut)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    finished = run_through_interrupts(engine)
    for i, expected in enumerate(plain):
        sample = finished[str(i)].outputs[0]
        assert sample.token_ids == expected.outputs[0].token_ids
        assert sample.cumulative_logprob == pytest.approx(expected.outputs[0].cumulative_logprob)
        assert len(sample.provenance) == len(sample.logprobs) == 8
    assert engine.runner.proposers["ngram"]._indexes == {}


def test_what_a_step_said_before_an_interrupt_is_reported_by_the_next() -> None:
    class Interrupting(OracleProposer):
        def propose(self, sequences, inp):
            raise KeyboardInterrupt

    target = ScriptedModel(random_script(13), 13)
    engine = make_engine(target, proposer="oracle", proposers={"oracle": Interrupting(target, 1)})
    engine.add_request("long", [1], SamplingParams(temperature=0, max_tokens=9))
    engine.add_request("short", [2], SamplingParams(temperature=0, max_tokens=1))
    finished = run_through_interrupts(engine)
    assert len(finished["long"].outputs[0].token_ids) == 9
    assert len(finished["short"].outputs[0].token_ids) == 1


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("stop_at", [4, 5, 6])
def test_runs_that_cross_a_stop_and_the_limit_end_at_the_earlier(k: int, stop_at: int) -> None:
    target = ScriptedModel(random_script(40), 40)
    plain = generate(make_engine(target), [[1]], SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].token_ids
    assert plain.index(plain[stop_at - 1]) == stop_at - 1
    engine = make_engine(target, proposer="oracle", k=k, proposers={"oracle": OracleProposer(target, k)})
    params = SamplingParams(temperature=0, max_tokens=5, stop_token_ids=[plain[stop_at - 1]])
    sample = generate(engine, [[1]], params)[0].outputs[0]
    assert sample.token_ids == plain[: min(stop_at, 5)]
    assert sample.finish_reason == ("stop" if stop_at <= 5 else "length")


@pytest.mark.parametrize("shared", range(5))
@pytest.mark.parametrize("proposer", ["none", "ngram"])
def test_prompts_that_share_exactly_n_blocks_and_then_differ(shared: int, proposer: str) -> None:
    common, params = [3, 1, 4, 1] * shared, SamplingParams(temperature=0, max_tokens=12)
    prompts = [[*common, 5, 9, 2, 6], [*common, 6, 5, 3, 5]]
    target = ScriptedModel(random_script(13, order=30), 13)
    plain = [tokens(generate(make_engine(target), [prompt], params)) for prompt in prompts]
    engine = make_engine(target, proposer=proposer)
    outputs = [generate(engine, [prompt], params) for prompt in prompts]
    assert [tokens(output) for output in outputs] == plain
    assert outputs[1][0].num_cached_tokens == 4 * shared


def test_acceptance_does_not_depend_on_how_the_prompt_was_chunked() -> None:
    params, prompt = SamplingParams(temperature=0, max_tokens=40), [1, 2, 3, 1, 2, 3, 1, 2] * 4
    seen = []
    for budget in (5, 7, 64):
        engine = make_engine(
            ScriptedModel(looping_script(13, 5), 13), proposer="ngram", max_num_seqs=1, max_num_batched_tokens=budget
        )
        (output,) = generate(engine, [prompt], params)
        seen.append((output.outputs[0].speculation, output.outputs[0].provenance))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0].num_accepted_tokens > 0


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
