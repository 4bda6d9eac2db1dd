"""Draft trees through the engine: whatever their shape, the engine says what plain decoding says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.proposers.base import ProposalInput
from specdec.types import Draft, SamplingParams
from tests.toys import ScriptedModel, generate, looping_script, make_engine, random_script, run, tokens
from tests.trees import CoupledTree, OracleTree, RandomTree, SelfTree

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4] * 9, [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [12]]


def model(salt: int = 0) -> ScriptedModel:
    return ScriptedModel(looping_script(VOCABULARY, 5, salt=salt), VOCABULARY)


def plain(params, prompts=PROMPTS):
    return generate(make_engine(model()), prompts, params)


def drafted_by(name: str, target: ScriptedModel, k: int, **options):
    proposer = {
        "oracle-tree": lambda: OracleTree(target, k // 2),
        "random-tree": lambda: RandomTree(VOCABULARY),
        "mixed": lambda: RandomTree(VOCABULARY, every=3),
        "self-tree": lambda: SelfTree(target),
    }[name]()
    return make_engine(target, proposer=name, k=k, proposers={name: proposer}, **options)


NAMES = ["oracle-tree", "random-tree", "mixed", "self-tree"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_greedy_is_plain_greedy(name: str, k: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    outputs = generate(drafted_by(name, model(), k), PROMPTS, params)
    assert tokens(outputs) == tokens(plain(params))
    assert sum(output.outputs[0].speculation.num_draft_tokens for output in outputs) > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 3, 6])
def test_coupled_has_the_same_bytes(name: str, k: int) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=11, n=2)
    assert tokens(generate(drafted_by(name, model(), k, verifier="coupled"), PROMPTS, params)) == tokens(plain(params))


@pytest.mark.parametrize("correct", range(6))
def test_coupled_follows_the_right_path_among_wrong_siblings(correct: int) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=31, seed=11, logprobs=2)
    (truth,) = plain(params, PROMPTS[:1])
    path = PROMPTS[0] + truth.outputs[0].token_ids
    target = model()
    engine = make_engine(
        target, proposer="tree", k=5, proposers={"tree": CoupledTree(target, path, correct)}, verifier="coupled"
    )
    (output,) = generate(engine, PROMPTS[:1], params)
    sample = output.outputs[0]
    assert sample.token_ids == truth.outputs[0].token_ids
    assert sample.logprobs == truth.outputs[0].logprobs
    stats = sample.speculation
    assert len(stats.accepted_per_position) == correct
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    ends = {origin for origin in sample.provenance if origin != "coupled-tree"}
    assert ("recovered" in ends) == (correct < 5)
    assert sample.provenance.count("coupled-tree") == stats.num_accepted_tokens


@settings(max_examples=30)
@given(data=st.data())
def test_trees_ignore_mates_chunks_preemption_and_hits(data: st.DataObject) -> None:
    """Any batch, budget, pool, block size and tree: a seed decides the tokens."""
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), min_size=1, max_size=5)
    )
    params = SamplingParams(temperature=data.draw(st.sampled_from([0.0, 1.0])), max_tokens=20, seed=3)
    alone = [plain(params, [prompt])[0].outputs[0].token_ids for prompt in prompts]
    block_size, max_num_seqs = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    engine = drafted_by(
        data.draw(st.sampled_from(NAMES)),
        model(),
        data.draw(st.integers(1, 6)),
        verifier="coupled",
        block_size=block_size,
        kv_cache_tokens=data.draw(st.integers(-(-40 // block_size) * block_size, 150)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=data.draw(st.integers(max(7, max_num_seqs), 40)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    for _ in range(2):
        assert [o.outputs[0].token_ids for o in generate(engine, prompts, params)] == alone


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_pool_preempts_and_nothing_changes(name: str) -> None:
    params, prompts = SamplingParams(temperature=0, max_tokens=30), [[i, i + 1, i + 2] for i in range(6)]
    engine = drafted_by(name, model(), 4, kv_cache_tokens=48, enable_prefix_caching=False)
    assert tokens(generate(engine, prompts, params)) == tokens(plain(params, prompts))
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.blocks.num_free_blocks == engine.scheduler.blocks.num_blocks


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_first_path_of_the_targets_own_tree_is_accepted_whole(temperature: float, k: int) -> None:
    target = ScriptedModel(random_script(VOCABULARY), VOCABULARY)
    engine = make_engine(target, proposer="self-tree", k=k, proposers={"self-tree": SelfTree(target)})
    params = SamplingParams(temperature=temperature, max_tokens=1 + (k + 1) * 20, seed=5)
    (output,) = generate(engine, [[1, 2, 3]], params)
    stats = output.outputs[0].speculation
    assert stats.accepted_per_position == [20] * k
    assert stats.num_draft_tokens == 2 * stats.num_accepted_tokens == 40 * k
    assert set(output.outputs[0].provenance) == {"self-tree", "bonus"}


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("name", ["random-tree", "self-tree"])
def test_sampled_trees_keep_the_targets_law(verifier: str, name: str) -> None:
    """The law of the two tokens after the first, over many samples of one prompt."""
    target = ScriptedModel(random_script(4, spread=1.0), 4)
    proposer = RandomTree(4) if name == "random-tree" else SelfTree(target)
    engine = make_engine(
        target,
        proposer=name,
        k=3,
        proposers={name: proposer},
        verifier=verifier,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
    )
    engine.add_request("r", [1, 2], SamplingParams(temperature=1.0, n=1000, max_tokens=4, seed=9))
    samples = [sample.token_ids for sample in run(engine, check=False)["r"].outputs]
    counts, law = np.zeros((4, 4)), np.zeros((4, 4))
    for sample in samples:
        counts[sample[1], sample[2]] += 1
    for first in range(4):
        for second in range(4):
            for third in range(4):
                path, prob = (first, second, third), 1.0
                for i, token in enumerate(path):
                    prob *= float(torch.softmax(target.logits((1, 2, *path[:i])), dim=-1)[token])
                law[second, third] += prob
    statistic = ((counts - 1000 * law) ** 2 / (1000 * law)).sum()
    assert statistic < 45  # chi-square with 15 degrees of freedom: once in 13,000


@pytest.mark.parametrize("name", ["oracle-tree", "random-tree", "self-tree"])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_kv_after_a_tree_is_that_of_plain_decoding(name: str, block_size: int) -> None:
    """The scripted model's KV holds the tokens themselves."""
    engine = drafted_by(name, model(), 4, block_size=block_size)
    engine.add_request("r", PROMPTS[2], SamplingParams(temperature=0, max_tokens=50))
    checked = 0
    while engine.has_unfinished_requests():
        engine.step()
        for sequence in engine.scheduler.running:
            slots = [
                sequence.block_table[p // block_size] * block_size + p % block_size
                for p in range(sequence.num_computed_tokens)
            ]
            cached = engine.runner.kv.read(0, torch.tensor(slots))[0].flatten().tolist()
            assert cached == sequence.token_ids[: len(cached)]
            checked += 1
    assert checked > 5


def test_without_the_move_the_cache_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = drafted_by("oracle-tree", model(), 4)
    params = SamplingParams(temperature=0, max_tokens=40)
    monkeypatch.setattr(engine.runner, "keep_paths", lambda schedule, verdicts: None)
    assert tokens(generate(engine, PROMPTS, params)) != tokens(plain(params))


def test_chains_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = model()
    engine = make_engine(target, proposer="ngram", k=4)
    monkeypatch.setattr(engine.runner.kv, "move", None)
    generate(engine, PROMPTS, SamplingParams(temperature=0, max_tokens=30))


def test_an_interrupt_while_kv_is_moved_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    engine = drafted_by("oracle-tree", model(), 4)
    move, interrupts = engine.runner.kv.move, iter([True, True])

    def move_or_not(slots_from, slots_to, kernels):
        move(slots_from, slots_to, kernels)
        if next(interrupts, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(engine.runner.kv, "move", move_or_not)
    engine.add_request("r", PROMPTS[2], params)
    finished = {}
    while engine.has_unfinished_requests():
        try:
            finished.update((output.request_id, output) for output in engine.step() if output.finished)
        except KeyboardInterrupt:
            engine.scheduler.check_integrity()
    assert next(interrupts, None) is None
    assert tokens([finished["r"]]) == tokens(plain(params, PROMPTS[2:3]))


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_limits_are_counted_in_depth(max_tokens: int) -> None:
    """A tree may hold more nodes than tokens are left, and never a deeper path than could be kept."""
    target = model()
    depths = []

    class Watched(OracleTree):
        def propose(self, sequences, inp: ProposalInput) -> list[Draft]:
            drafts = super().propose(sequences, inp)
            depths.extend(draft.depth for draft in drafts)
            assert [draft.depth for draft in drafts] == list(inp.lengths)
            return drafts

    engine = make_engine(target, proposer="tree", k=5, proposers={"tree": Watched(target, 5)})
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    (output,) = generate(engine, PROMPTS[:1], params)
    assert output.outputs[0].token_ids == plain(params, PROMPTS[:1])[0].outputs[0].token_ids
    assert output.outputs[0].speculation.num_accepted_tokens == sum(depths)


def test_an_end_inside_a_path_cuts_and_counts_there() -> None:
    target = ScriptedModel(random_script(40), 40)
    truth = generate(make_engine(target), [[1, 2]], SamplingParams(temperature=0, max_tokens=9))[0].outputs[0]
    for i, token in enumerate(truth.token_ids):
        if token in truth.token_ids[:i]:
            continue
        engine = make_engine(target, proposer="tree", k=4, proposers={"tree": OracleTree(target, 4)}, eos=[token])
        sample = generate(engine, [[1, 2]], SamplingParams(temperature=0, max_tokens=9))[0].outputs[0]
        assert sample.token_ids == truth.token_ids[: i + 1]
        stats = sample.speculation
        assert stats.num_accepted_tokens == sample.provenance.count("oracle-tree")
        assert sum(stats.accepted_per_position) == stats.num_accepted_tokens


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft((1, 2), (-1, 1)), "the parent of draft node 1 must be -1 or an earlier node; got 1"),
        (Draft((1, 2), (0, -1)), "the parent of draft node 0"),
        (Draft((1, 2), (-1, -2)), "got -2"),
        (Draft((1, 2), (-1, True)), "got True"),
        (Draft((1, 2), (-1,)), "a draft of 2 tokens and 1 parents"),
        (Draft((1, 2, 3, 4, 5), (-1, 0, 1, 2, 3)), "a draft of 5 tokens where at most"),
        (Draft((1,) * 65, (-1,) * 65), "a draft of 65 nodes where at most 64"),
        (Draft((1, 13), (-1, -1)), "outside the vocabulary"),
        (Draft((1, 2), (-1, -1), torch.zeros(1, 13)), "draft_probs of shape"),
    ],
)
def test_malformed_trees_cost_the_draft_and_nothing_else(draft: Draft, message: str) -> None:
    class Malformed(RandomTree):
        def propose(self, sequences, inp: ProposalInput) -> list[Draft]:
            return [replace(draft, proposer="bad")] * len(sequences)

    engine = make_engine(model(), proposer="bad", k=4, proposers={"bad": Malformed(VOCABULARY)})
    params = SamplingParams(temperature=0, max_tokens=6)
    with pytest.warns(UserWarning, match=message):
        outputs = generate(engine, PROMPTS[:1], params)
    assert tokens(outputs) == tokens(plain(params, PROMPTS[:1]))


def test_64_nodes_are_verified() -> None:
    target = model()

    whole = Draft(tuple(range(13)) * 4 + (0,) * 12, (*[-1] * 13, *range(51)))

    class Wide(RandomTree):
        def propose(self, sequences, inp: ProposalInput) -> list[Draft]:
            return [whole.limited(length) for length in inp.lengths]

    engine = make_engine(target, proposer="wide", k=9, proposers={"wide": Wide(VOCABULARY)}, max_num_batched_tokens=100)
    params = SamplingParams(temperature=0, max_tokens=30)
    outputs = generate(engine, PROMPTS[:1], params)
    assert tokens(outputs) == tokens(plain(params, PROMPTS[:1]))
    assert outputs[0].outputs[0].speculation.num_draft_tokens >= 64


def exactness(verifier: str, params: SamplingParams, k: int = 3) -> str:
    engine = drafted_by("random-tree", model(), k, verifier=verifier)
    return generate(engine, PROMPTS[:1], params)[0].exactness


def test_outputs_say_how_exact_they_are() -> None:
    sampled, greedy = SamplingParams(temperature=1.0, max_tokens=3), SamplingParams(temperature=0, max_tokens=3)
    levels = {name: exactness(name, sampled) for name in ("auto", "rejection", "block", "coupled", "typical")}
    assert levels == {
        "auto": "distribution",
        "rejection": "distribution",
        "block": "distribution",
        "coupled": "bytes",
        "typical": "lossy",
    }
    assert {exactness(name, greedy) for name in (*levels, "greedy")} == {"bytes"}
    assert exactness("typical", sampled, k=0) == "bytes"


def test_typical_accepts_more_and_is_only_used_by_name() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=60, seed=4)
    counts = {}
    for verifier in ("auto", "typical"):
        engine = drafted_by("oracle-tree", model(), 4, verifier=verifier)
        (output,) = generate(engine, PROMPTS[:1], params)
        counts[verifier] = output.outputs[0].speculation.mean_acceptance_length
    assert counts["typical"] > counts["auto"]
