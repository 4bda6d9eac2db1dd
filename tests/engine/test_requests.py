"""What is asked is checked before anything runs, in one clear line; one request never takes down another."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.proposers.base import NOTHING
from specdec.types import EMPTY_DRAFT, Draft, SamplingParams, SpeculationParams
from tests.toys import (
    EOS,
    OracleProposer,
    RandomProposer,
    ScriptedModel,
    byte_tokenizer,
    generate,
    make_engine,
    random_script,
    run,
)
from tests.trees import RandomTree


def byte_engine(**options):
    model = ScriptedModel(random_script(258), 258, max_model_len=64)
    return make_engine(
        model, tokenizer=byte_tokenizer(), eos=[EOS], kv_cache_tokens=128, **{"proposer": "none", **options}
    )


GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ([1, 258], "258 is outside the vocabulary (0 to 257)"),
        ([1, -1], "-1 is outside the vocabulary"),
        ([1, 2.5], "must hold integers; got 2.5"),
        ([1, True], "must hold integers; got True"),
        ([1] * 64, "the prompt has 64 tokens; with at least one new token the model takes at most 64"),
        ({"prompt_tokens": [1]}, "unknown prompt key 'prompt_tokens'; did you mean 'prompt_token_ids'?"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "exactly one of"),
        ({"prompt": [1]}, "'prompt' must be text"),
        (7, "a prompt must be text, a list of token ids or a mapping; got int"),
        (b"ab", "got bytes"),
    ],
)
def test_bad_prompts(prompt, message: str) -> None:
    engine = byte_engine()
    with pytest.raises(ValueError, match=r".") as error:
        engine.add_request("r", prompt, GREEDY)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not engine.has_unfinished_requests()


def test_a_prompt_longer_than_the_pool_is_refused_with_both_numbers() -> None:
    engine = make_engine(ScriptedModel(random_script(5), 5), kv_cache_tokens=40)
    assert engine.max_model_len == 40
    with pytest.raises(ValueError, match=r"the prompt has 40 tokens; .* the KV pool holds at most 40"):
        engine.add_request("r", [1] * 40, GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_token_ids": [300]}, "stop_token_ids: 300 is outside"),
        ({"allowed_token_ids": [300]}, "allowed_token_ids: 300 is outside"),
        ({"logit_bias": {300: 1}}, "logit_bias: 300 is outside"),
        ({"logprobs": 999}, "logprobs must be at most the vocabulary's size"),
        ({"prompt_logprobs": 999}, "prompt_logprobs must be at most"),
    ],
)
def test_parameters_beyond_the_vocabulary(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        byte_engine().add_request("r", "a", SamplingParams(**options))


def test_unknown_proposers_and_long_drafts_are_refused() -> None:
    engine = byte_engine(proposer="ngram", max_num_batched_tokens=16)
    with pytest.raises(ValueError, match=r"unknown proposer of this engine 'ngra'; did you mean 'ngram'\?"):
        engine.add_request("r", "a", GREEDY, speculation=SpeculationParams("ngra"))
    with pytest.raises(
        ValueError, match=r"num_speculative_tokens \(16\) is more than this engine has memory for \(4\)"
    ):
        engine.add_request("r", "a", GREEDY, speculation=SpeculationParams(num_speculative_tokens=16))
    with pytest.raises(ValueError, match="between 0 and 32"):
        SpeculationParams(num_speculative_tokens=33)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "high"}, "priority must be an integer"),
        ({"priority": math.nan}, "priority must be an integer"),
        ({"priority": None}, "priority must be an integer"),
        ({"cache_salt": 5}, "cache_salt must be a non-empty string"),
        ({"cache_salt": ""}, "cache_salt must be a non-empty string"),
        ({"speculation": {"proposer": "none"}}, "speculation must be SpeculationParams; got dict"),
        ({"params": {"n": 1}}, "sampling parameters must be SamplingParams; got dict"),
        ({"request_id": ""}, "request_id must be a non-empty string"),
        ({"request_id": ["x"]}, "request_id must be a non-empty string"),
    ],
)
def test_settings_of_the_wrong_kind_leave_the_engine_as_it_was(options: dict, message: str) -> None:
    engine = byte_engine()
    engine.add_request("a", [1], GREEDY)
    with pytest.raises(ValueError, match=message):
        engine.add_request(**{"request_id": "b", "prompt": [1], "params": GREEDY, **options})
    assert set(run(engine)) == {"a"}


def test_the_greedy_verifier_refuses_sampling() -> None:
    with pytest.raises(ValueError, match="the verifier 'greedy' needs temperature 0"):
        byte_engine(verifier="greedy").add_request("r", "a", SamplingParams())


def test_text_needs_a_tokenizer() -> None:
    engine = make_engine(ScriptedModel(random_script(5), 5))
    with pytest.raises(ValueError, match="no tokenizer; give prompt_token_ids"):
        engine.add_request("r", "a", GREEDY)
    with pytest.raises(ValueError, match="need a tokenizer"):
        engine.add_request("r", [1], SamplingParams(stop=["a"]))


def test_request_ids_are_unique_while_in_use() -> None:
    engine = byte_engine()
    engine.add_request("r", "a", GREEDY)
    with pytest.raises(ValueError, match="'r' is in use"):
        engine.add_request("r", "b", GREEDY)
    run(engine)
    engine.add_request("r", "b", GREEDY)
    assert run(engine)["r"].finished


@pytest.mark.parametrize("length", range(50, 64))
@pytest.mark.parametrize("k", [1, 4, 7])
def test_prompts_up_to_the_model_limit(length: int, k: int) -> None:
    engine = byte_engine(proposer="random", k=k, proposers={"random": RandomProposer(258)})
    (output,) = generate(engine, [[7] * length], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 64 - length
    assert output.outputs[0].finish_reason == "length"


def poisoned(value: float, *, everywhere: bool = False) -> ScriptedModel:
    """A script that spoils the logits of prompts that begin with 9, after three output tokens."""
    healthy = random_script(20)

    def script(prefix):
        logits = healthy(prefix).copy()
        if prefix[0] == 9 and len(prefix) >= 4:
            logits[slice(None) if everywhere else 5] = value
        return logits

    return ScriptedModel(script, 20)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("value", "everywhere"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_bad_logits_end_the_request_and_not_the_engine(temperature: float, value: float, everywhere: bool) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=8, seed=1)
    engine = make_engine(poisoned(value, everywhere=everywhere), proposer="ngram")
    outputs = generate(engine, [[1, 2], [9, 2], [3, 4]], params)
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert outputs[1].outputs[0].error
    assert len(outputs[1].outputs[0].token_ids) == 2
    healthy = generate(make_engine(poisoned(0.0), proposer="ngram"), [[1, 2], [3, 4]], params)
    assert [o.outputs[0].token_ids for o in (outputs[0], outputs[2])] == [o.outputs[0].token_ids for o in healthy]
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks


@pytest.mark.parametrize("correct", range(5))
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "auto"), (1.0, "coupled")])
def test_what_was_said_before_a_fault_does_not_depend_on_the_draft(
    correct: int, temperature: float, verifier: str
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=6)
    healthy = random_script(20)

    def script(prefix):
        return healthy(prefix) * (math.nan if len(prefix) >= 9 else 1.0)

    (plain,) = generate(make_engine(ScriptedModel(script, 20)), [[1, 2]], params)
    target = ScriptedModel(script, 20)
    engine = make_engine(
        target, proposer="oracle", proposers={"oracle": OracleProposer(target, correct)}, verifier=verifier
    )
    (output,) = generate(engine, [[1, 2]], params)
    sample = output.outputs[0]
    assert sample.finish_reason == "error"
    assert sample.token_ids == plain.outputs[0].token_ids
    assert len(sample.token_ids) == 7
    assert sample.error == plain.outputs[0].error
    again = generate(engine, [[1, 2]], params)[0]
    assert again.outputs[0].token_ids == sample.token_ids


@pytest.mark.parametrize("stops", [[], [3]])
@pytest.mark.parametrize(("temperature", "verifier"), [(0.7, "auto"), (0.7, "coupled")])
def test_a_fault_beside_samples_that_wait_for_the_prompt(stops: list[int], temperature: float, verifier: str) -> None:
    """The chunk before leaves one prompt token: nothing may be drafted there while other samples wait to share it."""

    def script(prefix):
        logits = torch.full((20,), -20.0).numpy()
        logits[3 if len(prefix) == 10 else 4] = 20.0
        return logits * (math.nan if len(prefix) >= 12 else 1.0)

    params = SamplingParams(temperature=temperature, n=2, max_tokens=6, seed=1, stop_token_ids=stops)
    prompt = [3, 4, 3, 4, 3, 4, 3, 4, 3, 4]
    expected = generate(make_engine(ScriptedModel(script, 20)), [prompt], params)[0]
    engine = make_engine(
        ScriptedModel(script, 20), proposer="ngram", verifier=verifier, max_num_seqs=2, max_num_batched_tokens=9
    )
    output = generate(engine, [prompt], params)[0]
    assert [(s.token_ids, s.finish_reason, s.error) for s in output.outputs] == [
        (s.token_ids, s.finish_reason, s.error) for s in expected.outputs
    ]
    assert {s.finish_reason for s in output.outputs} == {"stop" if stops else "error"}


@pytest.mark.parametrize("budget", [5, 40])
def test_a_prompt_that_ends_in_a_fault_still_has_its_logprobs(budget: int) -> None:
    healthy = random_script(20)
    model = ScriptedModel(lambda prefix: healthy(prefix) * (math.nan if len(prefix) >= 12 else 1.0), 20)
    engine = make_engine(model, max_num_seqs=1, max_num_batched_tokens=budget)
    (output,) = generate(engine, [[1] * 12], SamplingParams(temperature=0, prompt_logprobs=1))
    assert output.outputs[0].finish_reason == "error"
    assert len(output.prompt_logprobs) == 12


class Stumbling(ScriptedModel):
    """Raises on any batch that holds a row beginning with 9, before or after the KV is written."""

    def __init__(self, late: bool) -> None:
        super().__init__(random_script(20), 20)
        self.late = late

    def forward(self, batch, kv):
        hidden = super().forward(batch, kv) if self.late else None
        if any(row.sequence.token_ids[0] == 9 for row in batch.rows):
            raise RuntimeError("out of luck")
        return super().forward(batch, kv) if hidden is None else hidden


@pytest.mark.parametrize("late", [False, True])
def test_a_row_that_breaks_the_step_is_found_and_ended_alone(late: bool) -> None:
    engine = make_engine(Stumbling(late), proposer="ngram")
    outputs = generate(engine, [[1, 2], [9, 2], [3, 4]], GREEDY)
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert outputs[1].outputs[0].error == "the step failed: RuntimeError: out of luck"
    healthy = generate(make_engine(ScriptedModel(random_script(20), 20)), [[1, 2], [3, 4]], GREEDY)
    assert [o.outputs[0].token_ids for o in (outputs[0], outputs[2])] == [o.outputs[0].token_ids for o in healthy]


class Broken:
    """Breaks the contract in one way or another."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, how: str) -> None:
        self.how = how

    def propose(self, sequences, inp):
        if self.how == "raises":
            raise RuntimeError("no idea")
        if self.how == "few":
            return []
        if self.how == "tree":
            return [Draft((1, 2), parents=(-1, 1), proposer="broken") for _ in inp.lengths]
        if self.how == "fraction":
            return [Draft((1.5,), proposer="broken") for _ in inp.lengths]
        if self.how == "law":
            return [Draft((1, 2), draft_probs=torch.ones(2, 3), proposer="broken") for _ in inp.lengths]
        if self.how == "device":
            law = torch.full((2, 20), 0.05, device="meta")
            return [Draft((1, 2), draft_probs=law, proposer="broken") if n > 1 else EMPTY_DRAFT for n in inp.lengths]
        return [Draft((1,) * (n + 1) if self.how == "long" else (99,), proposer="broken") for n in inp.lengths]

    def forget(self, sequence):
        pass


class Clinging(Broken):
    """Cannot let go."""

    def __init__(self) -> None:
        super().__init__("few")

    def propose(self, sequences, inp):
        return [EMPTY_DRAFT] * len(sequences)

    def forget(self, sequence):
        raise RuntimeError("never")


def test_a_proposer_that_cannot_forget_costs_nothing_else() -> None:
    engine = make_engine(ScriptedModel(random_script(20), 20), proposer="broken", proposers={"broken": Clinging()})
    with pytest.warns(UserWarning, match="failed to forget"):
        (output,) = generate(engine, [[1, 2]], GREEDY)
    assert output.finished


@pytest.mark.parametrize("how", ["raises", "few", "long", "outside", "fraction", "tree", "law", "device"])
def test_a_broken_proposer_costs_its_drafts_and_no_request(how: str) -> None:
    engine = make_engine(ScriptedModel(random_script(20), 20), proposer="broken", proposers={"broken": Broken(how)})
    with pytest.warns(UserWarning, match="proposer 'broken' failed and gives no draft"):
        (output,) = generate(engine, [[1, 2]], GREEDY)
    (expected,) = generate(make_engine(ScriptedModel(random_script(20), 20)), [[1, 2]], GREEDY)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def test_abort_returns_what_was_said_and_frees_everything() -> None:
    engine = byte_engine(proposer="ngram")
    engine.add_request("a", "hello", SamplingParams(temperature=1, n=3, max_tokens=30, ignore_eos=True))
    engine.add_request("b", "world", GREEDY)
    for _ in range(3):
        engine.step()
    output = engine.abort("a")
    assert output is not None
    assert output.finished
    assert [s.finish_reason for s in output.outputs] == ["abort"] * 3
    assert engine.abort("a") is None
    assert engine.abort(["a"]) is None
    assert run(engine)["b"].finished
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks


ANY_PARAMS = st.builds(
    lambda n, **o: SamplingParams(n=n if o["temperature"] else 1, **o),
    n=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 3),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 300),
    min_p=st.floats(0, 1),
    seed=st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1)),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2),
    stop_token_ids=st.lists(st.integers(0, 257), max_size=3),
    ignore_eos=st.booleans(),
    max_tokens=st.one_of(st.none(), st.integers(10, 25)),
    min_tokens=st.integers(0, 9),
    logprobs=st.one_of(st.none(), st.integers(0, 5)),
    prompt_logprobs=st.one_of(st.none(), st.integers(0, 3)),
    include_stop_str_in_output=st.booleans(),
    logit_bias=st.one_of(st.none(), st.dictionaries(st.integers(0, 257), st.floats(-100, 100), max_size=3)),
    allowed_token_ids=st.one_of(st.none(), st.lists(st.integers(0, 257), min_size=1, max_size=5)),
    bad_words=st.lists(st.text(min_size=1, max_size=2), max_size=2),
)


@settings(max_examples=40)
@given(
    jobs=st.lists(st.tuples(st.text(min_size=1, max_size=12), ANY_PARAMS, st.integers(0, 6)), min_size=1, max_size=16),
    verifier=st.sampled_from(["rejection", "block", "coupled", "typical"]),
    proposer=st.sampled_from(["ngram", "tree"]),
)
def test_mixed_batches_of_any_parameters_come_to_an_end(jobs, verifier: str, proposer: str) -> None:
    given = {"tree": RandomTree(258)} if proposer == "tree" else None
    engine = byte_engine(proposer=proposer, k=6, proposers=given, verifier=verifier)
    for i, (prompt, params, k) in enumerate(jobs):
        speculation = SpeculationParams("none" if k == 5 else None, k)
        salt = "x" if k == 3 else None
        engine.add_request(str(i), prompt, params, priority=k % 2, cache_salt=salt, speculation=speculation)
    outputs = run(engine)
    assert len(outputs) == len(jobs)
    for i, (prompt, params, _) in enumerate(jobs):
        sample = outputs[str(i)].outputs[0]
        assert sample.finish_reason in ("stop", "length", "error")
        assert len(sample.provenance) == len(sample.token_ids)
        if sample.finish_reason == "error":
            assert params.allowed_token_ids, "only a request whose every token is banned may fail"
            continue
        assert len(sample.token_ids) <= (params.max_tokens or 64)
        assert params.allowed_token_ids is None or set(sample.token_ids) <= set(params.allowed_token_ids)
        assert outputs[str(i)].prompt_token_ids == list(prompt.encode())
        if params.logprobs is not None:
            assert [t in entry for t, entry in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks


def test_logprobs_are_the_models_own() -> None:
    model = ScriptedModel(random_script(20), 20)
    params = SamplingParams(
        temperature=0.7, top_k=3, presence_penalty=1.0, logprobs=2, prompt_logprobs=1, max_tokens=9, seed=1
    )
    (output,) = generate(make_engine(model, proposer="ngram", max_num_batched_tokens=17), [[1, 2, 3] * 7], params)
    sample, prompt = output.outputs[0], output.prompt_token_ids
    for i, (token, entry) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        law = torch.log_softmax(model.logits(tuple(prompt + sample.token_ids[:i])), dim=-1)
        assert entry[token].logprob == pytest.approx(float(law[token]), abs=1e-5)
        assert entry[token].rank == 1 + int((law > law[token]).sum())
        assert set(law.topk(2).indices.tolist()) <= set(entry)
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for i in range(1, len(prompt)):
        law = torch.log_softmax(model.logits(tuple(prompt[:i])), dim=-1)
        assert output.prompt_logprobs[i][prompt[i]].logprob == pytest.approx(float(law[prompt[i]]), abs=1e-5)
    assert sample.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for e, t in zip(sample.logprobs, sample.token_ids, strict=True))
    )
