"""The smallest modules: a weight and the kernel that uses it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from specdec.kernels import Kernels
from specdec.models.config import ModelConfig


def meta_parameter(*shape: int) -> nn.Parameter:
    """A weight that has a shape and no memory yet."""
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)


def activation(config: ModelConfig, kernels: Kernels) -> Callable[[torch.Tensor], torch.Tensor]:
    """The kernel that turns [gate | up] into the MLP's inner state."""
    return kernels.silu_and_mul if config.activation == "silu" else kernels.gelu_tanh_and_mul


class Linear(nn.Module):
    """weight [out, in] and, where the model has one, bias [out]."""

    bias: nn.Parameter | None

    def __init__(self, size_in: int, size_out: int, has_bias: bool, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = meta_parameter(size_out, size_in)
        self.bias = meta_parameter(size_out) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]"""
        return self.kernels.linear(x, self.weight, self.bias)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all outputs but those of `rows`, int64 [n], and put these in their order."""
        assert self.bias is None, "an output matrix has none"
        self.weight = nn.Parameter(self.weight[rows.to(self.weight.device)], requires_grad=False)


class Embedding(nn.Module):
    """weight [vocab, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = meta_parameter(vocab_size, hidden_size)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]"""
        return self.kernels.embedding(token_ids, self.weight)


class RMSNorm(nn.Module):
    """weight [size], used as it is or, in gemma, plus 1."""

    def __init__(self, size: int, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.eps = config.rms_norm_eps
        self.unit_offset = config.norm_unit_offset
        self.weight = meta_parameter(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]"""
        return self.kernels.rms_norm(x, self.weight, self.eps, self.unit_offset)
