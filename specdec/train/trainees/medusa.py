"""Medusa heads while they train (arXiv 2401.10774): each guesses one more token ahead from the target's final state.

From the state at position t head i guesses the token at t + 2 + i, for the token at t + 1 is the target's own. It is
held to the target's law of that token, which is known from the state at t + 1 + i. What is computed here is what
`specdec.models.medusa` computes; that the two agree is tested. Weights are float32; products are in the dtype of the
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from specdec.train.formats.facts import MedusaFacts, Target
from specdec.train.formats.medusa import write_medusa
from specdec.train.held_out import Tally
from specdec.train.losses import law_loss, target_law
from specdec.train.samples import Item
from specdec.train.target import TargetParts
from specdec.train.trainees.base import StepLoss
from specdec.train.trainees.laws import LawTarget
from specdec.train.vocabulary import draft_ids

ROWS = 512
"""Whose logits exist at a time."""


def start_medusa(target: TargetParts, token_ids: torch.Tensor, num_heads: int) -> MedusaWeights:
    """Heads that guess what the target would say next, over the tokens `token_ids` (int64 [Vd], ascending)."""
    return MedusaWeights(num_heads, token_ids, target.output_matrix[token_ids])


@dataclass(frozen=True)
class MedusaPlan:
    """How heads are trained; see `MedusaConfig`."""

    decay: float
    """Weight of each head's loss against the one before."""
    answers_only: bool
    weight_dtype: torch.dtype
    dtype: torch.dtype
    """Of the products."""
    device: torch.device


class MedusaWeights(nn.Module):
    """`num_heads` heads of one residual layer, which adds nothing yet, and `rows` [Vd, H] as output matrix each.

    Float32. `token_ids` (int64 [Vd], ascending) are the tokens of the rows, and are kept with the weights.
    """

    token_ids: torch.Tensor

    def __init__(self, num_heads: int, token_ids: torch.Tensor, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("token_ids", token_ids)
        size = rows.shape[1]
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(size, size)) for _ in range(num_heads))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(num_heads))
        self.lm_heads = nn.ParameterList(nn.Parameter(rows.float().clone()) for _ in range(num_heads))

    @property
    def num_heads(self) -> int:
        return len(self.weights)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the authors' names."""
        found: dict[str, torch.Tensor] = {}
        for i, (weight, bias, rows) in enumerate(zip(self.weights, self.biases, self.lm_heads, strict=True)):
            found |= {f"{i}.0.linear.weight": weight, f"{i}.0.linear.bias": bias, f"{i}.1.weight": rows}
        return found


@dataclass(frozen=True)
class Guesses:
    """The rows of one head, sample by sample."""

    at: torch.Tensor  # int64 [R_i]   the state that a row guesses from, among all of the samples'
    law: torch.Tensor  # int64 [R_i]   the state whose law it is held to
    parents: torch.Tensor  # int64 [R_i]   in measuring, its row of the head before; meaningless in the first


@dataclass(frozen=True)
class PackedStates:
    """All states of some samples, and what is guessed from them."""

    finals: torch.Tensor  # [N, H]   after the final norm
    next_ids: torch.Tensor  # int64 [N]   the token after each state; -1 after a sample's last
    heads: tuple[Guesses, ...]


@dataclass(frozen=True)
class HeldOutStates:
    """Held-out samples and what the target says at them."""

    states: PackedStates
    best: torch.Tensor  # int64 [N]   the target's greedy token after each state
    normalisers: torch.Tensor  # float32 [N]   log of the sum over the whole vocabulary


class MedusaTrainee:
    """Heads for one target."""

    name = "medusa"

    def __init__(
        self, weights: MedusaWeights, target: TargetParts, plan: MedusaPlan, target_name: str | None = None
    ) -> None:
        self.plan = plan
        self.module = weights.to(plan.device)
        self._token_ids = weights.token_ids.cpu().clone()
        self._target = Target(name=target_name, architecture=target.config.architecture)
        self._vocab_size = target.config.vocab_size
        self._draft_ids = draft_ids(self._token_ids, self._vocab_size)
        self._law = LawTarget(target, self._token_ids, plan.dtype, plan.device)

    def prepare(self, items: Sequence[Item], seed: Sequence[int]) -> PackedStates:
        return self._pack(items, trains=True)

    def loss(self, prepared: PackedStates, acceptance_share: float) -> StepLoss:
        device = self.plan.device
        finals = prepared.finals.to(device)
        used = torch.unique(torch.cat([each.law for each in prepared.heads]))
        law = target_law(finals[used.to(device)], self._law.matrix, self._law.soft_cap)
        total = torch.zeros((), device=device)
        divergences = []
        for depth, guesses in enumerate(prepared.heads):
            hidden = self._hidden(depth, finals[guesses.at.to(device)])
            rows = torch.searchsorted(used, guesses.law).to(device)
            part = law_loss(hidden, self._rows(depth), law, rows, acceptance_share)
            count = max(1, len(rows))
            total = total + part.total * (self.plan.decay**depth / count)
            divergences.append(part.divergence / count)
        return StepLoss(total, torch.stack(divergences), len(prepared.heads[0].at))

    @torch.no_grad()
    def logits(self, prepared: PackedStates) -> list[torch.Tensor]:
        """Of every row of every head: [R_i, Vd]."""
        finals = prepared.finals.to(self.plan.device)
        return [
            self._hidden(depth, finals[guesses.at.to(self.plan.device)]) @ self._rows(depth).T
            for depth, guesses in enumerate(prepared.heads)
        ]

    @torch.no_grad()
    def prepare_held_out(self, items: Sequence[Item]) -> HeldOutStates:
        states = self._pack(items, trains=False)
        return HeldOutStates(states, *self._law.says(states.finals))

    @torch.no_grad()
    def measure(self, held_out: HeldOutStates) -> Tally:
        states, device = held_out.states, self.plan.device
        own = self._draft_ids[held_out.best]  # -1: no draft can be right
        follows = held_out.best == states.next_ids
        right: torch.Tensor | None = None
        tried, accepted, overlap = [], [], 0.0
        for depth, guesses in enumerate(states.heads):
            best = []
            for at, law in zip(torch.split(guesses.at, ROWS), torch.split(guesses.law, ROWS), strict=True):
                logits = self._hidden(depth, states.finals[at].to(device)) @ self._rows(depth).T
                best.append(logits.argmax(-1).cpu())
                if depth == 0:
                    overlap += self._law.overlap(logits, states.finals[law], held_out.normalisers[law])
            counts = torch.ones(len(guesses.at), dtype=torch.bool) if right is None else right[guesses.parents]
            hits = counts & (torch.cat(best) == own[guesses.law])
            right = hits & follows[guesses.law]
            tried.append(int(counts.sum()))
            accepted.append(int(hits.sum()))
        return Tally(tuple(tried), tuple(accepted), overlap, len(states.heads[0].at))

    def write(self, directory: Path) -> None:
        write_medusa(directory, self.tensors(), self.facts(), overwrite=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the authors' names."""
        named = {name: value.detach().cpu().to(self.plan.weight_dtype) for name, value in self.module.tensors().items()}
        if self._is_whole():
            return named
        return {**named, "d2t": self._token_ids - torch.arange(len(self._token_ids))}

    def facts(self) -> MedusaFacts:
        return MedusaFacts(
            hidden_size=self.module.lm_heads[0].shape[1],
            vocab_size=self._vocab_size,
            draft_vocab_size=None if self._is_whole() else len(self._token_ids),
            num_heads=self.module.num_heads,
            target=self._target,
        )

    def _is_whole(self) -> bool:
        return len(self._token_ids) == self._vocab_size

    def _rows(self, depth: int) -> torch.Tensor:
        rows: torch.Tensor = self.module.lm_heads[depth].to(self.plan.dtype)
        return rows

    def _hidden(self, depth: int, states: torch.Tensor) -> torch.Tensor:
        """[n, H] -> [n, H], in the dtype of the products."""
        dtype = self.plan.dtype
        states = states.to(dtype)
        weight, bias = self.module.weights[depth].to(dtype), self.module.biases[depth].to(dtype)
        hidden: torch.Tensor = states + F.silu(F.linear(states, weight, bias))
        return hidden

    def _pack(self, items: Sequence[Item], *, trains: bool) -> PackedStates:
        """`trains`: rows whose own token the draft cannot say are left out; in measuring they are misses. ValueError if
        no sample has the 3 tokens that a guess needs."""
        items = [item for item in items if len(item.token_ids) > 2]
        if not items:
            raise ValueError("no sample has the 3 tokens that training needs")
        size = self.module.lm_heads[0].shape[1]
        lengths = np.array([len(item.token_ids) for item in items])
        ends = np.cumsum(lengths)
        next_ids = torch.cat([F.pad(item.token_ids[1:], (0, 1), value=-1) for item in items])
        # The state at a prompt's last token is the first to guess from: its next token is the answer's first.
        firsts = [max(0, item.num_prompt_tokens - 1) if self.plan.answers_only else 0 for item in items]
        starts = np.concatenate([np.arange(e - n + f, e) for e, n, f in zip(ends, lengths, firsts, strict=True)])
        limits = np.concatenate([np.full(max(0, n - f), e) for e, n, f in zip(ends, lengths, firsts, strict=True)])
        sayable = (self._draft_ids >= 0).numpy()[next_ids.clamp_min(0).numpy()]
        return PackedStates(
            torch.cat([item.states[:, -size:] for item in items]),
            next_ids,
            tuple(_guesses(starts, limits, sayable, self.module.num_heads, trains=trains)),
        )


def _guesses(
    starts: np.ndarray, limits: np.ndarray, sayable: np.ndarray, num_heads: int, *, trains: bool
) -> list[Guesses]:
    """`starts` [R]: the states to guess from, `limits` [R] where their samples end; `sayable` [N]: of each state,
    whether the draft can say the token after it. A chain ends before the first that it cannot."""
    rows = np.arange(len(starts))
    found = []
    for depth in range(num_heads):
        kept = starts[rows] + depth + 2 < limits[rows]
        if depth > 0:
            kept &= sayable[np.minimum(starts[rows] + depth, len(sayable) - 1)]
        parents, rows = np.flatnonzero(kept), rows[kept]
        held_to = starts[rows] + depth + 1
        if trains:
            said = sayable[held_to]
            parents, chosen = parents[said], rows[said]
            held_to = held_to[said]
        else:
            chosen = rows
        found.append(Guesses(torch.from_numpy(starts[chosen]), torch.from_numpy(held_to), torch.from_numpy(parents)))
    return found
