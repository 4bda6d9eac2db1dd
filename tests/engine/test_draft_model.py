"""A model drafts from KV of its own. Every fault of that KV shows: a draft that is the target is accepted whole."""

import warnings

import pytest
import torch

from specdec.proposers.base import ProposalInput
from specdec.proposers.draft_model import DraftModelProposer
from specdec.types import SamplingParams, SpeculationParams
from tests.toys import ScriptedModel, generate, looping_script, make_engine, random_script, run, tokens

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12]]
LAYERS = {"num_draft_layers": 1}
"""The draft model itself is given."""


def script_model(salt: int = 0, **options) -> ScriptedModel:
    """Logits that depend on the last 30 tokens: wrong KV anywhere near gives another draft."""
    return ScriptedModel(random_script(VOCABULARY, salt=salt, order=30), VOCABULARY, **options)


def drafting(target: ScriptedModel, draft: ScriptedModel, k: int = 3, **options):
    settings = options.pop("settings", LAYERS)
    return make_engine(target, proposer="draft", k=k, settings=settings, draft_model=draft, **options)


def rejected(outputs) -> int:
    """Drafted tokens that were not accepted; there must have been drafts."""
    stats = [sample.speculation for output in outputs for sample in output.outputs]
    assert sum(each.num_draft_tokens for each in stats) > 0
    return sum(each.num_draft_tokens - each.num_accepted_tokens for each in stats)


def check_draft_kv(engine) -> None:
    """The draft's KV of what counts as computed holds these tokens, in a scripted model's way."""
    kv = engine.runner.proposers["draft"].kv
    for sequence in engine.scheduler.running:
        count = min(sequence.num_draft_computed_tokens, sequence.num_tokens)
        entries = kv.keys[0][torch.tensor(sequence.block_table, dtype=torch.int64)].flatten()[:count]
        assert entries.tolist() == sequence.token_ids[:count]
        if sequence.num_output_tokens and not sequence.num_preemptions:
            assert sequence.num_draft_computed_tokens >= sequence.num_tokens - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("budget", [8, 13, 64])
def test_the_target_as_its_own_draft_is_accepted_whole(temperature, verifier, k, budget) -> None:
    """Over 200 tokens, for prompts in chunks and whole."""
    engine = drafting(
        script_model(), script_model(), k, verifier=verifier, max_num_batched_tokens=budget, max_num_seqs=1
    )
    engine.add_request("r", [1, 2, 3] * 7, SamplingParams(temperature=temperature, max_tokens=200, seed=5))
    while engine.has_unfinished_requests():
        outputs = engine.step()
        check_draft_kv(engine)
    (output,) = outputs
    assert len(output.outputs[0].token_ids) == 200
    assert rejected([output]) == 0
    assert set(output.outputs[0].provenance) == {"draft", "bonus"}
    assert output.outputs[0].speculation.mean_acceptance_length > 1 + 0.95 * k


def test_a_prompt_is_followed_chunk_by_chunk_and_computed_once() -> None:
    draft = script_model()
    engine = drafting(script_model(), draft, 3, max_num_batched_tokens=7, max_num_seqs=1)
    generate(engine, [[1, 2, 3] * 7], SamplingParams(temperature=0, max_tokens=3))
    assert max(draft.step_sizes) <= 8
    assert draft.num_computed == 21 + 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_parameters_draft_from_the_law_that_they_give(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=5, top_p=0.9, frequency_penalty=0.7, repetition_penalty=1.2,
        presence_penalty=0.3, logit_bias={3: 2.0}, min_tokens=20, max_tokens=60, seed=3,
    )  # fmt: skip
    engine = drafting(script_model(), script_model(), 5, eos=[3])
    assert rejected(generate(engine, PROMPTS, params)) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tiny_pool_preempts_and_nothing_is_stale(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=1)
    prompts = [[i, i + 1, i + 2] for i in range(6)]
    engine = drafting(script_model(), script_model(), 4, kv_cache_tokens=48)
    outputs = generate(engine, prompts, params)
    assert engine.scheduler.num_preemptions > 0
    assert rejected(outputs) == 0
    if not temperature:
        assert tokens(outputs) == tokens(generate(make_engine(script_model()), prompts, params))


class Switched(DraftModelProposer):
    """Is not asked for drafts at some steps, or not asked at all."""

    def __init__(self, inner: DraftModelProposer, skip: bool) -> None:
        self.inner, self.skip, self.calls = inner, skip, 0
        self.wants = inner.wants

    @property
    def kv_caches(self):
        return self.inner.kv_caches

    def propose(self, sequences, inp):
        self.calls += 1
        if 5 <= self.calls % 15 < 10:
            if self.skip:
                raise RuntimeError("not now")
            inp = ProposalInput([0] * len(inp.lengths))
        return self.inner.propose(sequences, inp)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_may_pause_and_go_on(temperature: float, skip: bool) -> None:
    """k is 3, then 0, then 3; or the proposer fails for a while."""
    engine = drafting(script_model(), script_model(), 3)
    engine.runner.proposers["draft"] = Switched(engine.runner.proposers["draft"], skip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if skip else "error")
        outputs = generate(engine, PROMPTS, SamplingParams(temperature=temperature, max_tokens=100, seed=5))
    assert rejected(outputs) == 0


@pytest.mark.parametrize("shared", range(5))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_that_share_exactly_n_blocks_and_then_differ(shared: int, temperature: float) -> None:
    common, params = [3, 1, 4, 1] * shared, SamplingParams(temperature=temperature, max_tokens=12, seed=2)
    draft = script_model()
    engine = drafting(script_model(), draft)
    for suffix in ([5, 9, 2, 6], [6, 5, 3, 5]):
        outputs = generate(engine, [[*common, *suffix]], params)
        assert rejected(outputs) == 0
    assert outputs[0].num_cached_tokens == 4 * shared


def test_requests_without_the_draft_do_not_share_its_blocks() -> None:
    """Nor does it take over theirs, for which it computed nothing."""
    engine = drafting(script_model(), script_model())
    params = SamplingParams(temperature=0, max_tokens=12)
    jobs = [("none", 0), ("draft", 0), ("none", 16), ("draft", 16)]
    for i, (proposer, cached) in enumerate(jobs):
        engine.add_request(str(i), [5] * 17, params, speculation=SpeculationParams(proposer))
        output = run(engine)[str(i)]
        assert output.num_cached_tokens == cached
        assert proposer == "none" or rejected([output]) == 0


@pytest.mark.parametrize("caching", [False, True])
def test_parallel_samples_compute_their_prompt_once(caching: bool) -> None:
    target, draft = script_model(), script_model()
    engine = drafting(target, draft, enable_prefix_caching=caching)
    outputs = generate(engine, [[1] * 30], SamplingParams(temperature=1.0, n=4, max_tokens=12, seed=2))
    assert rejected(outputs) == 0
    assert len({tuple(sample.token_ids) for sample in outputs[0].outputs}) == 4
    assert draft.num_computed < 30 + 4 * (12 + 8)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_whatever_drafts_the_tokens_are_those_of_plain_decoding(k: int, method: str) -> None:
    target, other = (ScriptedModel(looping_script(VOCABULARY, 5, salt=s), VOCABULARY) for s in (0, 1))
    for params in (
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=1.0, max_tokens=40, seed=4, n=2),
    ):
        plain = tokens(generate(make_engine(target), PROMPTS, params))
        settings = {**LAYERS, "draft_sample_method": method}
        engine = drafting(target, other, k, settings=settings, verifier="coupled", kv_cache_tokens=120)
        outputs = generate(engine, PROMPTS, params)
        assert tokens(outputs) == plain
        assert rejected(outputs) > 0


def test_a_draft_never_right_is_never_accepted() -> None:
    target = script_model()
    contrary = ScriptedModel(lambda prefix: [-10 * float(x) for x in target.logits(prefix)], VOCABULARY)
    params = SamplingParams(temperature=0, max_tokens=30)
    outputs = generate(drafting(target, contrary), PROMPTS, params)
    assert tokens(outputs) == tokens(generate(make_engine(target), PROMPTS, params))
    assert sum(o.outputs[0].speculation.num_accepted_tokens for o in outputs) == 0


def test_a_draft_with_a_shorter_limit_stops_there_and_says_it_once() -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    draft = script_model(max_model_len=32)
    engine = drafting(script_model(max_model_len=128), draft)
    prompts = [[1, 2, 3], [4] * 60, [7] * 31]
    with pytest.warns(UserWarning, match="the draft model takes at most 32 tokens") as caught:
        outputs = generate(engine, prompts, params)
    assert len(caught) == 1
    assert tokens(outputs) == tokens(generate(make_engine(script_model(max_model_len=128)), prompts, params))
    assert rejected(outputs) == 0
    assert [o.outputs[0].speculation.num_drafts > 0 for o in outputs] == [True, False, True]
    assert max(len(prefix) for prefix in draft._known) == 32
    assert generate(engine, [[4] * 60], params)[0].num_cached_tokens == 56


@pytest.mark.parametrize("size", [9, 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_another_size_is_cut_or_masked(size: int, temperature: float) -> None:
    target, draft = script_model(), ScriptedModel(random_script(size, order=30), size)
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=3)
    outputs = generate(drafting(target, draft), PROMPTS, params)
    assert (rejected(outputs) == 0) == (size > VOCABULARY)  # the longer script begins like the target's
    if not temperature:
        assert tokens(outputs) == tokens(generate(make_engine(target), PROMPTS, params))


def test_a_draft_whose_logits_are_no_numbers_drafts_nothing() -> None:
    broken = ScriptedModel(lambda prefix: [float("nan")] * VOCABULARY, VOCABULARY)
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    target = script_model()
    outputs = generate(drafting(target, broken), PROMPTS, params)
    assert tokens(outputs) == tokens(generate(make_engine(target), PROMPTS, params))
    assert all(not o.outputs[0].speculation.num_drafts for o in outputs)


BREADTH = {**LAYERS, "tree": "breadth", "tree_nodes": 14, "tree_width": 2}
CONFIDENCE = {**LAYERS, "tree": "confidence", "tree_nodes": 7, "tree_width": 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("budget", [20, 64])
def test_a_tree_of_the_targets_own_is_accepted_to_its_full_depth(temperature, verifier, budget) -> None:
    """Each time along its first children, whose KV stays, moved to where plain decoding would have put it."""
    draft = script_model()
    engine = drafting(
        script_model(), draft, 3, settings=BREADTH, verifier=verifier, max_num_batched_tokens=budget, max_num_seqs=1
    )
    engine.add_request("r", [1, 2, 3] * 7, SamplingParams(temperature=temperature, max_tokens=121, seed=5))
    while engine.has_unfinished_requests():
        outputs = engine.step()
        check_draft_kv(engine)
    stats = outputs[0].outputs[0].speculation
    assert stats.num_accepted_tokens == 3 * stats.num_drafts
    assert stats.num_draft_tokens == 14 * stats.num_drafts
    # The prompt once; of each draft its 6 nodes with children, the last accepted one, and the bonus token.
    assert draft.num_computed <= 22 + 8 * stats.num_drafts + 8


@pytest.mark.parametrize("settings", [BREADTH, CONFIDENCE])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_of_another_model_change_nothing_and_leave_no_stale_kv(settings, temperature) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=2, frequency_penalty=0.5)
    engine = drafting(script_model(), script_model(7), 4, settings=settings, verifier="coupled", kv_cache_tokens=72)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(f"r{i}", prompt, params)
    finished = {}
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_integrity()
        check_draft_kv(engine)
    assert engine.scheduler.num_preemptions > 0
    outputs = [finished[f"r{i}"] for i in range(len(PROMPTS))]
    assert rejected(outputs) > 0
    plain = generate(make_engine(script_model()), PROMPTS, params)
    assert tokens(outputs) == tokens(plain)


def test_confidence_ranked_trees_hold_the_likeliest_paths() -> None:
    """What is submitted are the seven likeliest nodes of all that was looked at."""
    draft = script_model()
    engine = drafting(script_model(), draft, 3, settings=CONFIDENCE)
    engine.add_request("r", [1, 2, 3], SamplingParams(temperature=0, max_tokens=9))
    engine.step()
    (sequence,) = engine.scheduler.running
    guess = sequence.draft
    assert len(guess) == 7

    def confidence(path: tuple[int, ...]) -> float:
        prefix, total = tuple(sequence.token_ids), 0.0
        for token in path:
            total += float(draft.logits(prefix).log_softmax(-1)[token])
            prefix = (*prefix, token)
        return total

    def path(node: int) -> tuple[int, ...]:
        assert guess.parents is not None
        return () if node < 0 else (*path(guess.parents[node]), guess.token_ids[node])

    submitted = {path(node) for node in range(7)}
    weakest = min(confidence(each) for each in submitted)
    level = [()]
    for _ in range(3):  # three levels, the three likeliest of each with their three likeliest children
        children = [sorted((*above, t) for t in range(VOCABULARY)) for above in level]
        seen = [each for own in children for each in sorted(own, key=confidence)[-3:]]
        assert all(each in submitted for each in seen if confidence(each) > weakest)
        level = sorted(seen, key=confidence)[-3:]
