"""One step on the device: batch, forward, verify; and the drafts of the next one.

Plain values cross its border: a `Schedule` comes in, `Verdict`s and drafted token ids go out. Tensors (KV, hidden
states, draft laws) stay here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce

import torch

from specdec.core.control.types import PLAIN, Choice
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.kernels import Kernels, one_torch_thread
from specdec.proposers.base import NOTHING, ProposalInput, Proposer, TargetStates, Wants
from specdec.proposers.checking import ContractError, checked_drafts, untouched
from specdec.proposers.outside import one_line
from specdec.proposers.states import join_states, target_states, with_missed
from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.process import process_logits, sampling_rows
from specdec.sampling.verify import verify
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Computed, Model, compute
from specdec.step.paths import path_moves
from specdec.step.record import StepRecord
from specdec.types import EMPTY_DRAFT, Draft, Logprob, ProposerWarning, Verdict

PROMPT_LOGITS_CHUNK = 128
"""Prompt positions whose logits are held at once for `prompt_logprobs`."""


@dataclass(frozen=True)
class Answer:
    """What a sequence's proposers answered: `draft` is of the one that was chosen, `kv` of the one that keeps KV for
    the sequence; None where there was none to ask, or it failed."""

    draft: Draft | None = None
    kv: Draft | None = None


class Runner:
    """A target, its KV cache, the loaded proposers by name, and the verifier for sampled rows.

    `portfolios` are names under which a request may be drafted for by any of some proposers.
    """

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        proposers: Mapping[str, Proposer],
        kernels: Kernels,
        *,
        vocab_size: int,
        verifier: str,
        device: torch.device,
        portfolios: Mapping[str, Many[str]] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.model = model
        self.kv = kv
        self.proposers = dict(proposers)
        self.kernels = kernels
        self.verifier = verifier
        self.device = device
        self._draft_probs: dict[tuple[str, int], torch.Tensor] = {}
        self._states: dict[Sequence, tuple[TargetStates, ...]] = {}
        self._missed: dict[Sequence, tuple[TargetStates, ...]] = {}
        self._wants = {name: proposer.wants for name, proposer in self.proposers.items()}
        for name, members in (portfolios or {}).items():
            self._wants[name] = reduce(Wants.plus, (self._wants[member] for member in members), NOTHING)
        self._aux_layers = tuple(sorted({layer for wants in self._wants.values() for layer in wants.aux_layers}))

    @torch.inference_mode()
    def execute(self, schedule: Schedule, record: StepRecord) -> list[Verdict]:
        """Compute the schedule and judge its drafts, one verdict a row.

        If the step fails as a whole, every row is tried alone, so that only the one at fault ends with the error.
        """
        with self._threads():
            return self._execute(schedule, record)

    def _threads(self) -> AbstractContextManager[None]:
        """torch's threads stay out of the way of kernels that have threads of their own."""
        return one_torch_thread() if self.kernels.own_threads else nullcontext()

    def _execute(self, schedule: Schedule, record: StepRecord) -> list[Verdict]:
        for kv in (self.kv, *(cache for proposer in self.proposers.values() for cache in proposer.kv_caches)):
            kv.copy_blocks(schedule.block_copies)
        # A proposer with KV that failed, or was not asked, must see what it missed.
        self._missed = {sequence: states for sequence, states in self._states.items() if sequence.request.draft_kv}
        self._states.clear()
        rows = tuple(self._with_draft_probs(row) for row in schedule.rows)
        try:
            return self._execute_rows(rows, record)
        except Exception:
            return [self._execute_alone(row, record) for row in rows]

    def _execute_alone(self, row: ScheduledRow, record: StepRecord) -> Verdict:
        try:
            return self._execute_rows((row,), record)[0]
        except Exception as error:
            return Verdict(error=f"the step failed: {one_line(error)}")

    def _execute_rows(self, rows: tuple[ScheduledRow, ...], record: StepRecord) -> list[Verdict]:
        with record.time("batch"):
            batch = Batch.build(Schedule(rows), self.kv.block_size, self.device)
        with record.time("forward"):
            computed = compute(self.model, batch, self.kv, self._aux_layers)
        with record.time("sample"):
            judged = iter(self._verify(computed, batch))
            verdicts = [next(judged) if row.num_logits else Verdict() for row in rows]
            for sequence, states in target_states(batch, verdicts, self._wants, computed).items():
                self._states[sequence] = with_missed(self._missed.get(sequence, ()), states)
            return self._with_prompt_logprobs(verdicts, computed.hidden, batch)

    def _with_draft_probs(self, row: ScheduledRow) -> ScheduledRow:
        """Give a draft back the law it was drawn from, which never left this side."""
        probs = self._draft_probs.get(row.sequence.key)
        if probs is None or not row.num_draft_tokens:
            return row
        return replace(row, draft=replace(row.draft, draft_probs=probs[: row.num_draft_tokens]))

    def _verify(self, computed: Computed, batch: Batch) -> list[Verdict]:
        """Verdicts of the rows that take logits, in order."""
        rows, logits = sampling_rows(batch), computed.logits
        if not rows:
            return []
        processed = process_logits(logits, rows, self.kernels)
        largest = computed.largest if processed is logits else None
        verdicts = verify(processed, rows, self.verifier, self.kernels, largest)
        starts = [start for start, row in zip(batch.logits_start, batch.rows, strict=False) if row.num_logits]
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            wanted = row.params.logprobs
            if wanted is not None:
                verdicts[i] = replace(verdicts[i], logprobs=_logprobs(logits, start, verdicts[i], wanted))
        return verdicts

    def keep_paths(self, schedule: Schedule, verdicts: Many[Verdict]) -> None:
        """Make the KV of accepted paths contiguous, so that a tree leaves behind what plain decoding would."""
        self._move_paths((self.kv,), schedule.rows, verdicts)
        for name, proposer in self.proposers.items():
            if proposer.kv_caches:
                own = [i for i, row in enumerate(schedule.rows) if row.draft.has_kv and row.kv_owner == name]
                self._move_paths(proposer.kv_caches, [schedule.rows[i] for i in own], [verdicts[i] for i in own])

    def _move_paths(self, caches: Iterable[KVCache], rows: Many[ScheduledRow], verdicts: Many[Verdict]) -> None:
        moves = path_moves(rows, verdicts, self.kv.block_size)
        if not moves:
            return
        with torch.inference_mode():
            slots_from, slots_to = torch.tensor(moves, device=self.device).unbind(-1)
            for kv in caches:
                kv.move(slots_from, slots_to, self.kernels)

    def _with_prompt_logprobs(self, verdicts: list[Verdict], hidden: torch.Tensor, batch: Batch) -> list[Verdict]:
        at = 0
        for i, row in enumerate(batch.rows):
            if row.num_prompt_logits:
                entries = self._prompt_logprobs(row, hidden[at : at + row.num_prompt_logits])
                verdicts[i] = replace(verdicts[i], prompt_logprobs=tuple(entries))
            at += row.num_scheduled_tokens
        return verdicts

    def _prompt_logprobs(self, row: ScheduledRow, hidden: torch.Tensor) -> list[dict[int, Logprob]]:
        """Log probabilities of the prompt tokens that follow the span's positions."""
        wanted = row.sequence.request.params.prompt_logprobs
        assert wanted is not None
        following = row.sequence.token_ids[row.start + 1 : row.start + 1 + hidden.shape[0]]
        entries: list[dict[int, Logprob]] = []
        for first in range(0, len(following), PROMPT_LOGITS_CHUNK):
            chunk = slice(first, first + PROMPT_LOGITS_CHUNK)
            entries += token_logprobs(self.model.compute_logits(hidden[chunk]), following[chunk], wanted)
        return entries

    def hints(self, name: str, sequences: Many[Sequence], record: StepRecord) -> list[int] | None:
        """How much a proposer has to go by, for each sequence; None if it does not tell."""
        hint = getattr(self.proposers[name], "hint", None)
        if hint is None:
            return None
        try:
            with record.time_proposer(record.hints, name):
                return [int(hint(sequence)) for sequence in sequences]
        except Exception as error:
            _warn(name, error, "failed and gives no hint this step")
            return None

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], choices: Many[Choice], record: StepRecord) -> list[Answer]:
        """Drafts for the next step, from the proposer that is chosen for each sequence, at most as long as asked for.
        Those that follow are asked for none.

        A draft's law stays here; the returned drafts hold token ids only. A proposer that fails gives a warning and,
        for its sequences, None; it never costs a request.
        """
        answers: dict[str, dict[Sequence, Draft | None]] = {}
        for name in self.proposers:
            asked = {
                sequence: choice.length if choice.proposer == name else 0
                for sequence, choice in zip(sequences, choices, strict=True)
                if name in (choice.proposer, *choice.followers) and name != PLAIN
            }
            if asked:
                with record.time_proposer(record.drafts, name), self._threads():
                    answers[name] = self._ask(name, asked)
        return [self._answer(sequence, choice, answers) for sequence, choice in zip(sequences, choices, strict=True)]

    def _ask(self, name: str, asked: Mapping[Sequence, int]) -> dict[Sequence, Draft | None]:
        """One proposer's drafts for sequences, of lengths; None for all of them, with a warning, where it fails or
        breaks its contract."""
        mine = list(asked)
        try:
            drafts = self._checked(name, mine, list(asked.values()))
        except Exception as error:
            _warn(name, error, "failed and gives no draft this step")
            return dict.fromkeys(mine)
        for sequence in mine:
            if sequence.request.draft_kv == name:
                self._states.pop(sequence, None)
        return dict(zip(mine, drafts, strict=True))

    def _checked(self, name: str, sequences: Many[Sequence], lengths: Many[int]) -> list[Draft | None]:
        """One proposer's drafts, which keep its contract; ContractError otherwise, or what it raises itself.

        It gets lists of its own, and whatever it did to the committed tokens is undone.
        """
        proposer = self.proposers[name]
        states = [self._states_for(name, sequence) for sequence in sequences] if proposer.wants.states else []
        with untouched(sequences):
            drafts = proposer.propose(list(sequences), ProposalInput(list(lengths), states))
        return checked_drafts(drafts, lengths, name, self.vocab_size, self.device)

    def _states_for(self, name: str, sequence: Sequence) -> TargetStates | None:
        """What the last step left, and for a proposer with KV the steps before that it has not seen."""
        steps = self._states.get(sequence)
        if not steps:
            return None
        return join_states(steps) if sequence.request.draft_kv == name else steps[-1]

    def _answer(
        self, sequence: Sequence, choice: Choice, answers: Mapping[str, Mapping[Sequence, Draft | None]]
    ) -> Answer:
        owner = sequence.request.draft_kv
        draft = EMPTY_DRAFT if choice.proposer == PLAIN else answers[choice.proposer][sequence]
        kept = self._keep_draft_probs(sequence, draft)
        if owner is None or owner == choice.proposer:
            return Answer(kept, kept)
        return Answer(kept, answers.get(owner, {}).get(sequence))

    def _keep_draft_probs(self, sequence: Sequence, draft: Draft | None) -> Draft | None:
        if draft is None or draft.draft_probs is None:
            self._draft_probs.pop(sequence.key, None)
            return draft
        self._draft_probs[sequence.key] = draft.draft_probs
        return replace(draft, draft_probs=None)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a finished sequence."""
        self._draft_probs.pop(sequence.key, None)
        self._states.pop(sequence, None)
        self._missed.pop(sequence, None)
        for name, proposer in self.proposers.items():
            try:
                proposer.forget(sequence)
            except Exception as error:
                _warn(name, error, "failed to forget a sequence")


def _warn(name: str, error: Exception, what: str) -> None:
    kind, text = type(error).__name__, one_line(error)
    if isinstance(error, ContractError):
        kind, text = error.kind, str(error)
    warning = ProposerWarning(f"proposer {name!r} {what}: {text}", (name, what, kind))
    warnings.warn(warning, stacklevel=5)  # the engine's step, past torch's wrapper of `propose`


def _logprobs(logits: torch.Tensor, start: int, verdict: Verdict, wanted: int) -> tuple[dict[int, Logprob], ...]:
    """Alternatives at each of a verdict's tokens, from the logits row that its token was chosen from."""
    indices = [start, *(start + 1 + node for node in verdict.accepted_path)][: len(verdict.token_ids)]
    return tuple(token_logprobs(logits[indices], verdict.token_ids, wanted))
