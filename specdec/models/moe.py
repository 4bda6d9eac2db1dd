"""A mixture of experts in place of the MLP.

A token's result is a sum over its own experts in the order of their numbers, so it depends neither on which other
tokens share a step nor on how many.
"""

from __future__ import annotations

import torch
from torch import nn

from specdec.kernels import Kernels, Weight
from specdec.models.config import ModelConfig, MoeConfig
from specdec.models.parts import Linear, Quantize, activation, meta_parameter, packed, replace_weight


class Experts(nn.Module):
    """The weights of all experts: gate_up_proj [E, 2 * I, hidden], down_proj [E, hidden, I]; once packed, one matrix
    an expert."""

    gate_up_proj: torch.Tensor | tuple[Weight, ...]
    down_proj: torch.Tensor | tuple[Weight, ...]

    def __init__(self, config: ModelConfig, moe: MoeConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.gate_up_proj = meta_parameter(moe.num_experts, 2 * moe.intermediate_size, config.hidden_size)
        self.down_proj = meta_parameter(moe.num_experts, config.hidden_size, moe.intermediate_size)

    def pack_weights(self, quantize: Quantize | None) -> None:
        for name in ("gate_up_proj", "down_proj"):
            matrices = getattr(self, name)
            replace_weight(self, name, tuple(packed(matrix, self.kernels, quantize) for matrix in matrices))


class MixtureOfExperts(nn.Module):
    """Softmax routing to the best few experts of each token (mixtral, qwen3_moe)."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.num_chosen = moe.num_experts_per_token
        self.normalises = moe.normalize_weights
        self.router = Linear(config.hidden_size, moe.num_experts, False, kernels)
        self.experts = Experts(config, moe, kernels)
        self.activation = activation(config, kernels)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        weights, chosen = self.route(hidden)
        out = torch.zeros_like(hidden)
        for expert in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            tokens, choice = (chosen == expert).nonzero(as_tuple=True)
            gate_up = self.kernels.linear(hidden[tokens], self.experts.gate_up_proj[expert])
            result = self.kernels.linear(self.activation(gate_up), self.experts.down_proj[expert])
            out[tokens] += result * weights[tokens, choice, None]
        return out

    def route(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights (in the dtype of `hidden`) and numbers of each token's experts, [T, chosen] each."""
        logits = self.router(hidden)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weights, chosen = torch.softmax(logits, dim=-1, dtype=wide).topk(self.num_chosen, dim=-1)
        if self.normalises:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(hidden.dtype), chosen
