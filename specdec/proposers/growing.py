"""How a draft grows, level by level, whatever guesses: chains and trees of a fixed shape, and EAGLE-2's ranked by
confidence (arXiv 2406.16858).

A level's logits go through the sampling pipeline as if they were the target's, so children come from the law after
temperature, filters and penalties. Where a request samples, children are drawn without replacement and their laws
reported; or they are the likeliest ones, which is what the deterministic-children rule of the verifier is for; or,
under the coupled verifier, those that the target's own noise prefers. What computes the logits is the caller's.

A draft may end where its own law is unsure. Whether a node gets children is decided by the path to it, before any is
guessed: so no work is thrown away, and nothing that was drawn is dropped, which would change the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import torch

from specdec.config import unknown_name
from specdec.core.sequence import Sequence
from specdec.kernels import Kernels
from specdec.proposers.shapes import TreeChoice, TreeShape
from specdec.sampling.emission import law
from specdec.sampling.process import SamplingRow, asks_nothing, process_logits, reads_tokens, sampling_row
from specdec.sampling.rng import NoiseKey, Stream, gumbel_top
from specdec.types import MAX_DRAFT_NODES, Draft

SAMPLE_METHODS = ("probabilistic", "greedy")
"""How a request that samples is drafted for: from the draft's law, or by its likeliest tokens (vLLM's names)."""

ROOT = -1
"""Stands for the last committed token among a draft's nodes."""


@dataclass
class Growth:
    """One sequence's draft as it grows. `frontier` are the nodes whose children come next."""

    sequence: Sequence
    length: int
    """The longest path that is wanted."""
    room: int = MAX_DRAFT_NODES
    """How many nodes can be computed: those that get children."""
    least: float = -math.inf
    """The log probability of a path from which on it may go on."""
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    siblings: list[int] = field(default_factory=list)
    """Of each node its place among its siblings."""
    scores: list[float] = field(default_factory=list)
    """The log probability of the path to each node, where asked for."""
    laws: list[torch.Tensor] = field(default_factory=list)  # float64 [vocab] each, of drawn nodes
    frontier: list[int] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    """Of each computed node the slot after the last committed token."""
    rows: dict[int, int] = field(default_factory=dict)
    """Of each node that has children, or is about to, the row of its level's logits."""
    masks: dict[int, int] = field(default_factory=dict)
    """Of each computed node the slots of the path to it, itself included, as bits."""

    def depth_of(self, node: int) -> int:
        return 0 if node == ROOT else self.depths[node]

    def score_of(self, node: int) -> float:
        """The log probability of the path to a node."""
        return 0.0 if node == ROOT else self.scores[node]

    def path(self, node: int) -> list[int]:
        """The tokens from the first drafted one to `node`."""
        tokens = []
        while node != ROOT:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def add(self, parent: int, place: int, child: Child) -> None:
        self.token_ids.append(child.token_id)
        self.siblings.append(place)
        self.parents.append(parent)
        self.depths.append(self.depth_of(parent) + 1)
        self.scores.append(child.score + self.score_of(parent))
        if child.law is not None:
            self.laws.append(child.law)

    def compute(self, node: int, place: int) -> None:
        """Give a node a slot of its own, so that it can be computed."""
        above = 0 if self.parents[node] == ROOT else self.masks[self.parents[node]]
        self.places[node] = place
        self.masks[node] = above | 1 << place


class Child(NamedTuple):
    token_id: int
    score: float
    """Its log probability after its parent; 0 where nobody asks."""
    law: torch.Tensor | None
    """float64 [vocab] that it was drawn from, before its earlier siblings were removed."""


class Shape(Protocol):
    """How wide a draft grows, and where it goes on."""

    in_place: bool
    """Whether node i is computed at slot i, so that what is computed may stay."""
    draws: bool
    """Whether children may be drawn: not where a draft is pruned after looking at them."""
    needs_scores: bool
    num_slots: int
    """How many nodes are computed at most."""

    def ranks(self, growth: Growth, node: int) -> Many[int]:
        """Which of the likeliest tokens after a node of the frontier become its children; where they are drawn, as
        many as these."""
        ...

    def advance(self, growth: Growth, first: int) -> None:
        """Choose the next frontier among the nodes from `first` on, the last level, and give them slots."""
        ...

    def finish(self, growth: Growth) -> list[int]:
        """The nodes to submit, in order, parents before children."""
        ...


class FixedShape:
    """A tree that is fixed before looking; a chain is one. A node that the law has no token for is left out."""

    in_place = True
    draws = True
    needs_scores = False

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape
        self.num_slots = max(shape.parents, default=-1) + 1
        self._ranks = [tuple(shape.ranks[child] for child in children) for children in shape.children]

    def ranks(self, growth: Growth, node: int) -> Many[int]:
        return self._ranks[self._own(growth, node) + 1]

    def advance(self, growth: Growth, first: int) -> None:
        growth.frontier = []
        for node in range(first, len(growth.token_ids)):
            goes_on = growth.depths[node] < growth.length and growth.score_of(node) >= growth.least
            if goes_on and node < growth.room and self.ranks(growth, node):
                growth.compute(node, node)
                growth.frontier.append(node)

    def finish(self, growth: Growth) -> list[int]:
        return list(range(len(growth.token_ids)))

    def _own(self, growth: Growth, node: int) -> int:
        """The shape's node that a node of the draft is: the one of its rank under its parent's."""
        if node == ROOT or self.shape.is_chain:
            return node
        return self.shape.children_of(self._own(growth, growth.parents[node]))[growth.siblings[node]]


class ConfidenceShape:
    """EAGLE-2: of each level the `breadth` likeliest nodes get `breadth` children each; in the end the `num_nodes`
    likeliest of all are submitted. A node's confidence is the probability of its path, so ancestors come along."""

    in_place = False
    draws = False
    needs_scores = True

    def __init__(self, breadth: int, num_nodes: int, depth: int) -> None:
        self.breadth = breadth
        self.num_nodes = num_nodes
        self.num_slots = min(MAX_DRAFT_NODES, breadth * max(0, depth - 1))

    def ranks(self, growth: Growth, node: int) -> Many[int]:
        return range(self.breadth)

    def advance(self, growth: Growth, first: int) -> None:
        growth.frontier = []
        if len(growth.token_ids) == first or growth.depths[-1] >= growth.length:
            return
        likely = [node for node in range(first, len(growth.token_ids)) if growth.scores[node] >= growth.least]
        level = sorted(likely, key=lambda node: (-growth.scores[node], node))
        room = min(growth.room, self.num_slots) - len(growth.places)
        for node in sorted(level[: max(0, min(self.breadth, room))]):
            growth.compute(node, len(growth.places))
            growth.frontier.append(node)

    def finish(self, growth: Growth) -> list[int]:
        ranked = sorted(range(len(growth.token_ids)), key=lambda node: (-growth.scores[node], node))
        return sorted(ranked[: self.num_nodes])


def check_sample_method(name: object) -> None:
    """ValueError if it is not one of `SAMPLE_METHODS`."""
    if name not in SAMPLE_METHODS:
        raise ValueError(unknown_name("draft_sample_method", name, SAMPLE_METHODS))


def check_confidence_threshold(value: object) -> None:
    """ValueError if it is no probability below 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"confidence_threshold must be a probability, from 0 up to but not 1; got {value!r}")


def grown(choice: TreeChoice, num_speculative_tokens: int) -> Shape:
    """The shape that a proposer's settings choose, for drafts of at most this depth."""
    if choice.tree == "confidence":
        return ConfidenceShape(choice.tree_width, choice.tree_nodes, num_speculative_tokens)
    return FixedShape(choice.shape(num_speculative_tokens))


@dataclass(frozen=True)
class Vocabulary:
    """What a draft can say, where that is less than the target can."""

    token_ids: torch.Tensor  # int64 [Vd]   the target's id of each logit
    size: int
    """The target's."""

    @cached_property
    def names(self) -> list[int]:
        """The same ids, to look one up."""
        ids: list[int] = self.token_ids.tolist()
        return ids

    def over_target(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [n, Vd] over the target's vocabulary, [n, vocab]: what the draft lacks is -inf."""
        full = logits.new_full((logits.shape[0], self.size), float("-inf"))
        full[:, self.token_ids] = logits
        return full

    @staticmethod
    def of(token_ids: torch.Tensor | None, num_logits: int, size: int) -> Vocabulary | None:
        """None where the logits are the target's own vocabulary; without ids they are the first ones of it."""
        if token_ids is not None:
            return Vocabulary(token_ids, size)
        return None if num_logits == size else Vocabulary(torch.arange(num_logits), size)


class Guesses(NamedTuple):
    """What may follow each frontier node of some growths, in order."""

    logits: torch.Tensor  # [n, vocab], or over the draft's own vocabulary
    largest: tuple[torch.Tensor, torch.Tensor] | None = None
    """`Kernels.largest` of the logits, where it was found in passing."""


Step = Callable[[list[Growth]], Guesses]


class Grower:
    """Grows the drafts of one proposer."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        kernels: Kernels,
        verifier: str,
        *,
        samples: bool,
        keeps_kv: bool,
        vocabulary: Vocabulary | None = None,
        confidence_threshold: float = 0.0,
    ) -> None:
        """`confidence_threshold`: only a node whose path has at least this probability, by the draft's own law, gets
        children."""
        self.name = name
        self.shape = shape
        self.kernels = kernels
        self.keeps_kv = keeps_kv
        self.vocabulary = vocabulary
        self.is_coupled = verifier == "coupled"
        self.draws = samples and (shape.draws or self.is_coupled)
        self._least = math.log(confidence_threshold) if confidence_threshold > 0 else -math.inf
        self._needs_scores = shape.needs_scores or confidence_threshold > 0

    def grow(self, growths: Many[Growth], guesses: Guesses, step: Step) -> list[Draft]:
        """A draft of each; `guesses` follow the last committed tokens of those with a frontier."""
        for growth in growths:
            growth.least = self._least
        live = [growth for growth in growths if growth.frontier]
        while live:
            firsts = [len(growth.token_ids) for growth in live]
            self._branch(live, guesses)
            for growth, first in zip(live, firsts, strict=True):
                self.shape.advance(growth, first)
            live = [growth for growth in live if growth.frontier]
            if live:
                guesses = step(live)
        return [self._draft(growth) for growth in growths]

    def _branch(self, live: Many[Growth], guesses: Guesses) -> None:
        """Add children to every frontier node."""
        nodes = [(growth, node) for growth in live for node in growth.frontier]
        for row, (growth, node) in enumerate(nodes):
            growth.rows[node] = row
        ranks = [self.shape.ranks(growth, node) for growth, node in nodes]
        rows = [_sampling_row(growth, node) for growth, node in nodes]
        if self.vocabulary is not None:
            if all(map(asks_nothing, rows)):
                _add(nodes, self._likeliest(guesses, ranks, self.vocabulary.names))
                return
            guesses = Guesses(self.vocabulary.over_target(guesses.logits))
        processed = process_logits(guesses.logits, rows, self.kernels)
        if processed is not guesses.logits:
            guesses = Guesses(processed)
        drawn = [i for i, (growth, _) in enumerate(nodes) if self._is_drawn(growth)]
        children = self._likeliest(guesses, ranks) if len(drawn) < len(nodes) else [[] for _ in nodes]
        if drawn:
            counts = [len(ranks[i]) for i in drawn]
            logs = processed[drawn].log_softmax(dim=-1) if self._needs_scores else None
            made = self._drawn(processed[drawn], logs, [nodes[i] for i in drawn], counts)
            for i, own in zip(drawn, made, strict=True):
                children[i] = own
        _add(nodes, children)

    def _is_drawn(self, growth: Growth) -> bool:
        """Whether the draft samples; otherwise it takes the likeliest tokens."""
        return self.draws and not growth.sequence.request.params.is_greedy

    def _likeliest(self, guesses: Guesses, ranks: Many[Many[int]], names: Many[int] | None = None) -> list[list[Child]]:
        """The tokens of the wanted ranks after each row of logits [n, vocab]; `names` are their ids, if others."""
        # On a few numbers lists are several times as fast as tensors.
        logits = guesses.logits
        width = min(max(max(own) for own in ranks) + 1, logits.shape[-1])
        if width == 1:
            found, values = guesses.largest or self.kernels.largest(logits)
            tokens, best = [[token] for token in found.tolist()], [[value] for value in values.tolist()]
        else:
            values, found = logits.topk(width, dim=-1)
            tokens, best = found.tolist(), values.tolist()
        masses = self.kernels.logsumexp(logits).tolist() if self._needs_scores else [0.0] * len(best)
        return [
            [
                Child(row[rank] if names is None else names[row[rank]], values[rank] - mass, None)
                for rank in own
                if rank < width and math.isfinite(values[rank] - mass)
            ]
            for row, values, mass, own in zip(tokens, best, masses, ranks, strict=True)
        ]

    def _drawn(
        self,
        processed: torch.Tensor,
        logs: torch.Tensor | None,
        nodes: Many[tuple[Growth, int]],
        counts: Many[int],
    ) -> Iterator[list[Child]]:
        """Tokens drawn without replacement from each row's law, whose logarithms are `logs`, if they are needed. The
        coupled verifier draws the target's choice of the same position with the same noise, and needs no law."""
        keys = [_noise_key(growth, node, by_depth=not self.is_coupled) for growth, node in nodes]
        stream = Stream.RESAMPLE if self.is_coupled else Stream.DRAFT
        tokens, scores = gumbel_top(processed, keys, stream, max(counts), self.kernels)
        laws = None if self.is_coupled else law(processed)
        for i, (chosen, noisy, count) in enumerate(zip(tokens.tolist(), scores.tolist(), counts, strict=True)):
            usable = noisy[0] < math.inf  # not where the law is no law
            yield [
                Child(token, 0.0 if logs is None else logs[i, token].item(), None if laws is None else laws[i])
                for token, score in zip(chosen[:count], noisy[:count], strict=True)
                if usable and math.isfinite(score)
            ]

    def _draft(self, growth: Growth) -> Draft:
        kept = self.shape.finish(growth)
        index = {node: i for i, node in enumerate(kept)} | {ROOT: ROOT}
        parents = tuple(index[growth.parents[node]] for node in kept)
        is_chain = parents == tuple(range(-1, len(parents) - 1))
        return Draft(
            tuple(growth.token_ids[node] for node in kept),
            None if is_chain else parents,
            torch.stack(growth.laws) if growth.laws else None,
            self.name,
            has_kv=self.keeps_kv and self.shape.in_place,
        )


def _add(nodes: Many[tuple[Growth, int]], children: Many[Many[Child]]) -> None:
    for (growth, node), own in zip(nodes, children, strict=True):
        for place, child in enumerate(own):
            growth.add(node, place, child)


def _sampling_row(growth: Growth, node: int) -> SamplingRow:
    """The next drafted token as if it were the next one after committed tokens: the same law."""
    row = sampling_row(growth.sequence)
    if node == ROOT or not reads_tokens(row):
        return row
    return row._replace(token_ids=[*row.token_ids, *growth.path(node)])


def _noise_key(growth: Growth, node: int, *, by_depth: bool) -> NoiseKey:
    """Whose noise draws the tokens after `node`: that of their absolute position and, for a noise of the draft's own,
    of their depth in it."""
    sequence, depth = growth.sequence, growth.depth_of(node)
    return NoiseKey(sequence.request.seed, sequence.index, sequence.num_tokens + depth, depth if by_depth else 0)
