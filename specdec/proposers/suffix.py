"""Suffix decoding (arXiv 2411.04975): what most often followed the last tokens, in this request and in past outputs.

One tree per live sequence holds its prompt and output; one per cache salt holds the outputs of past requests, so that
no request drafts what another salt's said. For every suffix of the context that occurred before, up to
`suffix_decoding_max_tree_depth - 1` tokens, a continuation is made of the most frequent followers: at most
`max_spec_factor * (the suffix's length) + max_spec_offset` tokens, none less likely than `min_token_prob`, where a
token's likelihood is the product of the followers' shares up to it. The draft is the continuation with the largest sum
of likelihoods.

Rules that leave nothing to chance: of equally frequent followers the smallest token id; of equal sums the request's own
tree before past outputs, then the longer suffix. So a draft depends on what is in the trees, and not on the order in
which it came there. (The most recent of equally frequent followers did no better on replayed code and prose.) A share
is one of the followers seen: the context's end, which has none yet, counts for nothing.

When a sequence that was drafted for ends, its committed output becomes a past output: every sample of a request, and
what an aborted one had said. The least recently used is forgotten first. An output is used when it is the newest one
that holds the match a draft was made from.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Sequence as Many
from dataclasses import dataclass

from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, ProposalInput, ProposerContext
from specdec.proposers.suffix_tree import ROUNDING, Guess, Limits, SuffixTree
from specdec.types import MAX_SPECULATIVE_TOKENS, Draft

METHOD = "suffix"
DEEPEST = 256
SMALLEST_BUDGET = 1_000_000
OWN = 0
"""The number of the only text in a sequence's own tree."""
FINE = 3
"""Up to this length every length of a match is a hint of its own."""
CHUNK = 64
"""Tokens of a context that are indexed between two looks at the budget."""


@dataclass(frozen=True)
class SuffixSettings:
    """vLLM's names and defaults; the offset is of the reference implementation, the budget our own.

    `suffix_decoding_max_cached_requests` counts past outputs, each sample by itself; 0 keeps none.
    `suffix_decoding_max_bytes` bounds all trees together, to within what one step's tokens of a sequence add. Past
    outputs make room for live sequences; one that finds no room even so is not indexed any further until there is.
    """

    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_max_spec_offset: float = 0.0
    suffix_decoding_min_token_prob: float = 0.1
    suffix_decoding_max_bytes: int = 256_000_000

    def __post_init__(self) -> None:
        self._check_integer("suffix_decoding_max_tree_depth", 2, DEEPEST)
        self._check_integer("suffix_decoding_max_cached_requests", 0)
        self._check_number("suffix_decoding_max_spec_factor", 0.0)
        self._check_number("suffix_decoding_max_spec_offset", -math.inf)
        self._check_number("suffix_decoding_min_token_prob", 0.0, 1.0)
        self._check_integer("suffix_decoding_max_bytes", SMALLEST_BUDGET)

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """A chain's."""
        return num_speculative_tokens

    def _check_integer(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        span = f"of at least {low}" if high is None else f"between {low} and {high}"
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
        if not ok:
            raise ValueError(f"{name} must be an integer {span}; got {value!r}")

    def _check_number(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if not ok or not low <= value <= high:
            span = (
                "" if math.isinf(low) else f" of at least {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"
            )
            raise ValueError(f"{name} must be a finite number{span}; got {value!r}")

    def rooms(self) -> tuple[int, ...]:
        """For each length of a match, how many tokens may be drafted after it: the budget, and the tree's depth."""
        depth = self.suffix_decoding_max_tree_depth
        factor, offset = self.suffix_decoding_max_spec_factor, self.suffix_decoding_max_spec_offset
        budgets = (min(factor * size + offset + ROUNDING, MAX_SPECULATIVE_TOKENS) for size in range(depth))
        return tuple(max(0, min(math.floor(budget), depth - size)) for size, budget in enumerate(budgets))


class SuffixProposer:
    """A tree per sequence, from the first draft asked of it until it is forgotten, and the past outputs."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, settings: SuffixSettings, context: ProposerContext | None = None) -> None:
        self.settings = settings
        self._rooms = settings.rooms()
        self._own: dict[tuple[str, int], SuffixTree] = {}
        self._own_bytes = 0
        self._past = PastOutputs(settings.suffix_decoding_max_tree_depth)

    @property
    def num_bytes(self) -> int:
        """The size of all trees."""
        return self._own_bytes + self._past.num_bytes

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """One chain per sequence, at most as long as asked; empty where nothing likely enough is known."""
        return [self._draft(sequence, length) for sequence, length in zip(sequences, inp.lengths, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        """Free the sequence's own tree and keep its output among the past ones."""
        own = self._own.pop(sequence.key, None)
        if own is None:
            return
        self._own_bytes -= own.num_bytes
        output = sequence.output_token_ids
        most = self.settings.suffix_decoding_max_cached_requests
        if len(output) > 1 and len(self._past) >= most:
            self._past.forget_oldest()
        if len(output) > 1 and most and self._make_room(self._past.expected_bytes(len(output))):
            self._past.add(output, sequence.request.cache_salt)
            self._make_room(0)

    def hint(self, sequence: Sequence) -> int:
        """The longest match, in classes that grow with it; 0 without one."""
        own = self._catch_up(sequence)
        recent = sequence.token_ids[: -self.settings.suffix_decoding_max_tree_depth : -1]
        longest = max(own.match_length(recent), self._past.match_length(sequence.request.cache_salt, recent))
        return longest if longest <= FINE else FINE + (longest - FINE).bit_length()

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        if length <= 0:
            return Draft(proposer=METHOD)  # the tree catches up when it is next needed
        own = self._catch_up(sequence)
        recent = sequence.token_ids[: -self.settings.suffix_decoding_max_tree_depth : -1]
        limits = Limits(self._rooms, length, self.settings.suffix_decoding_min_token_prob)
        guess = own.guess(recent, limits)
        better = self._past.guess(sequence.request.cache_salt, recent, limits, guess.score if guess else 0.0)
        chosen = better or guess
        return Draft(chosen.token_ids if chosen else (), proposer=METHOD)

    def _catch_up(self, sequence: Sequence) -> SuffixTree:
        """The sequence's tree, with the tokens that came since the last call, as far as there is room for them."""
        own = self._own.get(sequence.key)
        if own is None or own.size(OWN) > sequence.num_tokens:
            self._own_bytes -= own.num_bytes if own else 0
            own = self._own[sequence.key] = SuffixTree(self.settings.suffix_decoding_max_tree_depth)
            self._own_bytes += own.num_bytes
        for begin in range(own.size(OWN), sequence.num_tokens, CHUNK):
            chunk = sequence.token_ids[begin : begin + CHUNK]
            if not self._make_room(own.expected_bytes(len(chunk))):
                break
            before = own.num_bytes
            own.extend(OWN, chunk)
            self._own_bytes += own.num_bytes - before
            self._make_room(0)
        return own

    def _make_room(self, num_bytes: int) -> bool:
        """Forget past outputs until so much more fits the budget; False if it cannot."""
        spare = self.settings.suffix_decoding_max_bytes - num_bytes
        while self.num_bytes > spare and len(self._past):
            self._past.forget_oldest()
        return self.num_bytes <= spare


class PastOutputs:
    """A tree per cache salt over what past requests said, and in which order the outputs were last used."""

    def __init__(self, depth: int) -> None:
        self.num_bytes = 0
        self._depth = depth
        self._trees: dict[str | None, SuffixTree] = {}
        self._salts: OrderedDict[int, str | None] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        """The number of outputs."""
        return len(self._salts)

    def expected_bytes(self, num_tokens: int) -> int:
        """More than an output of so many tokens will add, as a rule."""
        empty = SuffixTree(self._depth)
        return empty.num_bytes + empty.expected_bytes(num_tokens)

    def add(self, token_ids: Many[int], salt: str | None) -> None:
        """Keep an output, as the last used."""
        tree = self._trees.get(salt)
        if tree is None:
            tree = self._trees[salt] = SuffixTree(self._depth)
            self.num_bytes += tree.num_bytes
        before = tree.num_bytes
        tree.extend(self._next, token_ids)
        self.num_bytes += tree.num_bytes - before
        self._salts[self._next] = salt
        self._next += 1

    def forget_oldest(self) -> None:
        """Take out the least recently used output, if there is one."""
        if not self._salts:
            return
        text, salt = self._salts.popitem(last=False)
        tree = self._trees[salt]
        before = tree.num_bytes
        tree.remove(text)
        self.num_bytes += tree.num_bytes - before
        if not len(tree):
            self.num_bytes -= tree.num_bytes
            del self._trees[salt]

    def match_length(self, salt: str | None, recent: Many[int]) -> int:
        """The longest match among the salt's outputs."""
        tree = self._trees.get(salt)
        return 0 if tree is None else tree.match_length(recent)

    def guess(self, salt: str | None, recent: Many[int], limits: Limits, best_score: float) -> Guess | None:
        """The best continuation by the salt's outputs, if it scores above `best_score`; its source is then used."""
        tree = self._trees.get(salt)
        guess = tree.guess(recent, limits, best_score) if tree is not None else None
        if guess is not None:
            self._salts.move_to_end(guess.text)
        return guess
