"""Answers of plain decoding beside which a proposer drafts at every token, and no draft is verified.

The drafts are kept for `specdec.eval.oracle`. Whoever learns from what was verified learns here of plain steps alone;
whoever learns from past answers has those of the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from specdec.core.sequence import Sequence
from specdec.engine import Engine
from specdec.engine.requests import draft_lengths
from specdec.eval.oracle import Agreement, agreement
from specdec.eval.session import Answer, Job, OnStep, answer_all, request_id
from specdec.proposers.base import ProposalInput, Proposer, Wants
from specdec.proposers.checking import checked_drafts
from specdec.step.kv_cache import KVCache
from specdec.types import EMPTY_DRAFT, Draft, SpeculationParams


@dataclass(frozen=True)
class Recording:
    """An answer, and by output token the draft that would have begun there; where none was made there is none."""

    answer: Answer
    drafts: Mapping[int, Draft]

    def track(self) -> list[Agreement]:
        """How the draft at each place agrees with the answer."""
        token_ids = self.answer.token_ids
        return [agreement(self.drafts.get(at, EMPTY_DRAFT), token_ids[at:]) for at in range(1, len(token_ids))]


@dataclass(frozen=True)
class Asking:
    """How a proposer is asked: under which name, and for how many tokens where any are wanted."""

    name: str
    length: int
    max_model_len: int
    vocab_size: int
    device: torch.device


class Shadow:
    """Stands in for a proposer: has it draft, keeps the drafts, and hands on empty ones."""

    def __init__(self, inner: Proposer, asking: Asking) -> None:
        self.drafts: dict[str, dict[int, Draft]] = {}
        """By request and output token."""
        self._inner = inner
        self._asking = asking

    @property
    def kv_caches(self) -> Many[KVCache]:
        return self._inner.kv_caches

    @property
    def wants(self) -> Wants:
        return self._inner.wants

    def propose(self, sequences: Many[Sequence], inp: ProposalInput) -> list[Draft | None]:
        """Empty drafts, and None where the proposer answers so."""
        asking = self._asking
        lengths = [self._length(*each) for each in zip(sequences, inp.lengths, strict=True)]
        drafts = self._inner.propose(sequences, replace(inp, lengths=lengths))
        checked = checked_drafts(drafts, lengths, asking.name, asking.vocab_size, asking.device)
        for sequence, draft in zip(sequences, checked, strict=True):
            if draft:
                own = self.drafts.setdefault(sequence.request.request_id, {})
                own[sequence.num_output_tokens] = Draft(draft.token_ids, draft.parents)
        return [None if draft is None else EMPTY_DRAFT for draft in checked]

    def _length(self, sequence: Sequence, length: int) -> int:
        """Its length as far as a step could verify it; one with KV has slots for what requests ask alone."""
        if not length or self._inner.kv_caches:
            return length
        return min(self._asking.length, sequence.max_draft_length(self._asking.max_model_len))

    def forget(self, sequence: Sequence) -> None:
        self._inner.forget(sequence)


@contextmanager
def shadowed(engine: Engine, name: str, length: int) -> Iterator[Shadow]:
    """In the `with` block the engine's proposer `name` drafts `length` tokens, and none of them are verified."""
    runner = engine.runner
    inner = runner.proposers[name]
    shadow = Shadow(inner, Asking(name, length, engine.max_model_len, runner.vocab_size, runner.device))
    runner.proposers[name] = shadow
    try:
        yield shadow
    finally:
        runner.proposers[name] = inner


def record_all(
    engine: Engine,
    name: str,
    length: int,
    jobs: Mapping[int, Job],
    concurrency: int,
    on_step: OnStep,
    recordings: dict[int, Recording],
) -> None:
    """Answer every job as `answer_all` does, with the proposer beside it; an `Interrupted` leaves what was finished."""
    own = SpeculationParams(name, min(length, draft_lengths(engine.config)[name]))
    answers: dict[int, Answer] = {}
    with shadowed(engine, name, length) as shadow:
        try:
            asked = {key: replace(job, speculation=own) for key, job in jobs.items()}
            answer_all(engine, asked, concurrency, on_step, answers)
        finally:
            for key, answer in answers.items():
                recordings[key] = Recording(answer, shadow.drafts.get(request_id(key), {}))
