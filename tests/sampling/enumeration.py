"""Exact laws of what chain verification emits, on tables small enough to list every draft and every outcome.

The laws come out of the production functions `acceptance_probs` and `emission_logits`, handed in so that deliberately
wrong ones can be enumerated too; only the loop "keep while u < probability" is spelled out here as a product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.sampling import verify as production
from specdec.sampling.process import SamplingRow, Span, lay_out
from specdec.types import Draft, SamplingParams
from tests.sampling.helpers import sampling_row

Prefix = tuple[int, ...]
AcceptanceProbs = Callable[[torch.Tensor, Sequence[Span]], list[list[float]]]
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
        return production.law(self.target_logits[prefix][None])[0].numpy()

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
    kept = acceptance_probs(logits, spans)
    k = table.num_draft_tokens
    joint, accepted = np.zeros((table.vocab_size,) * (k + 1)), np.zeros(k + 1)
    for count in range(k + 1):
        emitted = torch.softmax(emission_logits(logits, spans, [count] * len(spans)), dim=-1).numpy()
        for (draft, weight), probs, law in zip(weights.items(), kept, emitted, strict=True):
            reach = weight * np.prod(probs[:count]) * (1.0 if count == k else 1.0 - probs[count])
            accepted[count] += reach
            for token in range(table.vocab_size) if reach > 0 else ():
                emission = (*draft[:count], token)
                joint[emission] += reach * law[token] * (table.continuation(emission) if law[token] else 0.0)
    return Outcome(joint, accepted)


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum() / 2)


def gumbel_match_probability(target: np.ndarray, draft: np.ndarray) -> float:
    """P(argmax(log target + g) = argmax(log draft + g)) for shared Gumbel noise g.

    With -log of a uniform being exponential, token i wins both races if E_i <= E_j * min(target_i / target_j,
    draft_i / draft_j) for every j: probability 1 / sum_j max(target_j / target_i, draft_j / draft_i).
    """
    common = [i for i in range(len(target)) if target[i] > 0 and draft[i] > 0]
    return float(sum(1.0 / np.maximum(target / target[i], draft / draft[i]).sum() for i in common))
