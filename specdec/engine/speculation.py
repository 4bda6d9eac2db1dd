"""Between two steps: who drafts for which sequence and how much, and what came of the last drafts.

A request names its proposer, and `auto` has its controller choose. Here sequences become the numbers that the
controller knows, and its choices questions to the runner. Tokens do not pass this way: of a draft, only its size does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Many

from specdec.config import AUTO
from specdec.core.control.chooser import Chooser
from specdec.core.control.types import MOST_HINT, NOTHING, PLAIN, Candidate, Choice, Outcome
from specdec.core.scheduler import Schedule, ScheduledRow, Scheduler
from specdec.core.sequence import Sequence
from specdec.runner import Answer, Runner
from specdec.step.record import StepRecord
from specdec.types import Verdict

USUAL_LAG = 32
"""Tokens that a proposer with KV computes in passing when it is asked; more are counted as what they cost."""

Asked = list[tuple[Sequence, Choice]]


class Speculation:
    """`controller` chooses for `auto`, where the engine has it."""

    def __init__(self, runner: Runner, scheduler: Scheduler, controller: Chooser | None) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.controller = controller
        self._last = StepRecord()

    def propose(self, schedule: Schedule, record: StepRecord) -> None:
        """Ask for the next drafts of everything that may still keep one, and let drafts' own KV follow the rest."""
        self._last = record
        live = [row.sequence for row in schedule.rows if not row.sequence.is_finished]
        asked = self._named([sequence for sequence in live if sequence.request.proposer != AUTO])
        chosen = self._chosen([sequence for sequence in live if sequence.request.proposer == AUTO], record)
        if not asked and not chosen:
            return
        sequences, choices = map(list, zip(*asked, *chosen, strict=True))
        answers = self.runner.propose(sequences, choices, record)
        if self.controller is not None and chosen:
            self._tell(chosen, answers[len(asked) :], record, asked)
        self.scheduler.set_drafts(sequences, [answer.draft for answer in answers], [answer.kv for answer in answers])

    def _named(self, sequences: Iterable[Sequence]) -> Asked:
        """Questions to the proposers that requests name."""
        lengths = [(sequence, self.scheduler.draft_length(sequence)) for sequence in sequences]
        return [
            (sequence, Choice(sequence.request.proposer, length))
            for sequence, length in lengths
            if length or sequence.request.draft_kv is not None
        ]

    def _chosen(self, sequences: Many[Sequence], record: StepRecord) -> Asked:
        """Questions that the controller chooses; in a prompt, who follows it."""
        if self.controller is None or not sequences:
            return []
        drafting = [sequence for sequence in sequences if self.scheduler.free_draft_length(sequence)]
        chosen: Asked = []
        if drafting:
            chosen = self._choose(drafting, self.controller, record)
        owned = [sequence for sequence in sequences if sequence.request.draft_kv is not None]
        others = [sequence for sequence in owned if sequence not in drafting]
        follow = self.controller.prompt_followers
        chosen += [(each, Choice(followers=tuple(follow(each, each.num_tokens)))) for each in others]
        return chosen

    def _choose(self, drafting: Many[Sequence], controller: Chooser, record: StepRecord) -> Asked:
        """The controller's decision, where there is anybody to ask."""
        asked = controller.wanted_hints(len(drafting))
        if not asked and controller.needs_hints:
            controller.rest(len(drafting), self._num_rows())
            choices = [Choice()] * len(drafting)
        else:
            candidates = self._candidates(drafting, self._hints(asked, drafting, record))
            choices = controller.choose(candidates, self._num_rows())
        return [
            (sequence, choice)
            for sequence, choice in zip(drafting, choices, strict=True)
            if choice.proposer != PLAIN or choice.followers or sequence.request.draft_kv is not None
        ]

    def _num_rows(self) -> int:
        """What the next step computes without drafts."""
        most = self.scheduler.max_num_batched_tokens
        return min(most, sum(min(most, sequence.num_uncomputed_tokens) for sequence in self.scheduler.running))

    def _hints(self, names: Many[str], sequences: Many[Sequence], record: StepRecord) -> list[dict[str, int]]:
        assert self.controller is not None
        hints: list[dict[str, int]] = [{} for _ in sequences]
        for name in names:
            told = self.runner.hints(name, sequences, record)
            if told is not None:
                for own, hint in zip(hints, told, strict=True):
                    own[name] = max(NOTHING, min(MOST_HINT, hint))
            if name in record.hints:
                self.controller.hinted(name, [(s, s.num_tokens) for s in sequences], record.hints[name])
        return hints

    def _candidates(self, sequences: Many[Sequence], hints: Many[dict[str, int]]) -> list[Candidate]:
        return [
            Candidate(
                key=sequence,
                num_tokens=sequence.num_tokens,
                length=self.scheduler.free_draft_length(sequence),
                kv_length=self.scheduler.draft_length(sequence),
                lag=_lag(sequence),
                is_greedy=sequence.request.params.is_greedy,
                hints=own,
            )
            for sequence, own in zip(sequences, hints, strict=True)
        ]

    def _tell(self, chosen: Asked, answers: Many[Answer], record: StepRecord, others: Asked) -> None:
        """Tell the controller how large the drafts are, and what they took."""
        assert self.controller is not None
        for name, seconds in record.drafts.items():
            drafts, followed = [], []
            for (sequence, choice), answer in zip(chosen, answers, strict=True):
                if choice.proposer == name:
                    draft = answer.draft
                    drafts.append((sequence, draft.depth if draft else 0, len(draft) if draft else 0))
                elif name in choice.followers:
                    followed.append(sequence)
            mine = len(drafts) + len(followed)
            seconds *= mine / max(1, mine + sum(choice.proposer == name for _, choice in others))
            if drafts:
                read: dict[Hashable, int] = {each: _num_followed(each) for each in followed if _lag(each)}
                self.controller.drafted(name, drafts, seconds, read)
            elif followed:
                missed = sum(map(_num_followed, followed))
                in_prompt = any(sequence.num_uncomputed_tokens > 1 or _lag(sequence) for sequence in followed)
                known = [(sequence, sequence.num_tokens) for sequence in followed]
                self.controller.followed(name, known, missed, seconds, in_prompt)

    def verified(self, schedule: Schedule, verdicts: Many[Verdict], record: StepRecord) -> None:
        """Tell the controller what a step accepted, and what it took."""
        if self.controller is None:
            return
        outcomes = [
            Outcome(row.sequence, row.draft.depth, row.num_draft_tokens, verdict.num_accepted)
            for row, verdict in zip(schedule.rows, verdicts, strict=True)
            if row.sequence.request.proposer == AUTO and _is_decode(row)
        ]
        is_pure = all(_is_decode(row) for row in schedule.rows)
        self.controller.verified(outcomes, record.num_tokens, record.decoding, self._last.propose, is_pure)

    def forget(self, sequence: Sequence) -> None:
        """A sequence is done."""
        self.runner.forget(sequence)
        if self.controller is not None:
            self.controller.forget(sequence)


def _is_decode(row: ScheduledRow) -> bool:
    return row.reaches_end and row.num_scheduled_tokens == 1 + row.num_draft_tokens


def _num_followed(sequence: Sequence) -> int:
    """Tokens that its follower has to compute: of a prompt's chunk no more than that."""
    return sequence.num_computed_tokens - sequence.num_draft_computed_tokens


def _lag(sequence: Sequence) -> int:
    if sequence.request.draft_kv is None:
        return 0
    missed = sequence.num_tokens - 1 - sequence.num_draft_computed_tokens
    return missed if missed > USUAL_LAG else 0
