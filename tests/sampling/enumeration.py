"""Exact laws of what verification emits, on tables small enough to list every draft and every outcome.

The laws come out of the production functions (`acceptance_probs` and `emission_logits` for rejection, `prefix_chances`
and `prefix_excess` for block, `fixed_children` and `drawn_children` for trees), handed in so that deliberately wrong
ones can be enumerated too; only the loops over coins are spelled out here as products.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.kernels import Kernels, reference
from specdec.sampling import block, trees
from specdec.sampling import rejection as production
from specdec.sampling.emission import law
from specdec.sampling.process import SamplingRow, Span, lay_out
from specdec.types import Draft, SamplingParams
from tests.sampling.helpers import sampling_row

Prefix = tuple[int, ...]
AcceptanceProbs = Callable[[torch.Tensor, Sequence[Span], Kernels], list[list[float]]]
EmissionLogits = Callable[[torch.Tensor, Sequence[Span], Sequence[int]], torch.Tensor]
SAMPLED = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Table:
    """Laws at each prefix: the target's for up to k drafted tokens, the draft's for up to k - 1."""

    vocab_size: int
    num_draft_tokens: int
    target_logits: dict[Prefix, torch.Tensor]
    draft_probs: dict[Prefix, torch.Tensor]

    @property
    def drafts(self) -> list[Prefix]:
        return list(itertools.product(range(self.vocab_size), repeat=self.num_draft_tokens))

    def target_probs(self, prefix: Prefix) -> np.ndarray:
        return law(self.target_logits[prefix][None])[0].numpy()

    def draft_law(self, draft: Prefix) -> float:
        """The probability that the drafter proposes exactly `draft`."""
        return float(np.prod([self.draft_probs[draft[:i]][token] for i, token in enumerate(draft)]))

    def row(self, draft: Prefix, seed: int = 0, *, deterministic: bool = False) -> SamplingRow:
        probs = None if deterministic else torch.stack([self.draft_probs[draft[:i]] for i in range(len(draft))])
        return sampling_row(SAMPLED, draft=Draft(draft, None, probs), seed=seed)

    def logits(self, draft: Prefix) -> torch.Tensor:
        """The target's rows along a draft, [k + 1, vocab_size]."""
        return torch.stack([self.target_logits[draft[:i]] for i in range(len(draft) + 1)])

    def continuation(self, prefix: Prefix) -> np.ndarray:
        """Plain decoding's joint law of the tokens from `prefix` up to k + 1 in all: one axis a token."""
        if len(prefix) == self.num_draft_tokens + 1:
            return np.ones(())
        probs = self.target_probs(prefix)
        return np.stack([probs[t] * self.continuation((*prefix, t)) for t in range(self.vocab_size)])


def random_table(seed: int, num_draft_tokens: int, vocab_size: int = 3) -> Table:
    """Random laws; in some tables tokens are impossible under the target, the draft, or both."""
    rng = np.random.default_rng(seed)
    target: dict[Prefix, torch.Tensor] = {}
    draft: dict[Prefix, torch.Tensor] = {}
    for length in range(num_draft_tokens + 1):
        for prefix in itertools.product(range(vocab_size), repeat=length):
            logits, weights = rng.normal(scale=2.0, size=vocab_size), rng.dirichlet(np.ones(vocab_size))
            if seed % 4 == 1:
                logits[rng.integers(vocab_size)] = -np.inf
            if seed % 4 >= 2:
                weights[rng.integers(vocab_size)] = 0.0
            target[prefix], draft[prefix] = torch.tensor(logits), torch.tensor(weights / weights.sum())
    return Table(vocab_size, num_draft_tokens, target, draft)


def table_of_laws(target: Sequence[float], draft: Sequence[float], num_draft_tokens: int = 1) -> Table:
    """The same two laws at every position."""
    prefixes = [p for n in range(num_draft_tokens + 1) for p in itertools.product(range(len(target)), repeat=n)]
    logits, probs = torch.tensor(target, dtype=torch.float64).log(), torch.tensor(draft, dtype=torch.float64)
    return Table(len(target), num_draft_tokens, dict.fromkeys(prefixes, logits), dict.fromkeys(prefixes, probs))


@dataclass(frozen=True)
class Outcome:
    """Laws of what comes out.

    `joint` is the law of k + 1 tokens, plain decoding going on where verification stopped; `accepted` is the law of
    the number of accepted tokens.
    """

    joint: np.ndarray
    accepted: np.ndarray

    @property
    def first(self) -> np.ndarray:
        return self.joint.sum(axis=tuple(range(1, self.joint.ndim)))

    @property
    def mean_accepted(self) -> float:
        return float(self.accepted @ np.arange(len(self.accepted)))


def enumerate_chain(
    table: Table,
    drafts: dict[Prefix, float] | None = None,
    *,
    deterministic: bool = False,
    acceptance_probs: AcceptanceProbs = production.acceptance_probs,
    emission_logits: EmissionLogits = production.emission_logits,
) -> Outcome:
    """Sum over every draft (by default weighted by the table's draft law) and every number of accepted tokens."""
    weights = {draft: table.draft_law(draft) for draft in table.drafts} if drafts is None else drafts
    weights = {draft: weight for draft, weight in weights.items() if weight > 0}
    spans = lay_out([table.row(draft, deterministic=deterministic) for draft in weights])
    logits = torch.cat([table.logits(draft) for draft in weights])
    kept = acceptance_probs(logits, spans, reference)
    k = table.num_draft_tokens
    joint, accepted = np.zeros((table.vocab_size,) * (k + 1)), np.zeros(k + 1)
    for count in range(k + 1):
        emitted = torch.softmax(
            emission_logits(logits, spans, [count] * len(spans)), dim=-1, dtype=torch.float64
        ).numpy()
        for (draft, weight), probs, emission_law in zip(weights.items(), kept, emitted, strict=True):
            reach = weight * np.prod(probs[:count]) * (1.0 if count == k else 1.0 - probs[count])
            accepted[count] += reach
            for token in range(table.vocab_size) if reach > 0 else ():
                emission = (*draft[:count], token)
                prob = emission_law[token]
                joint[emission] += reach * prob * (table.continuation(emission) if prob else 0.0)
    return Outcome(joint, accepted)


Count = Callable[[list[float]], list[float]]
Chances = Callable[[torch.Tensor, torch.Tensor, Sequence[int]], tuple[list[float], list[float]]]
Excess = Callable[[torch.Tensor, torch.Tensor, Sequence[float], int], torch.Tensor]


def longest_kept(kept: list[float]) -> list[float]:
    """The law of the longest prefix that its coin keeps, from the chances of all prefixes."""
    return [chance * float(np.prod([1 - longer for longer in kept[i + 1 :]])) for i, chance in enumerate(kept)]


def enumerate_block(
    table: Table,
    *,
    count_law: Count = longest_kept,
    prefix_chances: Chances = block.prefix_chances,
    prefix_excess: Excess = block.prefix_excess,
) -> Outcome:
    """Block verification over every draft that the table draws, and every number of accepted tokens."""
    k = table.num_draft_tokens
    joint, accepted = np.zeros((table.vocab_size,) * (k + 1)), np.zeros(k + 1)
    for draft in table.drafts:
        weight = table.draft_law(draft)
        if weight == 0:
            continue
        target, drawn = law(table.logits(draft)), torch.stack([table.draft_probs[draft[:i]] for i in range(k)])
        carried, kept = prefix_chances(target, drawn, draft)
        for count, chance in enumerate(count_law(kept)):
            reach = weight * chance
            accepted[count] += reach
            weights = prefix_excess(target, drawn, carried, count)
            for token, prob in enumerate((weights / weights.sum()).tolist()) if reach > 0 else ():
                emission = (*draft[:count], token)
                joint[emission] += reach * prob * (table.continuation(emission) if prob else 0.0)
    return Outcome(joint, accepted)


Trials = Callable[[torch.Tensor, Sequence[int], torch.Tensor | None], Iterator[trees.Trial]]


def production_trials(
    target: torch.Tensor, token_ids: Sequence[int], draft_probs: torch.Tensor | None
) -> Iterator[trees.Trial]:
    """The rule that `specdec.sampling.trees` has for such children."""
    if draft_probs is None:
        return trees.fixed_children(target, token_ids)
    return trees.drawn_children(target, token_ids, draft_probs)


def tree_paths(parents: Sequence[int], token_ids: Prefix) -> list[Prefix]:
    """For each node the tokens before it."""
    paths: list[Prefix] = []
    for parent in parents:
        paths.append(() if parent < 0 else (*paths[parent], token_ids[parent]))
    return paths


def drawn_trees(table: Table, parents: Sequence[int]) -> dict[Prefix, float]:
    """Every tree of this shape that drawing siblings without replacement can give, and its probability."""
    found: dict[Prefix, float] = {(): 1.0}
    for node, parent in enumerate(parents):
        longer: dict[Prefix, float] = {}
        for token_ids, weight in found.items():
            path = tree_paths(parents[: node + 1], token_ids)[node]
            taken = [token_ids[i] for i in range(node) if parents[i] == parent]
            probs = table.draft_probs[path].clone()
            probs[taken] = 0.0
            for token, prob in enumerate((probs / probs.sum()).tolist()):
                if prob > 0:
                    longer[(*token_ids, token)] = weight * prob
        found = longer
    return found


def fixed_trees(vocab_size: int, parents: Sequence[int]) -> list[Prefix]:
    """Every tree of this shape whose siblings differ."""
    listed = itertools.product(range(vocab_size), repeat=len(parents))
    keys = ([(parent, token) for parent, token in zip(parents, tree, strict=True)] for tree in listed)
    return [tuple(token for _, token in nodes) for nodes in keys if len(set(nodes)) == len(nodes)]


def enumerate_tree(
    table: Table,
    parents: tuple[int, ...],
    drafts: dict[Prefix, float],
    *,
    drawn: bool,
    trials: Trials = production_trials,
) -> Outcome:
    """Every walk through every tree of `drafts`; with `drawn`, each node's law is the table's at its path."""
    k = table.num_draft_tokens
    joint, accepted = np.zeros((table.vocab_size,) * (k + 1)), np.zeros(k + 1)

    def walk(token_ids: Prefix, node: int, prefix: Prefix, reach: float) -> None:
        children = [i for i, parent in enumerate(parents) if parent == node]
        left = law(table.target_logits[prefix])
        drawn_from = torch.stack([table.draft_probs[prefix]] * len(children)) if drawn and children else None
        judged = trials(left, [token_ids[i] for i in children], drawn_from) if children else iter(())
        for child, (chance, rest) in zip(children, judged, strict=True):
            if reach > 0 and chance > 0:
                walk(token_ids, child, (*prefix, token_ids[child]), reach * chance)
            reach, left = reach * (1 - chance), rest
        if reach <= 0:
            return
        accepted[len(prefix)] += reach
        for token, prob in enumerate((left / left.sum()).tolist()):
            joint[(*prefix, token)] += reach * prob * (table.continuation((*prefix, token)) if prob else 0.0)

    for token_ids, weight in drafts.items():
        walk(token_ids, -1, (), weight)
    return Outcome(joint, accepted)


def optimal_transport_bound(target: np.ndarray, child_sets: dict[Prefix, float]) -> float:
    """The most that any rule can accept: max over couplings of P(target's token is among the children).

    By min-cut, the least over token sets A of target(not A) + P(some child is in A).
    """
    tokens = range(len(target))
    subsets = itertools.chain.from_iterable(itertools.combinations(tokens, n) for n in range(len(target) + 1))
    return min(
        1 - sum(target[t] for t in chosen) + sum(w for s, w in child_sets.items() if set(s) & set(chosen))
        for chosen in subsets
    )


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum() / 2)


def gumbel_match_probability(target: np.ndarray, draft: np.ndarray) -> float:
    """P(argmax(log target + g) = argmax(log draft + g)) for shared Gumbel noise g.

    With -log of a uniform being exponential, token i wins both races if E_i <= E_j * min(target_i / target_j,
    draft_i / draft_j) for every j: probability 1 / sum_j max(target_j / target_i, draft_j / draft_i).
    """
    common = [i for i in range(len(target)) if target[i] > 0 and draft[i] > 0]
    return float(sum(1.0 / np.maximum(target / target[i], draft / draft[i]).sum() for i in common))
