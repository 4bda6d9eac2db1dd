"""A small draft model while it trains: the target's first layers, its final norm, its embedding and output matrix.

Held to the target's law at every position of the target's own answers. The embedding and the output matrix stay as they
are. What is computed here is what `specdec.models.decoder` computes; that the two agree is tested. Weights are float32;
products are in the dtype of the run, sums in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from specdec.models.config import ModelConfig
from specdec.models.loader import open_checkpoint
from specdec.models.rope import RopeTable
from specdec.models.weights import plan_weights
from specdec.tokenizer import Tokenizer
from specdec.train.formats.draft import check_llama, write_draft
from specdec.train.held_out import DRAFT_LENGTH, Tally
from specdec.train.losses import law_loss, target_law
from specdec.train.samples import Item
from specdec.train.target import TargetParts
from specdec.train.trainees.base import StepLoss
from specdec.train.trainees.functions import Rows, attend, rms_norm, rotate
from specdec.train.trainees.laws import LawTarget
from specdec.train.vocabulary import draft_ids

QKV, OUTPUT = "attention.qkv_proj.weight", "attention.o_proj.weight"
GATE_UP, DOWN = "mlp.gate_up_proj.weight", "mlp.down_proj.weight"
ATTENTION_NORM, MLP_NORM = "attention_norm.weight", "mlp_norm.weight"
ROWS = 256
"""Whose logits over the whole vocabulary exist at a time."""


@dataclass(frozen=True)
class DraftPlan:
    """How a model is trained; see `DraftConfig`."""

    answers_only: bool
    weight_dtype: torch.dtype
    dtype: torch.dtype
    """Of the products."""
    device: torch.device


class DraftWeights(nn.Module):
    """Some layers and the final norm, float32. `layers` have the decoder's names, as in `TargetParts.last_layer`;
    `token_ids` (int64 [Vd], ascending) are the tokens that laws are compared over, and are kept with the weights."""

    token_ids: torch.Tensor

    def __init__(
        self, layers: Sequence[Mapping[str, torch.Tensor]], norm: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        super().__init__()
        self.register_buffer("token_ids", token_ids)
        # A name of a parameter has no dots.
        self.layers = nn.ModuleList(
            nn.ParameterDict({_key(name): nn.Parameter(tensor.float().clone()) for name, tensor in layer.items()})
            for layer in layers
        )
        self.norm = nn.Parameter(norm.float().clone())

    def of_layer(self, index: int, name: str) -> torch.Tensor:
        layer = self.layers[index]
        assert isinstance(layer, nn.ParameterDict)
        weight: torch.Tensor = layer[_key(name)]
        return weight


def _key(name: str) -> str:
    return name.replace(".", "_")


def start_draft(path: Path, target: TargetParts, num_layers: int, token_ids: torch.Tensor) -> DraftWeights:
    """The first `num_layers` layers of the checkpoint at `path`, whose parts are `target`. ValueError if it has fewer,
    or is of another make than llama's."""
    check_llama(target.config)
    if num_layers > target.config.num_layers:
        raise ValueError(f"draft.num_layers is {num_layers}, and the model has {target.config.num_layers} layers")
    checkpoint = open_checkpoint(path)
    plan = plan_weights(checkpoint.config, checkpoint.names())
    layers = []
    for i in range(num_layers):
        prefix = f"layers.{i}."
        parts = {name: pieces for name, pieces in plan.pieces.items() if name.startswith(prefix)}
        layers.append(
            {
                name.removeprefix(prefix): torch.cat([checkpoint.read(piece.name).float() for piece in pieces])
                for name, pieces in parts.items()
            }
        )
    return DraftWeights(layers, target.final_norm, token_ids)


@dataclass(frozen=True)
class PackedTexts:
    """Some samples without their last tokens, after which nothing is known."""

    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [N]
    counts: tuple[int, ...]
    """Of each sample."""
    finals: torch.Tensor  # [N, H]   the target's, after the final norm
    next_ids: torch.Tensor  # int64 [N]   the token after each
    rows: torch.Tensor  # int64 [R]   where a guess is trained or measured


@dataclass(frozen=True)
class HeldOutTexts:
    """Held-out samples and what the target says at them."""

    texts: PackedTexts
    best: torch.Tensor  # int64 [N]   the target's greedy token after each


class DraftTrainee:
    """One small model for one target, whose `tokenizer` it takes with it."""

    name = "draft"

    def __init__(self, weights: DraftWeights, target: TargetParts, tokenizer: Tokenizer, plan: DraftPlan) -> None:
        self.plan = plan
        self.module = weights.to(plan.device)
        self._target, self._tokenizer = target, tokenizer
        self.config: ModelConfig = replace(target.config, layers=target.config.layers[: len(weights.layers)])
        token_ids = weights.token_ids.cpu()
        self._sayable = (draft_ids(token_ids, target.config.vocab_size) >= 0).numpy()
        self._law = LawTarget(target, token_ids, plan.dtype, plan.device)
        self._embedding = target.embedding.to(plan.device, plan.dtype)
        rope = target.config.layers[0].rope
        assert rope is not None, "checked with the weights"
        self._rope = RopeTable(rope, target.config.max_position_embeddings).to(plan.device)

    def prepare(self, items: Sequence[Item], seed: Sequence[int]) -> PackedTexts:
        return self._pack(items, trains=True)

    def loss(self, prepared: PackedTexts, acceptance_share: float) -> StepLoss:
        rows = prepared.rows.to(self.plan.device)
        hidden = self._hidden(prepared)[rows]
        law = target_law(prepared.finals.to(self.plan.device)[rows], self._law.matrix)
        part = law_loss(hidden, self._law.matrix, law, torch.arange(len(rows), device=rows.device), acceptance_share)
        count = max(1, len(rows))
        return StepLoss(part.total / count, part.divergence[None] / count, len(rows))

    @torch.no_grad()
    def logits(self, prepared: PackedTexts) -> torch.Tensor:
        """Over the target's whole vocabulary at every position: [N, V]."""
        return self._hidden(prepared) @ self._matrix().T

    @torch.no_grad()
    def prepare_held_out(self, items: Sequence[Item]) -> HeldOutTexts:
        texts = self._pack(items, trains=False)
        return HeldOutTexts(texts, self._law.says(texts.finals)[0])

    @torch.no_grad()
    def measure(self, held_out: HeldOutTexts) -> Tally:
        texts, matrix = held_out.texts, self._matrix()
        hidden = self._hidden(texts)
        guesses, overlap = [], 0.0
        measured = torch.zeros(len(hidden), dtype=torch.bool)
        measured[texts.rows] = True
        parts = (torch.split(each, ROWS) for each in (hidden, texts.finals, measured))
        for states, finals, counted in zip(*parts, strict=True):
            logits = (states @ matrix.T).float().cpu()
            guesses.append(logits.argmax(-1))
            target = torch.softmax(finals[counted].float() @ self._target.output_matrix.T, -1)
            overlap += float(torch.minimum(torch.softmax(logits[counted], -1), target).sum())
        return _tally(texts, torch.cat(guesses) == held_out.best, held_out.best == texts.next_ids, overlap)

    def write(self, directory: Path) -> None:
        write_draft(directory, self.tensors(), self.config, self._tokenizer, overwrite=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under Hugging Face's names."""
        config = self.config
        found = {"model.embed_tokens.weight": self._target.embedding, "model.norm.weight": self.module.norm}
        if not config.tie_word_embeddings:
            found["lm_head.weight"] = self._target.output_matrix
        keys = config.num_kv_heads * config.head_dim
        for i in range(config.num_layers):
            prefix = f"model.layers.{i}."
            qkv = torch.split(self.module.of_layer(i, QKV), [config.num_heads * config.head_dim, keys, keys])
            gate_up = self.module.of_layer(i, GATE_UP).chunk(2)
            found |= {f"{prefix}self_attn.{name}_proj.weight": part for name, part in zip("qkv", qkv, strict=True)}
            found |= {
                f"{prefix}mlp.{name}_proj.weight": part for name, part in zip(("gate", "up"), gate_up, strict=True)
            }
            found[f"{prefix}self_attn.o_proj.weight"] = self.module.of_layer(i, OUTPUT)
            found[f"{prefix}mlp.down_proj.weight"] = self.module.of_layer(i, DOWN)
            found[f"{prefix}input_layernorm.weight"] = self.module.of_layer(i, ATTENTION_NORM)
            found[f"{prefix}post_attention_layernorm.weight"] = self.module.of_layer(i, MLP_NORM)
        return {name: tensor.detach().cpu().to(self.plan.weight_dtype) for name, tensor in found.items()}

    def _matrix(self) -> torch.Tensor:
        return self._target.output_matrix.to(self.plan.device, self.plan.dtype)

    def _hidden(self, texts: PackedTexts) -> torch.Tensor:
        """After the final norm, [N, H] in the dtype of the products."""
        device = self.plan.device
        hidden = self._embedding[texts.token_ids.to(device)].float()
        sees = Rows(texts.counts, texts.counts, texts.positions.to(device))
        cos, sin = self._rope.tables
        positions = texts.positions.to(device)
        angles = cos[positions].to(self.plan.dtype), sin[positions].to(self.plan.dtype)
        for i in range(self.config.num_layers):
            hidden = self._layer(i, hidden, angles, sees)
        return self._norm(hidden, self.module.norm)

    def _layer(
        self, index: int, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], sees: Rows
    ) -> torch.Tensor:
        """[N, H] -> [N, H], float32."""
        config = self.config

        def weight(name: str) -> torch.Tensor:
            return self.module.of_layer(index, name).to(self.plan.dtype)

        qkv = F.linear(self._norm(hidden, self.module.of_layer(index, ATTENTION_NORM)), weight(QKV))
        heads = qkv.view(len(hidden), -1, config.head_dim)
        query, key, value = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        seen = attend(rotate(query, *angles), rotate(key, *angles), value, (), sees, config.head_dim**-0.5)
        hidden = hidden + F.linear(seen.flatten(1), weight(OUTPUT))
        gate, up = F.linear(self._norm(hidden, self.module.of_layer(index, MLP_NORM)), weight(GATE_UP)).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * up, weight(DOWN))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps, self.plan.dtype)

    def _pack(self, items: Sequence[Item], *, trains: bool) -> PackedTexts:
        """`trains`: rows whose own token is not among those compared are left out. ValueError if no sample has the 2
        tokens that a guess needs."""
        items = [item for item in items if len(item.token_ids) > 1]
        if not items:
            raise ValueError("no sample has the 2 tokens that training needs")
        counts = [len(item.token_ids) - 1 for item in items]
        firsts = [max(0, item.num_prompt_tokens - 1) if self.plan.answers_only else 0 for item in items]
        starts = np.cumsum([0, *counts[:-1]])
        rows = np.concatenate([np.arange(s + f, s + n) for s, f, n in zip(starts, firsts, counts, strict=True)])
        next_ids = torch.cat([item.token_ids[1:] for item in items])
        if trains:
            rows = rows[self._sayable[next_ids.numpy()[rows]]]
        size = self.config.hidden_size
        return PackedTexts(
            token_ids=torch.cat([item.token_ids[:-1] for item in items]),
            positions=torch.cat([torch.arange(count) for count in counts]),
            counts=tuple(counts),
            finals=torch.cat([item.states[:-1, -size:] for item in items]),
            next_ids=next_ids,
            rows=torch.from_numpy(rows),
        )


def _tally(texts: PackedTexts, hits: torch.Tensor, follows: torch.Tensor, overlap: float) -> Tally:
    """`hits` [N]: the guess is the target's greedy token; `follows` [N]: the sample goes on with that."""
    ends = torch.repeat_interleave(torch.tensor(texts.counts).cumsum(0), torch.tensor(texts.counts))
    starts = texts.rows
    tried, accepted = [], []
    for depth in range(DRAFT_LENGTH):
        starts = starts[starts + depth < ends[starts]]
        tried.append(len(starts))
        starts = starts[hits[starts + depth]]
        accepted.append(len(starts))
        starts = starts[follows[starts + depth]]
    return Tally(tuple(tried), tuple(accepted), overlap, len(texts.rows))
