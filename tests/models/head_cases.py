"""EAGLE heads in every format that is read, and their plain definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.models import plain_heads
from tests.models.head_writing import (
    AUX_LAYERS,
    HEAD_DIM,
    NUM_LAYERS,
    TARGET_HIDDEN,
    VOCAB,
    Tensors,
    eagle3_tensors,
    eagle_tensors,
    load_eagle,
    target,
    write_eagle,
    write_eagle3,
    write_speculators,
    write_speculators_eagle,
)

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
EVERY_BIAS = (*QKV, "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@dataclass(frozen=True)
class Case:
    """A head: its tensors under the authors' names, how it is written, and what its config says of the computation."""

    tensors: Callable[[], Tensors]
    write: Callable[[Path, Tensors], Path]
    aux_layers: tuple[int, ...] = AUX_LAYERS
    norm_before_residual: bool = False


def q_norms(tensors: Tensors) -> Tensors:
    norms = {f"midlayer.self_attn.{name}_norm.weight": torch.linspace(0.5, 1.5, HEAD_DIM).double() for name in "qk"}
    return tensors | norms


EAGLE = {
    "bin": Case(eagle_tensors, write_eagle),
    "safetensors": Case(eagle_tensors, lambda d, t: write_eagle(d, t, "model.safetensors")),
    "no bias": Case(lambda: eagle_tensors(bias=False), write_eagle),
    "target's embedding": Case(lambda: eagle_tensors(embeddings=False), write_eagle),
    "neither": Case(
        lambda: eagle_tensors(bias=False, embeddings=False), lambda d, t: write_eagle(d, t, "model.safetensors")
    ),
    "a bias that the config denies": Case(eagle_tensors, lambda d, t: write_eagle(d, t, bias=False)),
    "qkv biases": Case(lambda: eagle_tensors(biases=QKV), lambda d, t: write_eagle(d, t, qkv_bias=True)),
    "speculators": Case(lambda: eagle_tensors(embeddings=False), write_speculators_eagle),
    "speculators, no bias": Case(lambda: eagle_tensors(bias=False), write_speculators_eagle),
}
EAGLE3 = {
    "bin": Case(eagle3_tensors, write_eagle3),
    "safetensors": Case(eagle3_tensors, lambda d, t: write_eagle3(d, t, "model.safetensors")),
    "whole vocabulary": Case(lambda: eagle3_tensors(draft_vocab=VOCAB), write_eagle3),
    "target's embedding": Case(lambda: eagle3_tensors(embeddings=False), write_eagle3),
    "narrow": Case(lambda: eagle3_tensors(hidden=16), write_eagle3),
    "own layers": Case(
        lambda: eagle3_tensors(aux=4),
        lambda d, t: write_eagle3(d, t, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 9, 3, 5]}),
        aux_layers=(0, 9, 3, 5),
    ),
    "every bias": Case(
        lambda: eagle3_tensors(biases=EVERY_BIAS), lambda d, t: write_eagle3(d, t, attention_bias=True, mlp_bias=True)
    ),
    "norm before residual": Case(
        eagle3_tensors, lambda d, t: write_eagle3(d, t, norm_before_residual=True), norm_before_residual=True
    ),
    "speculators": Case(
        lambda: eagle3_tensors(embeddings=False),
        lambda d, t: write_speculators(d, t, norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[1, 8, 2]),
        aux_layers=(1, 8, 2),
        norm_before_residual=True,
    ),
    "speculators, narrow": Case(
        lambda: eagle3_tensors(hidden=16), lambda d, t: write_speculators(d, t, target_hidden_size=TARGET_HIDDEN)
    ),
    "speculators, qwen3": Case(lambda: q_norms(eagle3_tensors()), lambda d, t: write_speculators(d, t, qwen3=True)),
}
CASES = {f"eagle: {name}": case for name, case in EAGLE.items()} | {f"eagle3: {n}": c for n, c in EAGLE3.items()}


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def states(length: int, seed: int = 0) -> torch.Tensor:
    """The target's states before each layer and after the last: [NUM_LAYERS + 1, length, Ht]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_LAYERS + 1, length, TARGET_HIDDEN, generator=generator, dtype=torch.float64)


def features(kind: str, aux_layers: tuple[int, ...], length: int, seed: int = 0) -> torch.Tensor:
    """Target features of `length` positions, [length, F]."""
    of_layer = states(length, seed)
    return torch.cat([of_layer[i] for i in aux_layers], dim=1) if kind == "eagle3" else of_layer[-1]


class Pair:
    """A case on disk, its target, the head loaded for it, and its plain definition."""

    def __init__(self, name: str, directory: Path, dtype: torch.dtype = torch.float64) -> None:
        self.case = CASES[name]
        self.kind = name.split(":")[0]
        self.tensors = self.case.tensors()
        self.target = target(dtype=dtype)
        self.directory = self.case.write(directory / "head", self.tensors)
        self.head = load_eagle(self.directory, self.target)
        self.embedding = self.tensors.get("embed_tokens.weight", self.target.embed_tokens.weight.double())

    def combined(self, length: int, seed: int = 0) -> torch.Tensor:
        given = features(self.kind, self.case.aux_layers, length, seed)
        return plain_heads.eagle3_combined(self.tensors, given) if self.kind == "eagle3" else given

    def outputs(self, tokens: list[int], combined: torch.Tensor, first: int = 1) -> torch.Tensor:
        if self.kind == "eagle":
            return plain_heads.eagle_outputs(self.tensors, self.embedding, tokens, combined, first)
        norm_first = self.case.norm_before_residual
        return plain_heads.eagle3_outputs(self.tensors, self.embedding, tokens, combined, first, norm_first)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Over the target's vocabulary."""
        if self.kind == "eagle":
            return outputs @ self.target.output_matrix().double().T
        return plain_heads.eagle3_logits(self.tensors, outputs, VOCAB)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest; infinite where one has a number and the other none."""
    assert a.shape == b.shape
    return float(torch.where(a == b, 0, (a - b).abs()).nan_to_num(nan=float("inf")).max())
