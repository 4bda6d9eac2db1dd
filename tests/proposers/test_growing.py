"""Drafts grown over a scripted law: children, their laws, and what a verifier makes of them."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest
import torch

from specdec.core.sequence import Sequence
from specdec.kernels import reference
from specdec.proposers.growing import ROOT, ConfidenceShape, FixedShape, Grower, Growth, Guesses, Shape
from specdec.proposers.shapes import TreeChoice
from specdec.sampling.process import SamplingRow
from specdec.sampling.verify import verify
from specdec.types import Draft, Request, SamplingParams
from tests.sampling.helpers import process, scripted_logits
from tests.sampling.test_chi_square import p_value

VOCABULARY = 5
DEPTH = 2
TREE = TreeChoice("breadth", 6, 2).shape(DEPTH)
CHAIN = TreeChoice().shape(DEPTH)
SAMPLED = SamplingParams(temperature=1.0)


def sample(seed: int, params: SamplingParams = SAMPLED) -> Sequence:
    return Sequence(Request("r", (1, 2), params, seed=seed, arrival=0), 0, [1, 2])


def guess(path: Many[int]) -> torch.Tensor:
    """The draft's logits after the prompt and a path."""
    return scripted_logits((7, *path), VOCABULARY)


def step(live: Many[Growth]) -> Guesses:
    return Guesses(torch.stack([guess(growth.path(node)) for growth in live for node in growth.frontier]))


def grow(
    samples: Many[Sequence],
    shape: Shape,
    verifier: str = "auto",
    *,
    samples_drafts: bool = True,
    confidence: float = 0.0,
    depth: int = DEPTH,
) -> list[Draft]:
    growths = [Growth(each, depth, frontier=[ROOT]) for each in samples]
    grower = Grower(
        "x",
        shape,
        reference,
        verifier,
        samples=samples_drafts,
        keeps_kv=True,
        confidence_threshold=confidence,
    )
    return grower.grow(growths, Guesses(guess(()).expand(len(samples), -1)), step)


def path_of(draft: Draft, node: int) -> tuple[int, ...]:
    assert draft.parents is not None
    return () if node < 0 else (*path_of(draft, draft.parents[node]), draft.token_ids[node])


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SAMPLED])
def test_likeliest_children_are_those_of_each_path(params: SamplingParams) -> None:
    (draft,) = grow([sample(0, params)], FixedShape(TREE), samples_drafts=False)
    assert draft.draft_probs is None
    assert draft.parents == TREE.parents
    for node in range(-1, 2):
        best = guess(path_of(draft, node)).topk(2).indices.tolist()
        assert [draft.token_ids[child] for child in draft.children(node)] == best


def test_a_law_with_too_few_tokens_leaves_nodes_out() -> None:
    """Top-k of 1 allows one child where the shape has two; what is left is still a tree in order."""
    (draft,) = grow([sample(0, SamplingParams(temperature=1.0, top_k=1))], FixedShape(TREE))
    first = int(guess(()).argmax())
    assert draft.token_ids == (first, int(guess((first,)).argmax()))
    assert draft.parents is None


def test_drawn_children_are_reported_with_the_law_they_were_drawn_from() -> None:
    """After temperature, top-p and penalties that count the path."""
    params = SamplingParams(temperature=0.7, top_p=0.95, presence_penalty=1.5)
    samples = [sample(seed, params) for seed in range(20)]
    for draft in grow(samples, FixedShape(TREE)):
        for node in range(len(draft)):
            parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
            path = () if parents[node] < 0 else (draft.token_ids[parents[node]],)
            row = SamplingRow(params, 0, 0, [1, 2, *path], 2)
            law = process(guess(path)[None], [row])[0].softmax(-1, dtype=torch.float64)
            torch.testing.assert_close(draft.draft_probs[node], law)
            assert law[draft.token_ids[node]] > 0


def test_siblings_are_drawn_without_replacement() -> None:
    drafts = grow([sample(seed) for seed in range(10_000)], FixedShape(TREE))
    law = guess(()).softmax(-1, dtype=torch.float64).numpy()
    expected = law[:, None] * law[None, :] / (1 - law[:, None])
    np.fill_diagonal(expected, 0)
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for draft in drafts:
        first, second = (draft.token_ids[child] for child in draft.children(ROOT))
        counts[first, second] += 1
    assert p_value(counts.ravel(), expected.ravel()) > 1e-4


@pytest.mark.parametrize(
    ("shape", "verifier", "confidence", "right"),
    [
        (FixedShape(TREE), "rejection", 0.0, True),
        (FixedShape(TREE), "coupled", 0.0, True),
        (ConfidenceShape(2, 4, DEPTH), "rejection", 0.0, True),
        (ConfidenceShape(2, 4, DEPTH), "coupled", 0.0, True),
        (FixedShape(CHAIN), "rejection", 0.2, True),
        (FixedShape(TREE), "rejection", 0.2, True),
        (FixedShape(TREE), "rejection", 0.0, False),
    ],
)
def test_what_is_kept_has_the_targets_law(shape: Shape, verifier: str, confidence: float, right: bool) -> None:
    """The joint law of the first two tokens, also where drafts may end early; a draft law that is reported with the
    temperature left out is noticed."""
    params = SamplingParams(temperature=0.6 if not right else 1.0)
    samples = [sample(seed, params) for seed in range(8_000)]
    drafts = grow(samples, shape, verifier, confidence=confidence)
    if not right:
        drafts = [untempered(draft) for draft in drafts]
    rows = [SamplingRow(params, each.request.seed, 0, [1, 2], 2, d) for each, d in zip(samples, drafts, strict=True)]
    raw = {path: scripted_logits((1, 2, *path), VOCABULARY) for path in paths(2)}
    logits = process(torch.stack([raw[path] for row in rows for path in row.paths]), rows)
    rng = np.random.default_rng(0)
    counts = np.zeros((VOCABULARY, VOCABULARY))
    laws = {path: (raw[path] / params.temperature).softmax(-1, dtype=torch.float64).numpy() for path in paths(1)}
    for verdict in verify(logits, rows, verifier, reference):
        first, *rest = verdict.token_ids
        second = rest[0] if rest else int(rng.choice(VOCABULARY, p=laws[(first,)]))
        counts[first, second] += 1
    expected = np.stack([laws[()][first] * laws[(first,)] for first in range(VOCABULARY)])
    assert (p_value(counts.ravel(), expected.ravel()) > 1e-4) == right


def untempered(draft: Draft) -> Draft:
    laws = torch.stack([guess(path_of(draft, draft.parents[node])) for node in range(len(draft))])  # type: ignore[index]
    return Draft(draft.token_ids, draft.parents, laws.softmax(-1, dtype=torch.float64), draft.proposer)


def paths(depth: int) -> list[tuple[int, ...]]:
    """Every path of at most `depth` tokens."""
    level: list[tuple[int, ...]] = [()]
    found = [*level]
    for _ in range(depth):
        level = [(*path, token) for path in level for token in range(VOCABULARY)]
        found += level
    return found


def test_coupled_children_are_what_the_targets_noise_prefers() -> None:
    """A draft that is the target holds the target's own choice at every depth, first among its siblings."""
    samples = [sample(seed) for seed in range(50)]
    drafts = grow(samples, FixedShape(TREE), "coupled")
    assert all(draft.draft_probs is None for draft in drafts)
    rows = [SamplingRow(SAMPLED, each.request.seed, 0, [1, 2], 2, d) for each, d in zip(samples, drafts, strict=True)]
    logits = torch.stack([guess(path) for row in rows for path in row.paths])
    assert {verdict.accepted_path for verdict in verify(logits, rows, "coupled", reference)} == {(0, 2)}


def test_confidence_prefers_likelier_paths_and_keeps_ancestors() -> None:
    (draft,) = grow([sample(0)], ConfidenceShape(3, 5, DEPTH))

    def confidence(path: Many[int]) -> float:
        return sum(float(guess(path[:i]).log_softmax(-1)[token]) for i, token in enumerate(path))

    top = guess(()).topk(3).indices.tolist()
    seen = [(t,) for t in top] + [(t, u) for t in top for u in guess((t,)).topk(3).indices.tolist()]
    best = sorted(seen, key=confidence, reverse=True)[:5]
    assert sorted(path_of(draft, node) for node in range(len(draft))) == sorted(best)


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SAMPLED])
def test_a_chain_goes_on_as_long_as_it_is_likely_enough(params: SamplingParams, threshold: float) -> None:
    """The definition: one token is always drafted, and another as long as the path before it is likely enough."""
    depth, lengths = 6, set()
    for draft in grow(
        [sample(seed, params) for seed in range(60)],
        FixedShape(TreeChoice().shape(depth)),
        confidence=threshold,
        depth=depth,
    ):
        path = 1.0
        for length, token in enumerate(draft.token_ids):
            assert path >= threshold
            path *= float(guess(draft.token_ids[:length]).softmax(-1, dtype=torch.float64)[token])
        assert len(draft) == depth or path < threshold
        lengths.add(len(draft))
    assert lengths != {depth}


def test_room_limits_what_is_computed() -> None:
    """A node without a slot gets no children."""
    growth = Growth(sample(0, SamplingParams(temperature=0)), DEPTH, room=1, frontier=[ROOT])
    grower = Grower("x", FixedShape(TREE), reference, "auto", samples=True, keeps_kv=True)
    (draft,) = grower.grow([growth], Guesses(guess(())[None]), step)
    assert draft.parents == (-1, -1, 0, 0)
    assert draft.num_kv_tokens == 1
