"""The smallest modules: a weight and the kernel that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from specdec.kernels import Kernels, PackedWeight, QuantizedWeight, Weight
from specdec.models.config import ModelConfig

Quantize = Callable[[torch.Tensor], torch.Tensor | QuantizedWeight]
"""What becomes of a matrix [out, in] before it is packed."""


@runtime_checkable
class Packable(Protocol):
    """A part whose weights can take the form that its kernels are fastest with."""

    def pack_weights(self, quantize: Quantize | None) -> None:
        """Let go of the weights as they were loaded. `quantize` None keeps their numbers."""
        ...


def meta_parameter(*shape: int) -> nn.Parameter:
    """A weight that has a shape and no memory yet."""
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)


def activation(config: ModelConfig, kernels: Kernels) -> Callable[[torch.Tensor], torch.Tensor]:
    """The kernel that turns [gate | up] into the MLP's inner state."""
    return kernels.silu_and_mul if config.activation == "silu" else kernels.gelu_tanh_and_mul


def packed(weight: Weight, kernels: Kernels, quantize: Quantize | None) -> Weight:
    """A loaded matrix as `kernels` like it; one that is packed already stays as it is."""
    if isinstance(weight, PackedWeight):
        return weight
    if isinstance(weight, torch.Tensor) and quantize is not None:
        return kernels.pack(quantize(weight))
    return kernels.pack(weight)


def replace_weight(module: nn.Module, name: str, weight: Weight | tuple[Weight, ...]) -> None:
    """Put another form of a weight in the place of a parameter."""
    if weight is getattr(module, name):
        return
    if name in module._parameters:
        delattr(module, name)
    setattr(module, name, weight)


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all parameters, buffers and packed weights of a module and its parts."""
    tensors = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    return tensors + sum(weight.nbytes for weight in _packed_weights(module))


def _packed_weights(module: nn.Module) -> Iterator[PackedWeight | QuantizedWeight]:
    for part in module.modules():
        for value in vars(part).values():
            for weight in value if isinstance(value, tuple) else (value,):
                if isinstance(weight, PackedWeight | QuantizedWeight):
                    yield weight


class Linear(nn.Module):
    """weight [out, in] and, where the model has one, bias [out]."""

    weight: Weight
    bias: torch.Tensor | None

    def __init__(self, size_in: int, size_out: int, has_bias: bool, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = meta_parameter(size_out, size_in)
        self.bias = meta_parameter(size_out) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]"""
        return self.kernels.linear(x, self.weight, self.bias)

    def pack_weights(self, quantize: Quantize | None) -> None:
        replace_weight(self, "weight", packed(self.weight, self.kernels, quantize))
        if self.bias is not None:
            bias = self.bias.to(self.kernels.state_dtype(self.bias.dtype))
            self.bias = nn.Parameter(bias, requires_grad=False)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all outputs but those of `rows`, int64 [n], and put these in their order."""
        assert self.bias is None, "an output matrix has none"
        assert isinstance(self.weight, torch.Tensor), "rows are chosen before the weight is packed"
        self.weight = nn.Parameter(self.weight[rows.to(self.weight.device)], requires_grad=False)


class Embedding(nn.Module):
    """weight [vocab, hidden]."""

    weight: Weight

    def __init__(self, vocab_size: int, hidden_size: int, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = meta_parameter(vocab_size, hidden_size)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]"""
        return self.kernels.embedding(token_ids, self.weight)

    def pack_weights(self, quantize: Quantize | None) -> None:
        replace_weight(self, "weight", packed(self.weight, self.kernels, quantize))


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

    def pack_weights(self, quantize: Quantize | None) -> None:
        weight = self.weight.to(self.kernels.state_dtype(self.weight.dtype))
        self.weight = nn.Parameter(weight, requires_grad=False)
