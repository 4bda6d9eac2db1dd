"""Which tokens the next step computes, under one budget, and what its verdicts change.

Prompt chunks, decodes and drafts are all spans of uncomputed tokens (D2); there is no mode. The order of urgency is
`Sequence.order`. Blocks grow one at a time; when they run out, the least urgent sequence gives up all of its own and is
recomputed later, mostly from the prefix cache. Slots for the next draft's own KV come last, from what is free then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from specdec.core.block_manager import BlockCopy, BlockManager
from specdec.core.sequence import Sequence, Status
from specdec.core.stopping import append_token, finish_text
from specdec.types import BONUS, EMPTY_DRAFT, RECOVERED, Draft, Verdict


@dataclass(frozen=True)
class ScheduledRow:
    """One sequence's span of a step: `num_scheduled_tokens` positions from `start`, the last `len(draft)` drafted."""

    sequence: Sequence
    start: int
    num_scheduled_tokens: int
    draft: Draft = EMPTY_DRAFT
    num_tokens: int = field(init=False)
    """Committed tokens when the row was scheduled; the sequence itself moves on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", self.sequence.num_tokens)

    @property
    def proposer(self) -> str:
        """The proposer that the request names."""
        return self.sequence.request.proposer

    @property
    def kv_owner(self) -> str | None:
        """The proposer that keeps KV of its own for the sequence."""
        return self.sequence.request.draft_kv

    @property
    def num_draft_tokens(self) -> int:
        return len(self.draft)

    @property
    def end(self) -> int:
        """One past the last position (KV entry) of the span."""
        return self.start + self.num_scheduled_tokens

    @property
    def reaches_end(self) -> bool:
        """Whether the span covers the last committed token, so that a token is emitted."""
        return self.end - len(self.draft) == self.num_tokens

    @property
    def num_logits(self) -> int:
        """Rows of logits for verification: at the last committed token and at every draft position; 0 for a chunk."""
        return 1 + len(self.draft) if self.reaches_end else 0

    @property
    def num_prompt_logits(self) -> int:
        """Leading span positions whose next token is a prompt token that the request wants log probabilities of."""
        sequence = self.sequence
        if sequence.request.params.prompt_logprobs is None or sequence.index:
            return 0
        return max(0, min(self.end, sequence.num_prompt_tokens - 1) - self.start)


@dataclass(frozen=True)
class Schedule:
    """What one step computes. `block_copies` (source, destination) happen before anything is written."""

    rows: tuple[ScheduledRow, ...]
    preempted: tuple[Sequence, ...] = ()
    block_copies: tuple[BlockCopy, ...] = ()


class Scheduler:
    """Queues of sequences over one block manager. `max_model_len` must fit the pool."""

    def __init__(
        self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> None:
        assert max_num_seqs <= max_num_batched_tokens, "every running sequence needs one token a step"
        assert max_model_len <= blocks.num_blocks * blocks.block_size
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        """Prompt tokens of started requests that were looked up in the prefix cache."""
        self.num_prefix_hits = 0
        """Tokens found there."""

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, sequence, key=lambda s: s.order)

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> Schedule:
        """Choose the spans of the next step and make their slots writable."""
        rows: list[ScheduledRow] = []
        copies: list[BlockCopy] = []
        preempted: list[Sequence] = []
        for sequence in self.running:
            if sequence.request.draft_kv is not None:
                self.blocks.shrink(sequence)
        for sequence, tokens, draft in self._share_budget():
            if sequence.status is Status.RUNNING:
                row = self._place(sequence, tokens, draft, copies, preempted)
                if row is not None:
                    rows.append(row)
        if not preempted:
            self._admit(rows, copies)
        self._look_ahead(rows)
        return Schedule(tuple(rows), tuple(preempted), tuple(copies))

    def _share_budget(self) -> list[tuple[Sequence, int, Draft]]:
        """Committed tokens and draft of every running sequence: one token each, then drafts, then prompt chunks."""
        rest = self.max_num_batched_tokens - len(self.running)
        shares: dict[Sequence, tuple[int, Draft]] = {}
        for sequence in self.running:
            if sequence.num_uncomputed_tokens == 1:
                draft = sequence.draft.limited(sequence.max_draft_length(self.max_model_len))
                shares[sequence] = (1, draft.trimmed(rest))
                rest -= len(shares[sequence][1])
        for sequence in self.running:
            if sequence.num_uncomputed_tokens > 1:
                extra = min(rest, sequence.num_uncomputed_tokens - 1)
                shares[sequence] = (1 + extra, EMPTY_DRAFT)
                rest -= extra
        return [(sequence, *shares[sequence]) for sequence in self.running]

    def _place(
        self,
        sequence: Sequence,
        tokens: int,
        draft: Draft,
        copies: list[BlockCopy],
        preempted: list[Sequence],
    ) -> ScheduledRow | None:
        """Find blocks for a running sequence: first at the cost of its draft, then of less urgent sequences."""
        while True:
            start = sequence.num_computed_tokens
            new = self.blocks.grow(sequence, start + tokens + len(draft))
            if new is not None:
                copies.extend(new)
                return ScheduledRow(sequence, start, tokens + len(draft), draft)
            if draft:
                draft = draft.trimmed(len(draft) - 1)
                continue
            victim = max(self._block_owners(), key=lambda s: s.order)
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return None

    def _block_owners(self) -> Iterable[Sequence]:
        """Who could give blocks back: running sequences, and forks that wait with their share of a prompt."""
        return (s for queue in (self.running, self.waiting) for s in queue if s.block_table)

    def _preempt(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        sequence.draft = EMPTY_DRAFT
        if sequence.status is Status.RUNNING:
            sequence.status = Status.WAITING
            sequence.num_preemptions += 1
            self.num_preemptions += 1
            self.running.remove(sequence)
            self.add(sequence)

    def _admit(self, rows: list[ScheduledRow], copies: list[BlockCopy]) -> None:
        """Start waiting sequences, most urgent first, while tokens, places and blocks last."""
        budget = self.max_num_batched_tokens - sum(row.num_scheduled_tokens for row in rows)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            row = self._start(sequence, budget, copies)
            if row is None:
                return
            self.waiting.pop(0)
            sequence.status = Status.RUNNING
            insort(self.running, sequence, key=lambda s: s.order)
            rows.append(row)
            budget -= row.num_scheduled_tokens

    def _start(self, sequence: Sequence, budget: int, copies: list[BlockCopy]) -> ScheduledRow | None:
        """The first span of a waiting sequence, or None if its blocks must wait.

        Beside others it starts only if all of its committed tokens would fit: starting what must soon be preempted
        helps nobody. Alone it may take everything: forks that only hold their share of a prompt give it up.
        """
        while True:
            fresh = not sequence.block_table
            if fresh and self._may_match_prefix(sequence):
                self.blocks.match_prefix(sequence)
            start = sequence.num_computed_tokens
            tokens = min(budget, sequence.num_uncomputed_tokens)
            fits = self.blocks.num_blocks_to_grow(sequence, sequence.num_tokens) <= self.blocks.num_free_blocks
            new = self.blocks.grow(sequence, start + tokens) if fits or not self.running else None
            if new is not None:
                break
            if self.running:
                if fresh:
                    self.blocks.free(sequence)
                return None
            self._preempt(max(self._block_owners(), key=lambda s: s.order))
        if fresh:
            self._count_prefix(sequence, start)
        copies.extend(new)
        return ScheduledRow(sequence, start, tokens)

    def _look_ahead(self, rows: list[ScheduledRow]) -> None:
        """Give drafts that have KV of their own the slots they will write after this step, as far as blocks go."""
        for row in rows:
            if row.reaches_end:
                end = min(row.end + row.sequence.num_lookahead_tokens, self.max_model_len)
                while end > row.end and self.blocks.grow(row.sequence, end) is None:
                    end -= 1

    def _may_match_prefix(self, sequence: Sequence) -> bool:
        """Log probabilities of the prompt need every prompt position computed."""
        return self.blocks.enable_prefix_caching and sequence.request.params.prompt_logprobs is None

    def _count_prefix(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Count a request's first look-up alone: what a sample finds again after losing its blocks is its own work."""
        if sequence.index or sequence.num_preemptions or not self._may_match_prefix(sequence):
            return
        sequence.num_cached_tokens = num_cached_tokens
        self.num_prefix_queries += sequence.num_tokens
        self.num_prefix_hits += num_cached_tokens

    def commit(self, schedule: Schedule, verdicts: Many[Verdict]) -> None:
        """Apply a step: count, append, stop, hash, free. `verdicts[i]` belongs to `schedule.rows[i]`."""
        assert len(verdicts) == len(schedule.rows)
        for row, verdict in zip(schedule.rows, verdicts, strict=True):
            self._commit_row(row, verdict)

    def draft_length(self, sequence: Sequence) -> int:
        """The longest draft that the next step could verify; one with KV of its own must also find its slots."""
        length = self.free_draft_length(sequence)
        if sequence.request.draft_kv is not None:
            num_slots = len(sequence.block_table) * self.blocks.block_size
            length = min(length, num_slots - sequence.num_tokens + 1)  # the last drafted token is not computed
        return max(0, length)

    def free_draft_length(self, sequence: Sequence) -> int:
        """The same for a draft that needs no slots."""
        if sequence.is_finished or sequence.num_uncomputed_tokens != 1:
            return 0
        return min(sequence.request.num_speculative_tokens, sequence.max_draft_length(self.max_model_len))

    def set_drafts(
        self, sequences: Many[Sequence], drafts: Many[Draft | None], kv_answers: Many[Draft | None] | None = None
    ) -> None:
        """Keep what a proposer answered to `draft_length`, None if it failed, and count its KV as computed.

        `kv_answers` are those of the proposers with KV where others drafted; None if they were not asked. Samples that
        wait for a prompt start now: they need not compute the draft's KV of it again.
        """
        answers = drafts if kv_answers is None else kv_answers
        for sequence, draft, answer in zip(sequences, drafts, answers, strict=True):
            if draft is not None:
                sequence.draft = draft
            if sequence.request.draft_kv is not None:
                if answer is not None:
                    drafted = sequence.num_tokens + answer.num_kv_tokens
                    sequence.num_draft_computed_tokens = drafted if answer else sequence.num_computed_tokens
                    self.blocks.commit(sequence)
                if sequence.num_output_tokens and sequence.num_uncomputed_tokens == 1:
                    self._release_forks(sequence)

    def restart(self, sequences: Iterable[Sequence]) -> None:
        """Go on with the samples of all unfinished requests from their committed tokens, whatever an interrupt left
        halfway (see `specdec.core.recovery`): none of them runs or holds blocks, what one was to end with ends it."""
        samples = list(sequences)
        for sequence in samples:
            self._give_up(sequence)
        self.blocks.restart()
        live = [sequence for sequence in samples if not sequence.is_finished]
        shared = {fork for sequence in live for fork in sequence.forks}
        self.running = []
        self.waiting = sorted((s for s in live if s not in shared), key=lambda s: s.order)

    def _give_up(self, sequence: Sequence) -> None:
        """Forget whatever of a sequence is computed or drafted."""
        sequence.block_table = []
        sequence.num_computed_tokens = sequence.num_draft_computed_tokens = sequence.num_hashed_blocks = 0
        del sequence.block_hashes[sequence.num_tokens // self.blocks.block_size :]
        sequence.draft = EMPTY_DRAFT
        if sequence.status is Status.RUNNING:
            sequence.num_preemptions += 1
            self.num_preemptions += 1
            sequence.status = Status.WAITING
        if sequence.finish_reason is not None and not sequence.is_finished:
            sequence.forks = []
            finish_text(sequence)
            sequence.status = Status.FINISHED

    def _commit_row(self, row: ScheduledRow, verdict: Verdict) -> None:
        sequence = row.sequence
        assert len(verdict.token_ids) == verdict.num_accepted + (row.reaches_end and verdict.error is None)
        known = len(sequence.prompt_logprobs) - row.start
        sequence.prompt_logprobs.extend((verdict.prompt_logprobs or ())[max(0, known) :])
        if verdict.error is not None:
            # What a faulty step left in the cache is not to be trusted: no block is registered, no fork shares it.
            if self._append(sequence, row.draft, verdict):
                self._finish(sequence)
            else:
                self.fail(sequence, verdict.error)
            return
        if not row.reaches_end:
            sequence.num_computed_tokens = row.end
            self._register(sequence)
            return
        num_rejected = row.num_draft_tokens - verdict.num_accepted
        sequence.num_computed_tokens = row.end - num_rejected
        sequence.draft = EMPTY_DRAFT
        ended = self._append(sequence, row.draft, verdict)
        # Whatever the draft's KV holds behind the accepted path belongs to tokens that were rejected.
        kept = row.num_tokens + row.draft.num_kept_tokens(verdict.accepted_path)
        sequence.num_draft_computed_tokens = min(sequence.num_draft_computed_tokens, kept)
        self._register(sequence)
        if ended or sequence.request.draft_kv is None or sequence.num_output_tokens > 1:
            self._release_forks(sequence)
        if ended:
            self._finish(sequence)

    def _register(self, sequence: Sequence) -> None:
        """Let others share what is complete. A proposer with KV has first to answer (`set_drafts`): of a block that the
        target has just filled it may still keep something."""
        if sequence.request.draft_kv is None:
            self.blocks.commit(sequence)

    def _append(self, sequence: Sequence, draft: Draft, verdict: Verdict) -> bool:
        """Commit the verdict's tokens up to the first stop, and count only what was kept."""
        accepted = verdict.num_accepted
        end_of_path = verdict.accepted_path[-1] if accepted else -1
        chosen = RECOVERED if draft.children(end_of_path) else BONUS
        kept, ended = 0, False
        for kept, token_id in enumerate(verdict.token_ids, 1):
            sequence.provenance.append(draft.proposer if kept <= accepted else chosen)
            if verdict.logprobs is not None:
                sequence.logprobs.append(verdict.logprobs[kept - 1])
            ended = append_token(sequence, token_id, self.max_model_len)
            if ended:
                break
        cut = kept <= accepted
        reached = sum(depth <= kept for depth in draft.depths) if cut else len(draft)
        sequence.stats.record(reached, min(kept, accepted))
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, sequence.num_tokens)
        return ended

    def _release_forks(self, sequence: Sequence) -> None:
        """Let the other samples of the request share the prompt that this one has computed."""
        for fork in sequence.forks:
            self.blocks.fork(sequence, fork, sequence.num_prompt_tokens - 1)
            fork.num_cached_tokens = sequence.num_cached_tokens
            self.add(fork)
        sequence.forks = []

    def _finish(self, sequence: Sequence) -> None:
        finish_text(sequence)
        self.blocks.free(sequence)
        sequence.draft = EMPTY_DRAFT
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        sequence.status = Status.FINISHED

    def fail(self, sequence: Sequence, error: str) -> None:
        """End a sequence, and the samples that wait for its prompt, with an error of their own."""
        for ended in (sequence, *self._waiting_forks(sequence)):
            ended.finish_reason, ended.error = "error", error
            self._end(ended)

    def abort(self, request_id: str) -> list[Sequence]:
        """End every unfinished sample of a request; returns them."""
        live = [s for queue in (self.running, self.waiting) for s in queue if s.request.request_id == request_id]
        ended = [s for sequence in live for s in (sequence, *self._waiting_forks(sequence))]
        for sequence in ended:
            sequence.finish_reason = "abort"
            self._end(sequence)
        return ended

    def _waiting_forks(self, sequence: Sequence) -> list[Sequence]:
        forks, sequence.forks = sequence.forks, []
        return forks

    def _end(self, sequence: Sequence) -> None:
        if sequence in self.running or sequence in self.waiting:
            self._finish(sequence)
        else:
            sequence.status = Status.FINISHED

    def check_integrity(self) -> None:
        """Assert everything that must hold between steps."""
        queued = [*self.running, *self.waiting]
        assert len({id(s) for s in queued}) == len(queued), "a sequence is queued twice"
        assert all(s.status is Status.RUNNING for s in self.running)
        assert all(s.status is Status.WAITING for s in self.waiting)
        assert len(self.running) <= self.max_num_seqs
        for queue in (self.running, self.waiting):
            assert queue == sorted(queue, key=lambda s: s.order)
        for sequence in self.running:
            assert 0 <= sequence.num_computed_tokens < sequence.num_tokens <= self.max_model_len
            recomputing = sequence.num_preemptions > 0
            if sequence.num_output_tokens and not recomputing:
                assert sequence.num_computed_tokens == sequence.num_tokens - 1
        self.blocks.check_integrity(queued)
