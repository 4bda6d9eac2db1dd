"""One step on the device: batch, forward, verify; and the drafts of the next one.

Plain values cross its border: a `Schedule` comes in, `Verdict`s and drafted token ids go out. Tensors (KV, hidden
states, draft laws) stay here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.kernels import Kernels
from specdec.proposers.base import ProposalInput, Proposer, TargetStates
from specdec.proposers.checking import ContractError, checked_drafts, untouched
from specdec.proposers.outside import one_line
from specdec.proposers.states import join_states, target_states
from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.process import process_logits, sampling_rows
from specdec.sampling.verify import verify
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Model
from specdec.step.paths import path_moves
from specdec.types import Draft, Logprob, ProposerWarning, Verdict

PROMPT_LOGITS_CHUNK = 128
"""Prompt positions whose logits are held at once for `prompt_logprobs`."""


@dataclass
class StepRecord:
    """Seconds of one step by stage, and its size."""

    schedule: float = 0.0
    batch: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    commit: float = 0.0
    propose: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of a `with` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - start)

    @property
    def overhead(self) -> float:
        """Seconds spent outside the model."""
        return self.schedule + self.batch + self.sample + self.commit + self.propose


class Runner:
    """A target, its KV cache, the loaded proposers by name, and the verifier for sampled rows."""

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
    ) -> None:
        self.vocab_size = vocab_size
        self.model = model
        self.kv = kv
        self.proposers = dict(proposers)
        self.kernels = kernels
        self.verifier = verifier
        self.device = device
        self._draft_probs: dict[tuple[str, int], torch.Tensor] = {}
        self._states: dict[Sequence, TargetStates] = {}
        self._missed: dict[Sequence, TargetStates] = {}
        self._wants = {name: proposer.wants for name, proposer in self.proposers.items()}
        self._aux_layers = tuple(sorted({layer for wants in self._wants.values() for layer in wants.aux_layers}))

    @torch.inference_mode()
    def execute(self, schedule: Schedule, record: StepRecord) -> list[Verdict]:
        """Compute the schedule and judge its drafts, one verdict a row.

        If the step fails as a whole, every row is tried alone, so that only the one at fault ends with the error.
        """
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
            hidden, aux = self._forward(batch)
            logits = self.model.compute_logits(hidden[batch.logits_indices])
        with record.time("sample"):
            judged = iter(self._verify(logits, batch))
            verdicts = [next(judged) if row.num_logits else Verdict() for row in rows]
            for sequence, states in target_states(batch, verdicts, self._wants, hidden, aux, logits).items():
                missed = self._missed.get(sequence)
                self._states[sequence] = states if missed is None else join_states(missed, states)
            return self._with_prompt_logprobs(verdicts, hidden, batch)

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, Mapping[int, torch.Tensor]]:
        """Final states, and the layers' inputs that some proposer wants."""
        if not self._aux_layers:
            return self.model.forward(batch, self.kv), {}
        return self.model.forward_with_aux(batch, self.kv, self._aux_layers)

    def _with_draft_probs(self, row: ScheduledRow) -> ScheduledRow:
        """Give a draft back the law it was drawn from, which never left this side."""
        probs = self._draft_probs.get(row.sequence.key)
        if probs is None or not row.num_draft_tokens:
            return row
        return replace(row, draft=replace(row.draft, draft_probs=probs[: row.num_draft_tokens]))

    def _verify(self, logits: torch.Tensor, batch: Batch) -> list[Verdict]:
        """Verdicts of the rows that take logits, in order."""
        rows = sampling_rows(batch)
        if not rows:
            return []
        verdicts = verify(process_logits(logits, rows), rows, self.verifier, self.kernels)
        starts = [start for start, row in zip(batch.logits_start, batch.rows, strict=False) if row.num_logits]
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            wanted = row.params.logprobs
            if wanted is not None:
                verdicts[i] = replace(verdicts[i], logprobs=_logprobs(logits, start, verdicts[i], wanted))
        return verdicts

    @torch.inference_mode()
    def keep_paths(self, schedule: Schedule, verdicts: Many[Verdict]) -> None:
        """Make the KV of accepted paths contiguous, so that a tree leaves behind what plain decoding would."""
        self._move_paths((self.kv,), schedule.rows, verdicts)
        for name, proposer in self.proposers.items():
            if proposer.kv_caches:
                own = [i for i, row in enumerate(schedule.rows) if row.draft.has_kv and row.proposer == name]
                self._move_paths(proposer.kv_caches, [schedule.rows[i] for i in own], [verdicts[i] for i in own])

    def _move_paths(self, caches: Iterable[KVCache], rows: Many[ScheduledRow], verdicts: Many[Verdict]) -> None:
        moves = path_moves(rows, verdicts, self.kv.block_size)
        if moves:
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

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], lengths: Many[int]) -> list[Draft | None]:
        """Drafts for the next step, at most `lengths[i]` tokens each, from the proposer that each request names.

        A draft's law stays here; the returned drafts hold token ids only. A proposer that fails gives a warning and,
        for its sequences, None; it never costs a request.
        """
        drafts: dict[Sequence, Draft | None] = {}
        for name, proposer in self.proposers.items():
            chosen = [i for i, sequence in enumerate(sequences) if sequence.request.proposer == name]
            if not chosen:
                continue
            mine = [sequences[i] for i in chosen]
            try:
                drafts.update(zip(mine, self._ask(name, proposer, mine, [lengths[i] for i in chosen]), strict=True))
                for sequence in mine:
                    self._states.pop(sequence, None)
            except Exception as error:
                _warn(name, error, "failed and gives no draft this step")
                drafts.update((sequence, None) for sequence in mine)
        return [self._keep_draft_probs(sequence, drafts[sequence]) for sequence in sequences]

    def _ask(self, name: str, proposer: Proposer, sequences: Many[Sequence], lengths: Many[int]) -> list[Draft | None]:
        """One proposer's drafts, which keep its contract; ContractError otherwise, or what it raises itself.

        It gets lists of its own, and whatever it did to the committed tokens is undone.
        """
        states = [] if not proposer.wants.states else [self._states.get(sequence) for sequence in sequences]
        with untouched(sequences):
            drafts = proposer.propose(list(sequences), ProposalInput(list(lengths), states))
        return checked_drafts(drafts, lengths, name, self.vocab_size, self.device)

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
    warnings.warn(warning, stacklevel=4)  # the engine's step, past torch's wrapper of `propose`


def _logprobs(logits: torch.Tensor, start: int, verdict: Verdict, wanted: int) -> tuple[dict[int, Logprob], ...]:
    """Alternatives at each of a verdict's tokens, from the logits row that its token was chosen from."""
    indices = [start, *(start + 1 + node for node in verdict.accepted_path)][: len(verdict.token_ids)]
    return tuple(token_logprobs(logits[indices], verdict.token_ids, wanted))
