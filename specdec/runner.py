"""One step on the device: batch, forward, verify; and the drafts of the next one.

Plain values cross its border: a `Schedule` comes in, `Verdict`s and drafted token ids go out. Tensors (KV, hidden
states, draft laws) stay here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import reduce

import torch

from specdec.core.control.types import PLAIN, Choice
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.kernels import Kernels
from specdec.proposers.base import NOTHING, ProposalInput, Proposer, TargetStates, Wants
from specdec.proposers.states import join_states, target_states, with_missed
from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.process import process_logits, sampling_rows
from specdec.sampling.verify import verify
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.step.model import Model
from specdec.step.paths import path_moves
from specdec.step.record import StepRecord
from specdec.types import EMPTY_DRAFT, MAX_DRAFT_NODES, Draft, Logprob, Verdict

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
            return Verdict(error=f"the step failed: {type(error).__name__}: {error}")

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
                self._states[sequence] = with_missed(self._missed.get(sequence, ()), states)
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
                own = [i for i, row in enumerate(schedule.rows) if row.draft.has_kv and row.kv_owner == name]
                self._move_paths(proposer.kv_caches, [schedule.rows[i] for i in own], [verdicts[i] for i in own])

    def _move_paths(self, caches: Iterable[KVCache], rows: Many[ScheduledRow], verdicts: Many[Verdict]) -> None:
        moves = path_moves(rows, verdicts, self.kv.block_size)
        if moves:
            slots_from, slots_to = torch.tensor(moves, device=self.device).unbind(-1)
            for kv in caches:
                kv.move(slots_from, slots_to)

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
            warnings.warn(f"proposer {name!r} failed and gives no hint this step: {error!r}", stacklevel=2)
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
                with record.time_proposer(record.drafts, name):
                    answers[name] = self._ask(name, asked)
        return [self._answer(sequence, choice, answers) for sequence, choice in zip(sequences, choices, strict=True)]

    def _ask(self, name: str, asked: Mapping[Sequence, int]) -> dict[Sequence, Draft | None]:
        """One proposer's drafts for sequences, of lengths."""
        proposer, mine, lengths = self.proposers[name], list(asked), list(asked.values())
        try:
            states = [self._states_for(name, sequence) for sequence in mine] if proposer.wants.states else []
            proposed = proposer.propose(mine, ProposalInput(lengths, states))
            self._check_drafts(proposed, lengths)
            for sequence in mine:
                if sequence.request.draft_kv == name:
                    self._states.pop(sequence, None)
            return dict(zip(mine, _named(proposed, name), strict=True))
        except Exception as error:
            warnings.warn(f"proposer {name!r} failed and gives no draft this step: {error!r}", stacklevel=2)
            return dict.fromkeys(mine)

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

    def _check_drafts(self, drafts: Many[Draft | None], lengths: Many[int]) -> None:
        """What the contract promises and the target relies on; ValueError otherwise."""
        if len(drafts) != len(lengths):
            raise ValueError(f"{len(drafts)} drafts for {len(lengths)} sequences")
        for draft, length in zip(drafts, lengths, strict=True):
            if draft is None:
                continue
            _check_shape(draft)
            if draft.depth > length:
                raise ValueError(f"a draft of {draft.depth} tokens where at most {length} were asked for")
            if draft.draft_probs is not None and draft.draft_probs.shape != (len(draft), self.vocab_size):
                raise ValueError(f"draft_probs of shape {tuple(draft.draft_probs.shape)} for {len(draft)} tokens")
            if draft.draft_probs is not None and draft.draft_probs.device.type != self.device.type:
                raise ValueError(f"draft_probs on {draft.draft_probs.device} where the engine is on {self.device}")
            if not all(type(token_id) is int for token_id in draft.token_ids):
                raise ValueError("a drafted token id is not an integer")
            if draft.token_ids and not 0 <= min(draft.token_ids) <= max(draft.token_ids) < self.vocab_size:
                raise ValueError(f"a drafted token id is outside the vocabulary of {self.vocab_size}")

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
                warnings.warn(f"proposer {name!r} failed to forget a sequence: {error!r}", stacklevel=2)


def _named(drafts: Many[Draft | None], name: str) -> list[Draft | None]:
    """The drafts, those that do not say whose they are under the name of their proposer."""
    return [replace(draft, proposer=name) if draft and draft.proposer == "none" else draft for draft in drafts]


def _check_shape(draft: Draft) -> None:
    """ValueError if a draft is no tree of a size that can be verified."""
    if len(draft) > MAX_DRAFT_NODES:
        raise ValueError(f"a draft of {len(draft)} nodes where at most {MAX_DRAFT_NODES} can be verified")
    if draft.parents is None:
        return
    if len(draft.parents) != len(draft):
        raise ValueError(f"a draft of {len(draft)} tokens and {len(draft.parents)} parents")
    for node, parent in enumerate(draft.parents):
        if type(parent) is not int or not -1 <= parent < node:
            raise ValueError(f"the parent of draft node {node} must be -1 or an earlier node; got {parent!r}")


def _logprobs(logits: torch.Tensor, start: int, verdict: Verdict, wanted: int) -> tuple[dict[int, Logprob], ...]:
    """Alternatives at each of a verdict's tokens, from the logits row that its token was chosen from."""
    indices = [start, *(start + 1 + node for node in verdict.accepted_path)][: len(verdict.token_ids)]
    return tuple(token_logprobs(logits[indices], verdict.token_ids, wanted))
