"""Answers of plain decoding beside which proposers draft at every token, and no draft is verified.

The drafts are kept for `specdec.eval.oracle`. Whoever learns from what was verified learns here of plain steps alone;
whoever learns from past answers has those of the same pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace

from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.engine.requests import draft_lengths
from specdec.eval.oracle import Agreement, agreement
from specdec.eval.session import Answer, Job, OnStep, answer_all, request_id
from specdec.proposers.base import NOTHING, ProposalInput, Proposer, Wants
from specdec.proposers.checking import checked_drafts
from specdec.proposers.registry import METHODS
from specdec.runner import Runner
from specdec.step.kv_cache import KVCache
from specdec.types import EMPTY_DRAFT, Draft, SpeculationParams

Asked = tuple[str, int]
"""A proposer's name, and how many tokens it drafts where so many are wanted."""


@dataclass(frozen=True)
class Recording:
    """An answer, and by output token the draft that would have begun there; where none was made there is none."""

    answer: Answer
    drafts: Mapping[int, Draft]
    vocabulary: frozenset[int] | None = None
    """The tokens that the proposer can say; None: all."""

    def track(self) -> list[Agreement]:
        """How the draft at each place agrees with the answer."""
        token_ids = self.answer.token_ids
        return [agreement(self.drafts.get(at, EMPTY_DRAFT), token_ids[at:]) for at in range(1, len(token_ids))]

    def sayable(self) -> list[bool]:
        """Whether the answer's token at each place is in the vocabulary."""
        return [self.vocabulary is None or token_id in self.vocabulary for token_id in self.answer.token_ids[1:]]


def passes(runner: Runner, asked: Iterable[Asked]) -> list[tuple[Asked, ...]]:
    """Who can be asked beside the same answers: all that go by token ids alone; each of the others for itself."""
    together: list[Asked] = []
    apart: list[Asked] = []
    for each in asked:
        proposer = runner.proposers[each[0]]
        is_plain = each[0] in METHODS and proposer.wants == NOTHING and not proposer.kv_caches
        (together if is_plain else apart).append(each)
    return [*([tuple(together)] if together else []), *((each,) for each in apart)]


class Shadow:
    """Stands in for the first of some proposers: has all of them draft, keeps the drafts, and hands on empty ones."""

    def __init__(self, runner: Runner, asked: Many[Asked], max_model_len: int) -> None:
        self.drafts: dict[Asked, dict[str, dict[int, Draft]]] = {each: {} for each in asked}
        """By who made them, request and output token."""
        self._runner = runner
        self.proposers = {each: runner.proposers[each[0]] for each in asked}
        self._max_model_len = max_model_len

    @property
    def inner(self) -> Proposer:
        """Whose place it takes."""
        return next(iter(self.proposers.values()))

    @property
    def kv_caches(self) -> Many[KVCache]:
        return self.inner.kv_caches

    @property
    def wants(self) -> Wants:
        return self.inner.wants

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        """Empty drafts, and None where the first proposer answers so."""
        answers = [self._ask(each, sequences, inp) for each in self.proposers]
        return [None if draft is None else EMPTY_DRAFT for draft in answers[0]]

    def _ask(self, asked: Asked, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        proposer, runner = self.proposers[asked], self._runner
        lengths = inp.lengths
        if not proposer.kv_caches:  # one with KV has slots for what requests ask alone
            lengths = [self._length(asked, *each) for each in zip(sequences, inp.lengths, strict=True)]
        drafts = proposer.propose(list(sequences), replace(inp, lengths=lengths))
        checked = checked_drafts(drafts, lengths, asked[0], runner.vocab_size, runner.device)
        for sequence, draft in zip(sequences, checked, strict=True):
            if draft:
                own = self.drafts[asked].setdefault(sequence.request.request_id, {})
                own[sequence.num_output_tokens] = Draft(draft.token_ids, draft.parents)
        return checked

    def _length(self, asked: Asked, sequence: Sequence, length: int) -> int:
        """As far as a step could verify a draft, where one is wanted."""
        return min(asked[1], sequence.max_draft_length(self._max_model_len)) if length else 0

    def forget(self, sequence: Sequence) -> None:
        """The engine itself has the others forget."""
        self.inner.forget(sequence)


@contextmanager
def shadowed(engine: Engine, asked: Many[Asked]) -> Iterator[Shadow]:
    """In the `with` block the proposers `asked` draft wherever the first of them is wanted, and nothing is verified."""
    name = asked[0][0]
    shadow = Shadow(engine.runner, asked, engine.max_model_len)
    engine.runner.proposers[name] = shadow
    try:
        yield shadow
    finally:
        engine.runner.proposers[name] = shadow.inner


def record_all(
    engine: Engine,
    asked: Many[Asked],
    jobs: Mapping[int, Job],
    concurrency: int,
    on_step: OnStep,
    recordings: Mapping[Asked, dict[int, Recording]],
) -> None:
    """Answer every job as `answer_all` does, with one of `passes` beside it; an `Interrupted` leaves what was finished
    in `recordings`, which has an entry for each of `asked`."""
    name, length = asked[0]
    own = SpeculationParams(name, min(length, draft_lengths(engine.config)[name]))
    answers: dict[int, Answer] = {}
    with shadowed(engine, asked) as shadow:
        try:
            answer_all(
                engine,
                {key: replace(job, speculation=own) for key, job in jobs.items()},
                concurrency,
                on_step,
                answers,
            )
        finally:
            for each, drafts in shadow.drafts.items():
                vocabulary = _vocabulary(shadow.proposers[each])
                for key, answer in answers.items():
                    recordings[each][key] = Recording(answer, drafts.get(request_id(key), {}), vocabulary)


def _vocabulary(proposer: Proposer) -> frozenset[int] | None:
    """The tokens that a proposer can say, of one that tells (`specdec.proposers.base.Limited`); None: all."""
    token_ids = getattr(proposer, "sayable_token_ids", None)
    return None if token_ids is None else frozenset(token_ids.tolist())
