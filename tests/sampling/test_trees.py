"""Trees under every verifier: exact laws, draws through `verify`, walks; wrong rules must fail."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import specdec.sampling.block as block
import specdec.sampling.rejection as rejection
from specdec.kernels import reference
from specdec.sampling import trees as production
from specdec.sampling.emission import law, residual
from specdec.sampling.process import SamplingRow
from specdec.sampling.rng import NoiseKey, Stream, gumbel, gumbel_argmax, uniform
from specdec.sampling.trees import Trial, drawn_children, fixed_children
from specdec.sampling.verify import verify
from specdec.types import Draft, SamplingParams, Verdict
from tests.sampling.enumeration import (
    SAMPLED,
    Prefix,
    Table,
    Trials,
    drawn_trees,
    enumerate_tree,
    fixed_trees,
    optimal_transport_bound,
    random_table,
    table_of_laws,
    total_variation,
    tree_paths,
)
from tests.sampling.helpers import CPU, fingerprint, process, sampling_row, scripted_rows
from tests.sampling.test_chi_square import DRAWS, LEAST_P, WRONG_DRAWS, joint_counts, p_value

EXACT = 1e-12
GREEDY = SamplingParams(temperature=0)
SHAPES = [(-1,), (-1, -1), (-1, -1, -1), (-1, -1, 0), (-1, 0, -1, 2), (-1, -1, 0, 0), (-1, -1, 1, 1)]


def _depth(shape: tuple[int, ...]) -> int:
    return Draft((0,) * len(shape), shape).depth


def _tables(shape: tuple[int, ...], count: int) -> list[Table]:
    """Tables whose draft laws leave enough possible tokens to draw siblings from."""
    tables = (random_table(seed, _depth(shape), vocab_size=4) for seed in range(10 * count))
    return [t for t in tables if min(int((law > 0).sum()) for law in t.draft_probs.values()) >= 3][:count]


@pytest.mark.parametrize("shape", SHAPES)
def test_fixed_children_leave_the_targets_law_and_are_accepted_with_their_mass(shape: tuple[int, ...]) -> None:
    for table in _tables(shape, 10):
        for tree in fixed_trees(4, shape)[::3]:
            outcome = enumerate_tree(table, shape, {tree: 1.0}, drawn=False)
            assert np.abs(outcome.joint - table.continuation(())).max() < EXACT
            roots = tuple(t for t, parent in zip(tree, shape, strict=True) if parent < 0)
            mass = sum(table.target_probs(())[t] for t in roots)
            assert abs(outcome.accepted[1:].sum() - mass) < EXACT
            assert abs(mass - optimal_transport_bound(table.target_probs(()), {roots: 1.0})) < EXACT


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_children_leave_the_targets_law_and_stay_below_optimal_transport(shape: tuple[int, ...]) -> None:
    for table in _tables(shape, 20):
        drafts = drawn_trees(table, shape)
        assert abs(sum(drafts.values()) - 1) < EXACT
        outcome = enumerate_tree(table, shape, drafts, drawn=True)
        assert np.abs(outcome.joint - table.continuation(())).max() < EXACT
        sets: dict[Prefix, float] = {}
        for tree, weight in drafts.items():
            roots = tuple(t for t, parent in zip(tree, shape, strict=True) if parent < 0)
            sets[roots] = sets.get(roots, 0.0) + weight
        overlap = 1 - total_variation(table.target_probs(()), table.draft_probs[()].numpy())
        accepted = outcome.accepted[1:].sum()
        assert overlap - EXACT <= accepted <= optimal_transport_bound(table.target_probs(()), sets) + EXACT
        if shape.count(-1) == 1:
            assert abs(accepted - overlap) < EXACT


def test_the_target_as_its_own_draft_keeps_every_first_child() -> None:
    shape = (-1, -1, 0, 0)
    for table in _tables(shape, 10):
        own = {prefix: torch.softmax(logits, dim=-1) for prefix, logits in table.target_logits.items()}
        if min(int((probs > 0).sum()) for probs in own.values()) < 4:
            continue
        selfish = Table(4, 2, table.target_logits, own)
        assert enumerate_tree(selfish, shape, drawn_trees(selfish, shape), drawn=True).accepted[2] > 1 - EXACT


def without_renormalising(
    target: torch.Tensor, token_ids: Sequence[int], draft_probs: torch.Tensor | None
) -> Iterator[Trial]:
    """Each fixed child is judged by the target's own probability, whatever was rejected before."""
    rest = target.clone()
    for token in token_ids:
        rest[token] = 0.0
        yield target[token].item(), rest / rest.sum()


def stale_draft_law(target: torch.Tensor, token_ids: Sequence[int], draft_probs: torch.Tensor) -> Iterator[Trial]:
    """The draft law keeps the siblings that were drawn from it before."""
    for token, draft in zip(token_ids, draft_probs, strict=True):
        chance = min(1.0, (target[token] / draft[token]).item())
        target = residual(target, draft)
        target = target / target.sum()
        yield chance, target


def draft_law_not_renormalised(
    target: torch.Tensor, token_ids: Sequence[int], draft_probs: torch.Tensor
) -> Iterator[Trial]:
    """Earlier siblings leave the draft law, and a hole in its mass."""
    for i, token in enumerate(token_ids):
        draft = draft_probs[i].clone()
        draft[list(token_ids[:i])] = 0.0
        chance = min(1.0, (target[token] / draft[token]).item())
        target = residual(target, draft)
        target = target / target.sum()
        yield chance, target


def _deviations(shape: tuple[int, ...], trials: Trials, *, drawn: bool) -> list[float]:
    found = []
    for table in _tables(shape, 30):
        drafts = drawn_trees(table, shape) if drawn else {fixed_trees(4, shape)[5]: 1.0}
        outcome = enumerate_tree(table, shape, drafts, drawn=drawn, trials=trials)
        found.append(float(np.abs(outcome.joint - table.continuation(())).max()))
    return found


@pytest.mark.parametrize("shape", [(-1, -1), (-1, -1, 0, 0)])
def test_wrong_rules_do_not_have_the_targets_law(shape: tuple[int, ...]) -> None:
    assert np.quantile(_deviations(shape, without_renormalising, drawn=False), 0.9) > 1e-3
    assert np.quantile(_deviations(shape, stale_draft_law, drawn=True), 0.9) > 1e-3
    assert np.quantile(_deviations(shape, draft_law_not_renormalised, drawn=True), 0.9) > 1e-3


def test_most_likely_children_under_the_rule_for_drawn_ones_are_not_lossless() -> None:
    deviations = []
    for table in _tables((-1, -1), 30):
        likeliest = tuple(table.draft_probs[()].topk(2).indices.tolist())
        fixed = enumerate_tree(table, (-1, -1), {likeliest: 1.0}, drawn=False)
        as_drawn = enumerate_tree(table, (-1, -1), {likeliest: 1.0}, drawn=True)
        assert np.abs(fixed.joint - table.continuation(())).max() < EXACT
        deviations.append(np.abs(as_drawn.joint - table.continuation(())).max())
    assert np.median(deviations) > 1e-2


def test_a_child_that_cannot_have_been_drawn_is_passed_over() -> None:
    target, draft = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.0, 1.0, 0.0]).double()
    (first, left), (second, rest) = drawn_children(target, [0, 1], draft.repeat(2, 1))
    assert (first, second) == (0.0, pytest.approx(0.3))
    assert torch.equal(left, target)
    assert torch.allclose(rest, torch.tensor([5 / 7, 0, 2 / 7]).double())


def test_a_repeated_child_is_never_kept_twice() -> None:
    target = torch.tensor([0.5, 0.3, 0.2]).double()
    assert [chance for chance, _ in fixed_children(target, [0, 0, 1])] == [0.5, 0.0, pytest.approx(0.6)]


SHAPE = (-1, -1, 0, 0)


def _row(table: Table, tree: Prefix, seed: int, *, drawn: bool) -> SamplingRow:
    probs = torch.stack([table.draft_probs[path] for path in tree_paths(SHAPE, tree)]) if drawn else None
    return sampling_row(SAMPLED, draft=Draft(tree, SHAPE, probs), seed=seed)


def _batch(table: Table, draws: int, *, drawn: bool) -> tuple[torch.Tensor, list[SamplingRow]]:
    """One sequence a seed, each with a tree: drawn from the table, or one of all in turn."""
    laws = drawn_trees(table, SHAPE) if drawn else dict.fromkeys(fixed_trees(table.vocab_size, SHAPE), 1.0)
    listed, weights = list(laws), np.array(list(laws.values()))
    chosen = np.random.default_rng(5).choice(len(listed), draws, p=weights / weights.sum())
    drafts = [_row(table, tree, 0, drawn=drawn).draft for tree in listed]
    rows = [sampling_row(SAMPLED, draft=drafts[i], seed=seed) for seed, i in enumerate(chosen)]
    blocks = [torch.stack([table.target_logits[path] for path in _row(table, t, 0, drawn=drawn).paths]) for t in listed]
    return torch.cat([blocks[i] for i in chosen]), rows


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("verifier", ["rejection", "block", "coupled"])
def test_joint_law_of_draws(verifier: str, drawn: bool) -> None:
    table = random_table(4, 2)
    draws = DRAWS if verifier == "rejection" else WRONG_DRAWS
    logits, rows = _batch(table, draws, drawn=drawn)
    before = fingerprint(logits)
    verdicts = verify(logits, rows, verifier, reference)
    assert fingerprint(logits) == before
    assert p_value(joint_counts(table, verdicts), table.continuation(())) > LEAST_P
    if verifier == "rejection" and drawn:
        lengths = np.bincount([verdict.num_accepted for verdict in verdicts], minlength=3)
        assert p_value(lengths, enumerate_tree(table, SHAPE, drawn_trees(table, SHAPE), drawn=True).accepted) > LEAST_P


def test_wrong_rules_fail_on_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(4, 2)
    fixed, drawn = _batch(table, WRONG_DRAWS, drawn=False), _batch(table, WRONG_DRAWS, drawn=True)
    monkeypatch.setattr(production, "fixed_children", lambda target, ids: without_renormalising(target, ids, None))
    monkeypatch.setattr(production, "drawn_children", stale_draft_law)
    for batch in (fixed, drawn):
        counts = joint_counts(table, verify(*batch, "rejection", reference))
        assert p_value(counts, table.continuation(())) < 1e-12


def test_one_coin_for_all_siblings_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of_laws([0.4, 0.35, 0.25], [0.3, 0.3, 0.4], num_draft_tokens=2)
    batch = _batch(table, WRONG_DRAWS, drawn=False)
    monkeypatch.setattr(production, "uniform", lambda *key: uniform(*key[:4]))
    counts = joint_counts(table, verify(*batch, "rejection", reference))
    assert p_value(counts, table.continuation(())) < 1e-6


VOCAB, LENGTH = 7, 14


def _random_tree(generator: random.Random, truth: Sequence[int] = ()) -> Draft:
    """Up to ten nodes anywhere, siblings distinct, some of them on the true path."""
    parents: list[int] = []
    token_ids: list[int] = []
    depths: list[int] = []
    for node in range(generator.randint(0, 10)):
        parent = generator.randint(-1, node - 1)
        depth = 0 if parent < 0 else depths[parent] + 1
        token = generator.randrange(VOCAB)
        if depth < len(truth) and generator.random() < 0.6:
            token = truth[depth]
        taken = {token_ids[i] for i in range(node) if parents[i] == parent}
        if len(taken) == VOCAB:
            continue
        while token in taken:
            token = (token + 1) % VOCAB
        if len(token_ids) != node:
            break
        parents.append(parent)
        token_ids.append(token)
        depths.append(depth)
    return Draft(tuple(token_ids), tuple(parents))


def _verify(row: SamplingRow, verifier: str) -> Verdict:
    return verify(process(scripted_rows(row, VOCAB), [row]), [row], verifier, reference)[0]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=0.5)])
def test_the_bytes_do_not_depend_on_the_tree(params: SamplingParams) -> None:
    longest = 0
    for seed in range(30):
        truth = [1, 2]
        while len(truth) < LENGTH:
            truth += _verify(sampling_row(params, truth, 2, seed=seed), "coupled").token_ids
        token_ids, generator = [1, 2], random.Random(seed)
        while len(token_ids) < LENGTH:
            tree = _random_tree(generator, truth[len(token_ids) :])
            verdict = _verify(sampling_row(params, token_ids, 2, tree, seed=seed), "coupled")
            assert [tree.token_ids[node] for node in verdict.accepted_path] == list(verdict.token_ids[:-1])
            longest = max(longest, verdict.num_accepted)
            token_ids += verdict.token_ids
        assert token_ids[:LENGTH] == truth
    assert longest >= 3


@given(st.integers(0, 2**32), st.sampled_from(["rejection", "coupled", "typical", "block"]), st.booleans())
def test_a_tree_that_is_a_chain_is_verified_as_the_chain(seed: int, verifier: str, drawn: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    k = seed % 5
    probs = torch.softmax(torch.randn(k, VOCAB, generator=generator, dtype=torch.float64), dim=-1)
    token_ids = tuple(probs.multinomial(1, generator=generator)[:, 0].tolist()) if k else ()
    logits = torch.randn(k + 1, VOCAB, generator=generator)
    chain = Draft(token_ids, None, probs if drawn else None)
    path = Draft(token_ids, tuple(range(-1, k - 1)), chain.draft_probs)
    rows = [sampling_row(SAMPLED, (1, 2), 1, draft, seed=seed) for draft in (chain, path)]
    one, other = (verify(logits, [row], verifier, reference)[0] for row in rows)
    if verifier == "block" and drawn:
        one = verify(logits, rows[:1], "rejection", reference)[0]
    assert one == other


@given(st.integers(0, 2**32), st.sampled_from(["rejection", "coupled", "typical", "block"]))
def test_chains_and_trees_share_a_batch(seed: int, verifier: str) -> None:
    generator = random.Random(seed)
    rows = []
    for i in range(6):
        draft = _random_tree(generator) if i % 2 else Draft(tuple(generator.randrange(VOCAB) for _ in range(i)))
        if i in (2, 3):
            probs = torch.full((len(draft), VOCAB), 1 / VOCAB, dtype=torch.float64)
            draft = Draft(draft.token_ids, draft.parents, probs)
        rows.append(sampling_row(SAMPLED if i else GREEDY, (1, i), 1, draft, seed=seed + i))
    logits = torch.cat([scripted_rows(row, VOCAB) for row in rows])
    together = verify(logits, rows, verifier, reference)
    assert together == [verify(scripted_rows(row, VOCAB), [row], verifier, reference)[0] for row in rows]
    for row, verdict in zip(rows, together, strict=True):
        paths = row.paths
        end = verdict.accepted_path[-1] + 1 if verdict.accepted_path else 0
        assert paths[end] == verdict.token_ids[:-1]


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_no_coin_is_tossed_twice(verifier: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tossed: list[tuple] = []

    def toss(*key: int) -> float:
        tossed.append((*key, 0)[:5])
        return uniform(*key)  # type: ignore[arg-type]

    for module in (production, block, rejection):
        monkeypatch.setattr(module, "uniform", toss)
    generator = random.Random(4)
    for seed in range(20):
        token_ids, tossed[:] = [1, 2], []
        while len(token_ids) < 60:
            chain = Draft(tuple(generator.randrange(VOCAB) for _ in range(1 + seed % 6)))
            draft = _random_tree(generator) if shape == "tree" else chain
            probs = torch.full((len(draft), VOCAB), 1 / VOCAB, dtype=torch.float64) if seed % 2 else None
            row = sampling_row(SAMPLED, token_ids, 2, Draft(draft.token_ids, draft.parents, probs), seed=seed)
            token_ids += _verify(row, verifier).token_ids
        assert len(set(tossed)) == len(tossed) > 10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("verifier", ["rejection", "coupled", "typical"])
def test_a_bad_row_of_a_tree_counts_only_if_it_is_reached(value: float, verifier: str) -> None:
    logits = torch.full((4, VOCAB), float("-inf"))
    logits[0, 5], logits[1:] = 0.0, value
    for params in (SAMPLED, GREEDY):
        row = sampling_row(params, draft=Draft((0, 5, 1), (-1, -1, 1)))
        (verdict,) = verify(logits, [row], verifier, reference)
        assert (verdict.token_ids, verdict.accepted_path) == ((5,), (1,))
        assert "position 2" in (verdict.error or "")
        (verdict,) = verify(logits, [sampling_row(params, draft=Draft((0, 1, 2), (-1, -1, 1)))], verifier, reference)
        assert verdict == Verdict((5,))


def test_children_drawn_with_the_targets_noise_hold_its_choice_more_often_than_recursive_rejection() -> None:
    """64 tokens, four children: the coupled draft's top four of log draft + noise."""
    rng = np.random.default_rng(0)
    coupled, recursive = [], []
    for trial in range(200):
        logits = rng.normal(scale=1.5, size=64)
        target = law(torch.tensor(logits))
        draft = law(torch.tensor(logits + rng.normal(scale=0.7, size=64)))
        keys = [NoiseKey(trial, 0, position) for position in range(50)]
        shared, own = (gumbel(keys, stream, 64, CPU) for stream in (Stream.RESAMPLE, Stream.DRAFT))
        choices = gumbel_argmax(target.log().expand(50, -1), keys, Stream.RESAMPLE, reference)[0]
        tops = (draft.log() + shared).topk(4).indices
        coupled.append((tops == choices[:, None]).any(dim=-1).double().mean().item())
        children = (draft.log() + own).topk(4).indices[0].tolist()  # the same as drawing without replacement
        rejected = np.prod([1 - chance for chance, _ in drawn_children(target, children, draft.repeat(4, 1))])
        recursive.append(1 - rejected)
    assert np.mean(coupled) > np.mean(recursive) + 0.01
