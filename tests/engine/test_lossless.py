"""Speculation changes nothing: whatever is drafted, the engine says what plain decoding says."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.types import Draft, SamplingParams
from tests.toys import (
    EOS,
    OracleProposer,
    RandomProposer,
    ScriptedModel,
    SelfProposer,
    byte_tokenizer,
    generate,
    looping_script,
    make_engine,
    random_script,
    tokens,
)
from tests.trees import OracleTree, RandomTree

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12]]


def model(salt: int = 0) -> ScriptedModel:
    return ScriptedModel(looping_script(VOCABULARY, 5, salt=salt), VOCABULARY)


def plain(params, prompts=PROMPTS, target=None, **options):
    return generate(make_engine(target or model(), **options), prompts, params)


def drafted_by(name: str, target: ScriptedModel, k: int, **options):
    """An engine whose only proposer is the one named."""
    proposer = {
        "random": lambda: RandomProposer(VOCABULARY),
        "self": lambda: SelfProposer(target),
        "oracle": lambda: OracleProposer(target, k // 2),
    }
    given = {name: proposer[name]()} if name in proposer else {}
    return make_engine(target, proposer=name, k=k, proposers=given, **options)


@pytest.mark.parametrize("proposer", ["ngram", "suffix", "random", "self", "oracle"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_greedy_is_plain_greedy(proposer: str, k: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    target = model()
    assert tokens(generate(drafted_by(proposer, target, k), PROMPTS, params)) == tokens(plain(params))


@pytest.mark.parametrize("proposer", ["ngram", "suffix", "random", "self"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_coupled_has_the_same_bytes(proposer: str, k: int) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=11, n=2)
    target = model()
    drafted = generate(drafted_by(proposer, target, k, verifier="coupled"), PROMPTS, params)
    assert tokens(drafted) == tokens(plain(params))


@settings(max_examples=40)
@given(data=st.data())
def test_coupled_ignores_mates_chunks_preemption_and_hits(data: st.DataObject) -> None:
    """Any batch, budget, pool, block size and proposer: a seed decides the tokens."""
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), min_size=1, max_size=5)
    )
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    alone = [plain(params, [prompt])[0].outputs[0].token_ids for prompt in prompts]
    block_size = data.draw(st.integers(1, 5))
    max_num_seqs = data.draw(st.integers(1, 4))
    target = model()
    engine = drafted_by(
        data.draw(st.sampled_from(["none", "ngram", "suffix", "random", "self"])),
        target,
        data.draw(st.integers(1, 6)),
        verifier="coupled",
        block_size=block_size,
        kv_cache_tokens=data.draw(st.integers(-(-40 // block_size) * block_size, 150)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=data.draw(st.integers(max(7, max_num_seqs), 40)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    first = generate(engine, prompts, params)
    again = generate(engine, prompts, params)
    assert [o.outputs[0].token_ids for o in first] == alone
    assert [o.outputs[0].token_ids for o in again] == alone


def test_a_tiny_pool_preempts_and_nothing_changes() -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    prompts = [[i, i + 1, i + 2] for i in range(6)]
    expected = tokens(plain(params, prompts))
    for proposer in ("none", "ngram", "suffix", "random", "self", "oracle"):
        engine = drafted_by(proposer, model(), 4, kv_cache_tokens=48, enable_prefix_caching=False)
        assert tokens(generate(engine, prompts, params)) == expected
        assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", ["rejection", "coupled"])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_the_target_as_its_own_draft_is_accepted_whole(temperature: float, verifier: str, k: int) -> None:
    """`coupled` keeps a draft only when both drew with the same noise, so there it is greedy's turn alone."""
    if temperature and verifier == "coupled":
        return
    target = ScriptedModel(random_script(VOCABULARY), VOCABULARY)
    engine = make_engine(target, proposer="self", k=k, proposers={"self": SelfProposer(target)}, verifier=verifier)
    params = SamplingParams(temperature=temperature, max_tokens=200, seed=5)
    (output,) = generate(engine, [[1, 2, 3]], params)
    stats = output.outputs[0].speculation
    assert len(output.outputs[0].token_ids) == 200
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    assert set(output.outputs[0].provenance) == {"self", "bonus"}


def test_past_outputs_draft_what_was_said_before_under_the_same_salt() -> None:
    """A second request for the same finds its whole answer in the tree; a salt of its own finds nothing."""
    target = ScriptedModel(random_script(200), 200)
    engine = make_engine(target, proposer="suffix", k=4)
    params = SamplingParams(temperature=0, max_tokens=60)
    accepted = []
    for number, salt in enumerate([None, None, "x", "x"]):
        engine.add_request(str(number), [1, 2, 3], params, cache_salt=salt)
        while engine.has_unfinished_requests():
            outputs = engine.step()
        accepted.append(outputs[0].outputs[0].speculation.num_accepted_tokens)
    assert accepted[0] == accepted[2] < 20
    assert accepted[1] == accepted[3] > 40


class Pulsing(SelfProposer):
    """Drafts nothing for a while, then again."""

    def propose(self, sequences, inp):
        drafts = super().propose(sequences, inp)
        return [Draft() if s.num_tokens // 10 % 2 else d for s, d in zip(sequences, drafts, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_may_pause_and_go_on(temperature: float) -> None:
    target = ScriptedModel(random_script(VOCABULARY), VOCABULARY)
    engine = make_engine(target, proposer="self", k=3, proposers={"self": Pulsing(target)})
    (output,) = generate(engine, [[1, 2, 3]], SamplingParams(temperature=temperature, max_tokens=100, seed=5))
    stats = output.outputs[0].speculation
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    assert stats.num_drafts < 25


def test_a_draft_never_right_is_never_accepted() -> None:
    target = model()
    engine = make_engine(target, proposer="anti", proposers={"anti": OracleProposer(target, 0)})
    (output,) = generate(engine, [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=30))
    assert output.outputs[0].speculation.num_accepted_tokens == 0
    assert output.outputs[0].speculation.num_draft_tokens > 0
    assert output.outputs[0].provenance == ["bonus", *["recovered"] * 28, "bonus"]


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_kv_after_rejections_is_that_of_plain_decoding(k: int) -> None:
    def cache_of(engine):
        engine.add_request("r", PROMPTS[2], SamplingParams(temperature=0, max_tokens=50))
        while len(engine.scheduler.running[0].output_token_ids if engine.scheduler.running else []) < 30:
            engine.step()
        sequence = engine.scheduler.running[0]
        slots = [
            sequence.block_table[p // engine.config.block_size] * engine.config.block_size
            + p % engine.config.block_size
            for p in range(sequence.num_computed_tokens)
        ]
        return engine.runner.kv.read(0, torch.tensor(slots))[0].flatten().tolist(), sequence.token_ids

    reference, _ = cache_of(make_engine(model()))
    target = model()
    cached, token_ids = cache_of(
        make_engine(target, proposer="oracle", k=k, proposers={"oracle": OracleProposer(target, k // 2)})
    )
    shared = min(len(reference), len(cached))
    assert cached[:shared] == reference[:shared]
    assert cached == [float(t) for t in token_ids[: len(cached)]]


VARIATIONS: dict[str, dict] = {
    "n": {"n": 3, "temperature": 0.9},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -1.5},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "temperature": {"temperature": 0.6},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "top_k": {"temperature": 1.0, "top_k": 2},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
    "seed": {"temperature": 1.0, "seed": 99},
    "stop": {"stop": ["bc", "q"]},
    "stop_token_ids": {"stop_token_ids": [100, 103]},
    "ignore_eos": {"ignore_eos": True},
    "max_tokens": {"max_tokens": 7},
    "min_tokens": {"min_tokens": 11},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "detokenize": {"detokenize": False},
    "skip_special_tokens": {"skip_special_tokens": False, "ignore_eos": True},
    "include_stop_str_in_output": {"stop": ["bc"], "include_stop_str_in_output": True},
    "logit_bias": {"logit_bias": {97: 4.0, 98: -100}},
    "allowed_token_ids": {"allowed_token_ids": [97, 98, 99, EOS]},
    "bad_words": {"bad_words": ["ab", "c"]},
}


def text_model() -> ScriptedModel:
    """A loop over the letters a to h with noise, and end-of-sequence now and then."""
    noise = random_script(258, salt=4, spread=1.0)

    def script(prefix):
        logits = noise(prefix).copy()
        logits[:97] -= 30.0
        logits[105:] -= 30.0
        logits[97 + len(prefix) % 8] += 4.0
        logits[EOS] += 30.0 + (2.0 if len(prefix) % 23 == 0 else -4.0)
        return logits

    return ScriptedModel(script, 258)


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_sampling_parameter_survives_speculation(name: str, temperature: float) -> None:
    """Plain equals speculative under a sweep of drafts that are right for exactly m tokens."""
    options = {"temperature": temperature, "seed": 7, "max_tokens": 30} | VARIATIONS[name]
    params = SamplingParams(**options)
    prompts = ["abc", "hgfedcba", "aaaa"]

    def outcome(engine):
        return [
            [(s.token_ids, s.text, s.finish_reason, s.stop_reason, rounded(s.logprobs)) for s in output.outputs]
            + [rounded(output.prompt_logprobs)]
            for output in generate(engine, prompts, params)
        ]

    options = {"tokenizer": byte_tokenizer(), "eos": [EOS], "verifier": "coupled" if params.temperature else "auto"}
    reference = outcome(make_engine(text_model(), **options))
    for correct in range(5):
        target = text_model()
        drafted = make_engine(
            target, proposer="oracle", k=4, proposers={"oracle": OracleProposer(target, correct)}, **options
        )
        assert outcome(drafted) == reference
        tree = make_engine(target, proposer="tree", k=4, proposers={"tree": OracleTree(target, correct)}, **options)
        assert outcome(tree) == reference
    for every in (1, 2):
        engine = make_engine(
            text_model(), proposer="tree", k=4, proposers={"tree": RandomTree(105, every=every)}, **options
        )
        assert outcome(engine) == reference
    assert outcome(make_engine(text_model(), proposer="ngram", k=4, **options)) == reference


def rounded(entries):
    """Log probabilities to 1e-9, so that lists of them compare."""
    if entries is None:
        return None
    return [
        None if e is None else {t: (round(v.logprob, 9), v.rank, v.decoded_token) for t, v in e.items()}
        for e in entries
    ]


def test_seeds_of_a_batch_are_those_of_solo_runs() -> None:
    params = [SamplingParams(temperature=1.0, max_tokens=20, seed=seed) for seed in range(8)]
    together = generate(make_engine(model()), [[1, 2, 3]] * 8, params)
    alone = [generate(make_engine(model()), [[1, 2, 3]], each)[0] for each in params]
    assert tokens(together) == tokens(alone)
    assert len({tuple(o.outputs[0].token_ids) for o in together}) == 8


def test_requests_without_a_seed_differ_and_repeat_with_the_engine() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20)
    first = tokens(generate(make_engine(model(), seed=1), [[1, 2]] * 2, params))
    again = tokens(generate(make_engine(model(), seed=1), [[1, 2]] * 2, params))
    other = tokens(generate(make_engine(model(), seed=2), [[1, 2]] * 2, params))
    assert first == again
    assert first[0] != first[1]
    assert first != other
