"""Token Recycling (arXiv 2408.08696): what the target last thought might follow a token is what is drafted after it.

Verification computes the target's candidates after every node of a draft, and keeps one. Here the rest is put to use:
for each token the candidates that were seen last are remembered, and a tree of a fixed shape is filled from the last
committed token on, children of a node with the candidates of its token. Where a token is unknown, the tree ends.

One table per live sequence holds what was learned from its own steps; it comes first. Behind it one table per cache
salt holds what past requests learned, so that no request drafts, and none could tell from the pace of its answer,
what the target said to another salt. So a draft does not depend on what runs beside it. It would gain nothing by that:
on 24 Spec-Bench prompts, eight at a time, tables of their own committed 1.62 tokens a step and one table for all,
written at every step, 1.39.

Which rows of logits are learned from. Those on the accepted path, unless the token that followed is already one of
the first two candidates: it makes no difference to what is accepted, and saves a third of the rows. And of the
rejected nodes' up to `recycling_max_rejected`, unknown tokens first: they are the target's predictions, too. On the
same prompts the path alone committed 1.43 tokens a step, with two more rows 1.47, with every row 1.62; but each takes a
CPU 15 to 25 microseconds. The default keeps a draft under 100; where a step of the target takes tens of milliseconds,
64 is better.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from specdec.core.sequence import Sequence
from specdec.proposers.base import ProposalInput, ProposerContext, TargetStates, Wants
from specdec.proposers.candidates import PastCandidates, top_candidates
from specdec.proposers.shapes import TreeChoice, TreeShape
from specdec.types import MAX_DRAFT_NODES, Draft

METHOD = "recycling"
GOOD_ENOUGH = 2
"""How near the top of the candidates the token that followed must be for them to stay as they are."""

ROOT = -1
"""Stands for the last committed token among nodes."""

OWN_TOKENS = 4_096
"""The most tokens whose candidates are kept for a live sequence; those learned the longest time ago give way."""
MOST_TABLES = 1_024

ENTRY_BYTES = 300
CANDIDATE_BYTES = 40
"""What a token takes in a live sequence's table, and each of its candidates, rounded up."""

Candidates = dict[int, list[int]]
"""By token, what the target last held for the likeliest to follow it, the best first."""


@dataclass(frozen=True)
class RecyclingSettings:
    """The tree, with the names of all proposers of trees, and what is learned and kept.

    Where rows are dear, as on a CPU, small trees are best: on two cores, with the default model and drafts of depth 4,
    what 4 to 12 nodes add to a step they take in time, and more nodes take more. A GPU bears larger ones.
    `recycling_max_rejected` rejected nodes of a draft are learned from at most. `recycling_max_tables` bounds the
    cache salts whose past is kept: each takes 4 bytes for a token of the vocabulary and a candidate. 0 keeps none.
    """

    tree: str = "ranked"
    tree_nodes: int = 12
    tree_width: int = 8
    recycling_max_rejected: int = 1
    recycling_max_tables: int = 8

    def __post_init__(self) -> None:
        for name, most in (("recycling_max_rejected", MAX_DRAFT_NODES), ("recycling_max_tables", MOST_TABLES)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise ValueError(f"{name} must be an integer between 0 and {most}; got {value!r}")
        if self.tree_choice.tree == "confidence":
            raise ValueError("tree 'confidence' needs probabilities, which recycling has not; use 'ranked' or another")

    @property
    def tree_choice(self) -> TreeChoice:
        return TreeChoice(self.tree, self.tree_nodes, self.tree_width)

    def num_nodes(self, num_speculative_tokens: int) -> int:
        return self.tree_choice.num_nodes(num_speculative_tokens)


class RecyclingProposer:
    """A table per sequence, from the first step that it is shown until it is forgotten, and those of the past."""

    kv_caches = ()
    wants = Wants(logits=True)

    def __init__(self, settings: RecyclingSettings, context: ProposerContext) -> None:
        self.settings = settings
        self._choice = settings.tree_choice
        self._shapes: dict[int, TreeShape] = {}
        ranks = max(self._shape(depth).num_ranks for depth in (1, context.num_speculative_tokens))
        self._width = min(ranks, context.vocab_size)
        self._own: dict[tuple[str, int], Candidates] = {}
        self._past = PastCandidates(settings.recycling_max_tables, context.vocab_size, self._width)

    @property
    def num_bytes(self) -> int:
        """The size of all tables."""
        entry_bytes = ENTRY_BYTES + CANDIDATE_BYTES * self._width
        return self._past.num_bytes + entry_bytes * sum(map(len, self._own.values()))

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """A tree per sequence, of what is known of its shape; empty where the last token's candidates are not."""
        if inp.states:
            self._learn(sequences, inp.states)
        return [self._draft(sequence, length) for sequence, length in zip(sequences, inp.lengths, strict=True)]

    def hint(self, sequence: Sequence) -> int:
        """2 where the sequence's own steps tell what may follow the last token, 1 where only past requests' do."""
        token = sequence.token_ids[-1]
        if token in self._own.get(sequence.key, {}):
            return 2
        return int(bool(self._past.find(sequence.request.cache_salt, token)))

    def forget(self, sequence: Sequence) -> None:
        """Free the sequence's own table, and keep what is in it among the past."""
        self._past.keep(sequence.request.cache_salt, self._own.pop(sequence.key, {}))

    def _learn(self, sequences: Many[Sequence], states: Many[TargetStates | None]) -> None:
        """Take the last step's candidates into the sequences' own tables."""
        asked: list[tuple[torch.Tensor, list[int]]] = []
        learned: list[tuple[Candidates, int]] = []
        for sequence, each in zip(sequences, states, strict=True):
            if each is None or each.logits is None:
                continue
            own = self._own.setdefault(sequence.key, {})
            rows = self._rows(each, sequence.token_ids[-1], own)
            asked.append((each.logits, rows))
            learned += [(own, each.judged[row]) for row in rows]
        for (own, token), candidates in zip(learned, top_candidates(asked, self._width), strict=True):
            if len(candidates) == self._width:
                own.pop(token, None)  # to be the newest of the table, and so stay longest
                own[token] = candidates
            if len(own) > OWN_TOKENS:
                del own[next(iter(own))]

    def _rows(self, states: TargetStates, next_token: int, own: Candidates) -> list[int]:
        """The rows of logits to learn from; where several follow the same token, the last counts."""
        judged = states.judged
        accepted = [0, *(node + 1 for node in states.path)]
        followers = [*(judged[row] for row in accepted[1:]), next_token]
        rows = [
            row
            for row, follower in zip(accepted, followers, strict=True)
            if follower not in own.get(judged[row], ())[:GOOD_ENOUGH]
        ]
        seen = {judged[row] for row in accepted}
        unknown: list[int] = []
        known: list[int] = []
        for row, token in enumerate(judged):
            if token not in seen:
                seen.add(token)
                (known if token in own else unknown).append(row)
        return [*unknown, *known][: self.settings.recycling_max_rejected] + rows

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        """The shape for that depth, filled from the last token on."""
        shape = self._shape(max(0, length))
        own, salt = self._own.get(sequence.key, {}), sequence.request.cache_salt
        token_ids: list[int] = []
        parents: list[int] = []
        places = {ROOT: ROOT}  # the draft's node for each node of the shape
        for node, children in enumerate(shape.children, ROOT):
            if not children or node not in places:
                continue
            parent = places[node]
            token = sequence.token_ids[-1] if parent == ROOT else token_ids[parent]
            candidates = own.get(token) or self._past.find(salt, token)
            for child in children:
                if shape.ranks[child] < len(candidates):
                    places[child] = len(token_ids)
                    token_ids.append(candidates[shape.ranks[child]])
                    parents.append(parent)
        is_chain = parents == list(range(ROOT, len(parents) - 1))
        return Draft(tuple(token_ids), None if is_chain else tuple(parents), proposer=METHOD)

    def _shape(self, depth: int) -> TreeShape:
        if depth not in self._shapes:
            self._shapes[depth] = self._choice.shape(depth)
        return self._shapes[depth]
