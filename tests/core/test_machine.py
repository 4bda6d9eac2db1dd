"""A hypothesis state machine over the torch-free core: nothing leaks, nothing unverified is shared."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdec.core.block_manager import BlockManager
from specdec.core.recovery import mark, recover
from specdec.core.scheduler import Schedule, ScheduledRow, Scheduler
from specdec.core.sequence import Sequence, Status
from specdec.step.paths import path_moves
from specdec.types import Draft, Request, SamplingParams, Verdict

VOCABULARY = 3
EOS = 2
TOKENS = st.sampled_from([0, 1, 0, 1, 0, 1, EOS])
"""What is generated: long runs, so that drafts are verified in many states."""


class CoreMachine(RuleBasedStateMachine):
    """Random requests, schedules, verdicts and drafts.

    `kv` models the target's cache: slot -> the prefix whose last token it holds; `draft_kv` is that of the draft model
    which some requests have.
    """

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 4),
        spare_budget=st.integers(0, 8),
        caching=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, spare_budget: int, caching: bool) -> None:
        self.blocks = BlockManager(num_blocks, block_size, caching)
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            max_model_len=num_blocks * block_size,
        )
        self.kv: dict[int, tuple[int, ...]] = {}
        self.draft_kv: dict[int, tuple[int, ...]] = {}
        self.all: list[Sequence] = []
        self.arrivals = 0

    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=10),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        max_tokens=st.integers(1, 30),
        salt=st.sampled_from([None, "a"]),
        k=st.sampled_from([4, 3, 2, 1, 0]),
        owns_kv=st.booleans(),
        ahead=st.none() | st.integers(0, 9),
    )
    def add(
        self,
        prompt: list[int],
        n: int,
        priority: int,
        max_tokens: int,
        salt: str | None,
        k: int,
        owns_kv: bool,
        ahead: int | None,
    ) -> None:
        prompt = prompt[: self.scheduler.max_model_len - 1]
        params = SamplingParams(n=n, max_tokens=max_tokens, detokenize=False)
        self.arrivals += 1
        request = Request(
            request_id=str(self.arrivals),
            prompt_token_ids=tuple(prompt),
            params=params,
            seed=0,
            arrival=self.arrivals,
            priority=priority,
            cache_salt=salt,
            proposer="random",
            num_speculative_tokens=k,
            draft_kv="random" if owns_kv and k else None,
            num_lookahead_tokens=ahead,
            stop_token_ids=frozenset({EOS}),
            eos_token_ids=frozenset({EOS}),
        )
        samples = [Sequence(request, i, list(prompt)) for i in range(n)]
        samples[0].forks = samples[1:]
        self.all += samples
        self.scheduler.add(samples[0])

    @precondition(lambda self: self.scheduler.has_unfinished())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            self.step_once(data)

    def step_once(self, data: st.DataObject) -> None:
        schedule = self.scheduler.schedule()
        assert sum(r.num_scheduled_tokens for r in schedule.rows) <= self.scheduler.max_num_batched_tokens
        self.write(schedule)
        verdicts = [self.judge(row, data) for row in schedule.rows]
        moves = path_moves(schedule.rows, verdicts, self.blocks.block_size)
        self.kv |= dict(zip((to for _, to in moves), [self.kv[source] for source, _ in moves], strict=True))
        owned = [i for i, row in enumerate(schedule.rows) if row.draft.has_kv and row.sequence.request.draft_kv]
        moves = path_moves([schedule.rows[i] for i in owned], [verdicts[i] for i in owned], self.blocks.block_size)
        held = [self.draft_kv.get(source, (-1,)) for source, _ in moves]
        self.draft_kv |= dict(zip((to for _, to in moves), held, strict=True))
        self.scheduler.commit(schedule, verdicts)
        if data.draw(st.integers(0, 9)):  # else the step is interrupted before it drafts
            self.propose(schedule, data)

    def judge(self, row, data: st.DataObject) -> Verdict:
        if not row.reaches_end:
            return Verdict()
        if data.draw(st.integers(0, 19)) == 0:
            return Verdict(error="planned")
        path: list[int] = []
        while (children := row.draft.children(path[-1] if path else -1)) and data.draw(st.booleans()):
            path.append(data.draw(st.sampled_from(children)))
        extra = data.draw(st.integers(0, VOCABULARY - 1))
        return Verdict((*(row.draft.token_ids[node] for node in path), extra), tuple(path))

    def write(self, schedule: Schedule) -> None:
        """Copy blocks, then write every span; a slot written must belong to this row alone."""
        size = self.blocks.block_size
        for kv in (self.kv, self.draft_kv):
            before = dict(kv)
            for source, destination in schedule.block_copies:
                for offset in range(size):
                    kv.pop(destination * size + offset, None)
                    if source * size + offset in before:
                        kv[destination * size + offset] = before[source * size + offset]
        owners = {}
        for row in schedule.rows:
            sequence = row.sequence
            for position in range(row.start, row.end):
                slot = self.slot(sequence, position)
                assert owners.setdefault(slot, sequence) is sequence, "two rows write one slot"
                self.kv[slot] = self.prefix(row, position)
            assert self.committed_kv_is_right(sequence, row.start)
        live = [*self.scheduler.running, *self.scheduler.waiting]
        for sequence in live:
            assert self.committed_kv_is_right(sequence, sequence.num_computed_tokens), "a shared block was written"

    def prefix(self, row, position: int) -> tuple[int, ...]:
        """What the span's entry at `position` is computed from: committed tokens, then a node's path."""
        node = position - row.num_tokens
        if node < 0:
            return tuple(row.sequence.token_ids[: position + 1])
        parent = node - 1 if row.draft.parents is None else row.draft.parents[node]
        return (*self.prefix(row, row.num_tokens + parent), row.draft.token_ids[node])

    def slot(self, sequence: Sequence, position: int) -> int:
        return sequence.block_table[position // self.blocks.block_size] * self.blocks.block_size + (
            position % self.blocks.block_size
        )

    def committed_kv_is_right(self, sequence: Sequence, length: int) -> bool:
        return all(self.kv[self.slot(sequence, p)] == tuple(sequence.token_ids[: p + 1]) for p in range(length))

    def draft_kv_is_right(self, sequence: Sequence) -> bool:
        """Of committed tokens all that are counted, of drafted ones those that have children."""
        row = ScheduledRow(sequence, 0, sequence.num_tokens + len(sequence.draft), sequence.draft)
        return all(
            self.draft_kv[self.slot(sequence, p)] == self.prefix(row, p)
            for p in range(sequence.num_draft_computed_tokens)
            if p < sequence.num_tokens or sequence.draft.children(p - sequence.num_tokens)
        )

    def propose(self, schedule: Schedule, data: st.DataObject) -> None:
        asked = [row.sequence for row in schedule.rows if row.sequence.status is Status.RUNNING]
        answers: list[Draft | None] = []
        for sequence in asked:
            length = self.scheduler.draft_length(sequence)
            assert length <= sequence.request.num_speculative_tokens
            count = length - data.draw(st.integers(0, length))
            drafted = data.draw(st.lists(TOKENS, min_size=count, max_size=count))
            fails = data.draw(st.integers(0, 9)) == 0
            parents = None
            if data.draw(st.booleans()):
                parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(len(drafted)))
            draft = Draft(tuple(drafted), parents, proposer="random", has_kv=data.draw(st.booleans()))
            if sequence.request.draft_kv is not None:
                self.write_draft(sequence, draft, length, data.draw(st.integers(0, 9)) if fails else None)
            answers.append(None if fails else draft)
        self.scheduler.set_drafts(asked, answers)

    def write_draft(self, sequence: Sequence, draft: Draft, length: int, limit: int | None) -> None:
        """What a proposer with KV computes for one draft; the first `limit` positions of it if it fails then.

        It goes as far as the block table; what it does not vouch for is junk.
        """
        start = sequence.num_draft_computed_tokens
        end = sequence.num_tokens if length else sequence.num_computed_tokens
        row = ScheduledRow(sequence, 0, sequence.num_tokens + len(draft), draft)
        if draft:
            end += draft.num_kv_tokens if draft.has_kv else len(draft) - 1
        for position in range(start, end if limit is None else min(end, start + limit)):
            drafted = position - sequence.num_tokens
            vouched = drafted < 0 or (draft.has_kv and draft.children(drafted))
            self.draft_kv[self.slot(sequence, position)] = self.prefix(row, position) if vouched else (-1,)

    @precondition(lambda self: self.scheduler.has_unfinished())
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """A step is cut off after some of its rows are committed; what it allocated is in disorder."""
        schedule = self.scheduler.schedule()
        self.write(schedule)
        samples = [sequence for sequence in self.all if not sequence.is_finished]
        before = [(sequence, list(sequence.token_ids), sequence.stats.copy()) for sequence in samples]
        marks = [mark(row.sequence) for row in schedule.rows]
        for row in schedule.rows[: data.draw(st.integers(0, len(schedule.rows)))]:
            verdict = self.judge(row, data)
            if verdict.accepted_path == tuple(range(verdict.num_accepted)):  # else its KV would first be moved
                self.scheduler._commit_row(row, verdict)
        for _ in range(data.draw(st.integers(0, 2))):
            if self.blocks.num_free_blocks:
                self.blocks._allocate()
        recover(self.scheduler, samples, marks, lambda sequence: None)
        for sequence, token_ids, stats in before:
            assert (sequence.token_ids, sequence.stats) == (token_ids, stats)
            assert not sequence.is_finished
            assert not sequence.block_table

    @precondition(lambda self: self.scheduler.has_unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        unfinished = sorted({s.request.request_id for s in self.all if not s.is_finished})
        chosen = data.draw(st.sampled_from(unfinished))
        assert self.scheduler.abort(chosen)
        assert all(s.is_finished for s in self.all if s.request.request_id == chosen)

    @rule()
    def reset(self) -> None:
        idle = not any(s.block_table for s in self.all)
        assert self.blocks.reset_prefix_cache() == idle

    @invariant()
    def holds(self) -> None:
        self.scheduler.check_integrity()
        for sequence in self.all:
            if sequence.is_finished:
                assert not sequence.block_table
            else:
                assert self.committed_kv_is_right(sequence, sequence.num_computed_tokens)
                assert self.draft_kv_is_right(sequence)
                if sequence.request.draft_kv is None:
                    assert not sequence.num_draft_computed_tokens

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if not self.scheduler.has_unfinished():
                break
            schedule = self.scheduler.schedule()
            self.write(schedule)
            verdicts = [Verdict((0,)) if row.reaches_end else Verdict() for row in schedule.rows]
            self.scheduler.commit(schedule, verdicts)
            self.holds()
        assert not self.scheduler.has_unfinished(), "the queue does not drain"
        assert self.blocks.num_free_blocks == self.blocks.num_blocks, "a block leaked"
        assert all(s.is_finished and s.finish_reason for s in self.all)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
