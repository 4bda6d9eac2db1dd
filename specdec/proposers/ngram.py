"""Prompt lookup: what followed the longest recent n-gram when it occurred before, as a draft.

The suffix of the committed tokens, from `prompt_lookup_max` tokens down to `prompt_lookup_min`, is looked up among
its earlier occurrences; the draft is what followed the most recent of them. Copying goes on into the draft itself, so
a short loop fills a draft of any length: after "a b c a b" it is "c a b c a b ...". No model, no weights, no
randomness; it knows nothing of logits.

The choices come from replaying code and prose as if they were a target's output, in drafts of four tokens:

- The most recent occurrence, not the first: it keeps up where a text drifts, and never did worse. Looking up again
  inside the draft, instead of copying on, gained nothing.
- Minimum 2. Single tokens match on most steps, but of ten tokens drafted so only one or two are accepted, a loss
  wherever a drafted row costs; with 2 it is two or three. With 3 a third of the accepted tokens are gone.
- Maximum 4. From 3 to 8 the accepted tokens hardly change, while every length costs time and memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, ProposalInput, ProposerContext
from specdec.types import Draft

METHOD = "ngram"
LOOKUP_LIMIT = 16
"""The longest n-gram that may be asked for: every length is indexed, so each costs time and memory."""

TOKEN_CODE = "i"
TOKEN_BYTES = array(TOKEN_CODE).itemsize


@dataclass(frozen=True)
class NgramSettings:
    """The longest and the shortest suffix that is looked up, in tokens (vLLM's names)."""

    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2

    def __post_init__(self) -> None:
        for name, value in (
            ("prompt_lookup_max", self.prompt_lookup_max),
            ("prompt_lookup_min", self.prompt_lookup_min),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LOOKUP_LIMIT:
                raise ValueError(f"{name} must be an integer between 1 and {LOOKUP_LIMIT}; got {value!r}")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_max must be at least prompt_lookup_min ({self.prompt_lookup_min}); "
                f"got {self.prompt_lookup_max}"
            )

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """A chain's."""
        return num_speculative_tokens


class NgramProposer:
    """Keeps one index per sequence, from the first time a draft is asked of it until it is forgotten."""

    kv_caches = ()
    wants = NOTHING

    def __init__(self, settings: NgramSettings, context: ProposerContext | None = None) -> None:
        self.settings = settings
        self._indexes: dict[tuple[str, int], _Index] = {}

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft]:
        """One chain per sequence: exactly as long as asked where something matched, else empty."""
        return [self._draft(sequence, length) for sequence, length in zip(sequences, inp.lengths, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        """Free the sequence's index."""
        self._indexes.pop(sequence.key, None)

    def hint(self, sequence: Sequence) -> int:
        """The length of the match; 0 without one."""
        match = self._index(sequence).find(sequence.token_ids)
        return 0 if match is None else match.length

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        if length <= 0:
            return Draft(proposer=METHOD)  # the index catches up when it is next needed
        match = self._index(sequence).find(sequence.token_ids)
        if match is None:
            return Draft(proposer=METHOD)
        return Draft(_copy(sequence.token_ids, match.follower, length), proposer=METHOD)

    def _index(self, sequence: Sequence) -> _Index:
        """The sequence's index, of all its tokens."""
        index = self._indexes.get(sequence.key)
        if index is None:
            index = self._indexes[sequence.key] = _Index(self.settings)
        index.catch_up(sequence.token_ids)
        return index


def _copy(token_ids: list[int], source: int, length: int) -> tuple[int, ...]:
    """`length` tokens from position `source` on; past the end of the list, on into the copy itself.

    Token i of the copy stands at `len(token_ids) + i`, so it repeats the tokens from `source` to the end for ever.
    """
    period = len(token_ids) - source
    return tuple(token_ids[source + i % period] for i in range(length))


class _Match(NamedTuple):
    length: int
    """Of the suffix, in tokens."""
    follower: int
    """Where what followed it stands in the sequence."""


class _Index:
    """For every n-gram of one sequence, the position of the token that followed its most recent occurrence.

    An n-gram enters once a committed token follows it. So the sequence's own suffix is never in the index, and there
    is nothing to undo for tokens that were only proposed. Keys are the n-grams' bytes: unlike tuples of ints they are
    small, hash fast, and are no business of the garbage collector.
    """

    def __init__(self, settings: NgramSettings) -> None:
        self._longest = settings.prompt_lookup_max
        self._shortest = settings.prompt_lookup_min
        self._followers: dict[bytes, int] = {}
        self._last = 0  # the last position that is indexed as a follower

    def catch_up(self, token_ids: list[int]) -> None:
        """Index the followers that came since the last call; all of them if the list became shorter."""
        end = len(token_ids)
        if end <= self._last:
            self._followers.clear()
            self._last = 0
        begin = max(0, self._last + 1 - self._longest)
        tail = array(TOKEN_CODE, token_ids[begin:]).tobytes()
        for length in range(self._shortest, self._longest + 1):
            size = length * TOKEN_BYTES
            for follower in range(max(self._last + 1, length), end):
                at = (follower - begin) * TOKEN_BYTES
                self._followers[tail[at - size : at]] = follower
        self._last = max(0, end - 1)

    def find(self, token_ids: list[int]) -> _Match | None:
        """The longest suffix that occurred before, if one did."""
        tail = array(TOKEN_CODE, token_ids[-self._longest :]).tobytes()
        for length in range(min(self._longest, len(token_ids)), self._shortest - 1, -1):
            follower = self._followers.get(tail[-length * TOKEN_BYTES :])
            if follower is not None:
                return _Match(length, follower)
        return None
