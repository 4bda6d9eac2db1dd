"""An EAGLE-3 head while it trains: unrolled on its own outputs, as at inference (arXiv 2503.01840).

What is computed here is what `specdec.models.eagle` computes, entry by entry; that the two agree is tested. Weights are
float32; products are in the dtype of the run, sums and the chain's states in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from specdec.models.rope import RopeTable
from specdec.train.formats.eagle3 import write_eagle3
from specdec.train.formats.facts import Eagle3Facts, Target
from specdec.train.held_out import Tally
from specdec.train.losses import law_loss, target_law
from specdec.train.samples import Item
from specdec.train.target import TargetParts
from specdec.train.trainees.base import StepLoss
from specdec.train.trainees.chains import ChainRules, PackedChains, Unroll, pack_chains
from specdec.train.trainees.eagle3_start import Eagle3Shape, Eagle3Weights
from specdec.train.trainees.functions import Rows, attend, rms_norm, rotate, take_rows
from specdec.train.vocabulary import draft_ids


@dataclass(frozen=True)
class Eagle3Plan:
    """How a head is trained; see `Eagle3Config`."""

    unrolls: int
    unroll_decay: float
    chain_share: float
    answers_only: bool
    output_from_first: bool
    """The output matrix learns from unroll 0 alone, which spares the others a third of their largest product."""
    weight_dtype: torch.dtype
    dtype: torch.dtype
    """Of the products."""
    device: torch.device


@dataclass(frozen=True)
class HeldOutChains:
    """Held-out samples and what the target says at them."""

    chains: PackedChains
    best: torch.Tensor  # int64 [R]   the target's greedy token after each active entry
    normalisers: torch.Tensor  # float32 [R]   log of the sum over the whole vocabulary


@dataclass(frozen=True)
class _Cast:
    """The weights of one micro-batch in the dtype of the products; matrices that read the same are one.

    Those of queries, keys and values (one under the other) are cut into the half that reads the token, whose product
    serves every unroll, and the half that reads the feature.
    """

    fc: torch.Tensor
    of_token: torch.Tensor  # [queries + 2 * keys, H]
    of_feature: torch.Tensor  # [queries + 2 * keys, H]
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    lm_head: torch.Tensor


class Eagle3Trainee:
    """One head for one target."""

    name = "eagle3"

    def __init__(self, weights: Eagle3Weights, target: TargetParts, plan: Eagle3Plan, target_name: str) -> None:
        device, dtype = plan.device, plan.dtype
        self.plan = plan
        self.shape: Eagle3Shape = weights.shape
        self.module: Eagle3Weights = weights
        self._token_ids = token_ids = weights.token_ids.clone()
        weights.to(device)
        self._draft_ids = draft_ids(token_ids, target.config.vocab_size)
        self._vocab_size = target.config.vocab_size
        self._target = Target(name=target_name, architecture=target.config.architecture)
        self._soft_cap = target.config.final_soft_cap
        self._embedding = target.embedding.to(device, dtype)
        self._output_matrix = target.output_matrix
        rows = target.output_matrix[token_ids]
        # A shift of all logits changes no law, and smaller ones lose less in bfloat16; a cap would see the shift.
        self._law_matrix = (rows if self._soft_cap else rows - rows.mean(0)).to(device, dtype)
        self._rope = RopeTable(weights.shape.rope, weights.shape.max_position_embeddings).to(device)
        self._rules = ChainRules(
            (self._draft_ids >= 0).numpy(), plan.unrolls, plan.answers_only, plan.chain_share, trains=True
        )

    def prepare(self, items: Sequence[Item], seed: Sequence[int]) -> PackedChains:
        return pack_chains(items, self.shape.target_hidden_size, self._rules, seed)

    def loss(self, prepared: PackedChains, acceptance_share: float) -> StepLoss:
        chains = prepared.to(self.plan.device)
        cast = self._cast()
        law = target_law(chains.finals, self._law_matrix, self._soft_cap)
        total = torch.zeros((), device=self.plan.device)
        divergences = []
        for depth, (unroll, raw) in enumerate(self._unroll(chains, cast)):
            hidden = self._finished(raw)
            matrix = cast.lm_head.detach() if depth > 0 and self.plan.output_from_first else cast.lm_head
            part = law_loss(hidden, matrix, law, unroll.at, acceptance_share)
            count = max(1, len(raw))
            total = total + part.total * (self.plan.unroll_decay**depth / count)
            divergences.append(part.divergence / count)
        return StepLoss(total, torch.stack(divergences), sum(chains.unrolls[0].counts))

    @torch.no_grad()
    def logits(self, prepared: PackedChains) -> list[torch.Tensor]:
        """Of every row of every unroll: [R_j, Vd]."""
        cast = self._cast()
        return [self._finished(raw) @ cast.lm_head.T for _, raw in self._unroll(prepared.to(self.plan.device), cast)]

    @torch.no_grad()
    def prepare_held_out(self, items: Sequence[Item]) -> HeldOutChains:
        rules = replace(self._rules, share=1.0, trains=False)
        chains = pack_chains(items, self.shape.target_hidden_size, rules, (0,))
        best, normalisers = [], []
        for finals in torch.split(chains.finals, 256):
            logits = self._capped(finals.float() @ self._output_matrix.T)
            best.append(logits.argmax(-1))
            normalisers.append(logits.logsumexp(-1))
        return HeldOutChains(chains, torch.cat(best), torch.cat(normalisers))

    @torch.no_grad()
    def measure(self, held_out: HeldOutChains) -> Tally:
        chains, best = held_out.chains.to(self.plan.device), held_out.best.to(self.plan.device)
        cast = self._cast()
        own = self._draft_ids.to(self.plan.device)[best]  # -1: no draft can be right
        follows = best == chains.next_ids
        right: torch.Tensor | None = None
        tried, accepted, overlap = [], [], 0.0
        for unroll, raw in self._unroll(chains, cast):
            hidden = self._finished(raw)
            guesses = torch.cat([(part @ cast.lm_head.T).argmax(-1) for part in torch.split(hidden, 512)])
            # A chain counts as long as all before was right and the sample goes on so too.
            counts = torch.ones_like(guesses, dtype=torch.bool)
            if right is None:
                overlap = self._overlap(hidden, cast, chains, held_out, unroll)
            else:
                counts = right[unroll.parents]
            hits = counts & (guesses == own[unroll.at])
            right = hits & follows[unroll.at]
            tried.append(int(counts.sum()))
            accepted.append(int(hits.sum()))
        return Tally(tuple(tried), tuple(accepted), overlap, len(chains.active))

    def write(self, directory: Path) -> None:
        write_eagle3(directory, self.tensors(), self.facts(), overwrite=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the authors' names."""
        named = {name: value.detach().cpu().to(self.plan.weight_dtype) for name, value in self.module.tensors().items()}
        marks = torch.zeros(self._vocab_size, dtype=torch.bool)
        marks[self._token_ids] = True
        return {**named, "d2t": self._token_ids - torch.arange(len(self._token_ids)), "t2d": marks}

    def facts(self) -> Eagle3Facts:
        return self.shape.facts(self._vocab_size, len(self._token_ids), self._target)

    def _cast(self) -> _Cast:
        own, dtype = self.module, self.plan.dtype
        of_token, of_feature = torch.cat((own.q_proj, own.k_proj, own.v_proj)).to(dtype).chunk(2, -1)
        return _Cast(
            fc=own.fc.to(dtype),
            of_token=of_token.contiguous(),
            of_feature=of_feature.contiguous(),
            output=own.o_proj.to(dtype),
            gate_up=torch.cat((own.gate_proj, own.up_proj)).to(dtype),
            down=own.down_proj.to(dtype),
            lm_head=own.lm_head.to(dtype),
        )

    def _unroll(self, chains: PackedChains, cast: _Cast) -> Iterator[tuple[Unroll, torch.Tensor]]:
        """Each unroll with the raw outputs [R_j, H] of its rows, float32."""
        queries = self.shape.num_heads * self.shape.head_dim
        embedded = self._norm(self._embedding[chains.token_ids].float(), self.module.input_layernorm)
        of_token = F.linear(embedded, cast.of_token)  # [E, queries + 2 * keys]
        raw = F.linear(chains.features.to(self.plan.dtype), cast.fc).float()
        normed = self._norm(raw, self.module.hidden_norm)
        both = of_token[:, queries:] + F.linear(normed, cast.of_feature[queries:])
        keys, values = self._keys_values(both, chains.positions)
        chain: list[tuple[torch.Tensor, torch.Tensor]] = []
        for depth, unroll in enumerate(chains.unrolls):
            entries = chains.active[unroll.at]
            positions = chains.positions[entries]
            if depth == 0:
                raw = take_rows(raw, entries)
                query = F.linear(take_rows(normed, entries), cast.of_feature[:queries])
                query = query + take_rows(of_token[:, :queries], entries)
            else:
                raw = take_rows(raw, unroll.parents)
                projected = F.linear(self._norm(raw, self.module.hidden_norm), cast.of_feature)
                query, both = torch.split(
                    projected + take_rows(of_token, entries), [queries, projected.shape[1] - queries], -1
                )
                chain = [(take_rows(k, unroll.parents), take_rows(v, unroll.parents)) for k, v in chain]
                chain.append(self._keys_values(both, positions))
            sees = Rows(unroll.counts, chains.entry_counts, unroll.last_entries)
            query = rotate(query.view(len(query), self.shape.num_heads, self.shape.head_dim), *self._angles(positions))
            seen = attend(query, keys, values, chain, sees, self.shape.head_dim**-0.5)
            raw = self._layer(raw, seen.flatten(1), cast)
            yield unroll, raw

    def _layer(self, residual: torch.Tensor, seen: torch.Tensor, cast: _Cast) -> torch.Tensor:
        """What follows attention: [n, H] float32."""
        hidden = residual + F.linear(seen, cast.output)
        gate, up = F.linear(self._norm(hidden, self.module.post_attention_layernorm), cast.gate_up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * up, cast.down)

    def _keys_values(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, 2 * keys] -> rotated keys and values, [n, groups, D] each."""
        keys, values = both.reshape(len(both), 2, self.shape.num_kv_heads, self.shape.head_dim).unbind(1)
        return rotate(keys, *self._angles(positions)), values

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._rope.tables
        return cos[positions].to(self.plan.dtype), sin[positions].to(self.plan.dtype)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.shape.rms_norm_eps, self.plan.dtype)

    def _finished(self, raw: torch.Tensor) -> torch.Tensor:
        return self._norm(raw, self.module.norm)

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self._soft_cap is None else self._soft_cap * torch.tanh(logits / self._soft_cap)

    def _overlap(
        self, hidden: torch.Tensor, cast: _Cast, chains: PackedChains, held_out: HeldOutChains, unroll: Unroll
    ) -> float:
        """Sum over rows of sum_v min(target, draft), the target's law being that over its whole vocabulary."""
        total = 0.0
        normalisers = held_out.normalisers.to(hidden.device)
        rows = self._output_matrix[self._token_ids].to(hidden.device)
        for part, at in zip(torch.split(hidden, 512), torch.split(unroll.at, 512), strict=True):
            draft = torch.softmax((part @ cast.lm_head.T).float(), -1)
            target = (self._capped(chains.finals[at].float() @ rows.T) - normalisers[at, None]).exp()
            total += float(torch.minimum(draft, target).sum())
        return total
