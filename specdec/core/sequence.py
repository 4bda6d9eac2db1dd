"""One sample of a request while it lives: its tokens, how far its state has come, and the draft to verify next.

Counters and lists only; what can be computed from them is a property. Only `specdec.core` mutates a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from specdec.types import EMPTY_DRAFT, Draft, Logprob, Request, SpeculationStats, TextStream


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """`num_computed_tokens` counts the tokens whose KV is in the cache (D1, D2): every step goes on from there."""

    request: Request
    index: int
    token_ids: list[int]
    """In an engine `CommittedTokens`: others than `specdec.core` can only read them."""
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_draft_computed_tokens: int = 0
    """The same for the draft's KV, drafted tokens at the end included; 0 where the proposer keeps none."""
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    """Chained hashes of the leading full blocks of committed tokens."""
    num_hashed_blocks: int = 0
    """Leading entries of `block_table` that are registered in the prefix cache."""
    draft: Draft = EMPTY_DRAFT
    forks: list[Sequence] = field(default_factory=list)
    """Samples of the same request that wait for this one's prompt and then share its blocks."""
    num_cached_tokens: int = 0
    """Prompt tokens that a prefix-cache hit saved when the sample was first scheduled."""
    num_preemptions: int = 0
    text: str = ""
    text_stream: TextStream | None = None
    provenance: list[str] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    """Entry i belongs to prompt token i + 1."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Names the sample: request id and index."""
        return self.request.request_id, self.index

    @property
    def num_tokens(self) -> int:
        """Committed tokens: the prompt and what was generated."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.request.prompt_token_ids) :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Committed tokens that the next steps have to compute; exactly 1 for a sample that is decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_complete_tokens(self) -> int:
        """Committed tokens that every owner of KV has computed: what may be hashed and shared for good (D3)."""
        done = min(self.num_computed_tokens, len(self.token_ids))
        return done if self.request.draft_kv is None else min(done, self.num_draft_computed_tokens)

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots past a step's span that its proposer writes before the next one is scheduled."""
        request = self.request
        if request.draft_kv is None:
            return 0
        slots = request.num_lookahead_tokens
        return request.num_speculative_tokens if slots is None else slots

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts by urgency: lower `priority` first (as in vLLM), then arrival, then the sample's index."""
        return self.request.priority, self.request.arrival, self.index

    def max_draft_length(self, max_model_len: int) -> int:
        """How many draft tokens could still be kept: one token is emitted beside them, and limits bind.

        Zero while other samples wait for the prompt: what they will share is the prompt, not a draft behind it.
        """
        if self.forks:
            return 0
        room = max_model_len - self.num_tokens
        if self.request.params.max_tokens is not None:
            room = min(room, self.request.params.max_tokens - self.num_output_tokens)
        return max(0, room - 1)
