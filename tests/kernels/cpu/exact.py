"""What the ops are held to: their definitions, evaluated in float64, and memory that says so when it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specdec.kernels import QuantizedWeight, reference
from specdec.models.quantize import quantize_int4, quantize_int8

KINDS = ("float32", "bfloat16", "int8", "int4", "int8 by rows")
TOLERANCE = 1e-5

Matrix = torch.Tensor | QuantizedWeight


def matrix(kind: str, outputs: int, inputs: int) -> Matrix:
    """Random weights [outputs, inputs] as they are before they are packed."""
    weight = torch.randn(outputs, inputs)
    if kind == "int8":
        return quantize_int8(weight)
    if kind == "int4":
        return quantize_int4(weight)
    if kind == "int8 by rows":
        scales = weight.abs().amax(dim=-1, keepdim=True) / 127
        return QuantizedWeight((weight / scales).round().to(torch.int8), scales)
    return weight.bfloat16() if kind == "bfloat16" else weight


def values(weight: Matrix) -> torch.Tensor:
    """The numbers that a matrix stands for, float64."""
    return weight.rows(slice(None)).double() if isinstance(weight, QuantizedWeight) else weight.double()


def as_multiplied(x: torch.Tensor, weight: Matrix) -> torch.Tensor:
    """States as the weights see them, float64."""
    if isinstance(weight, QuantizedWeight):
        return reference.round_states(x, weight.group).double()
    return x.to(weight.dtype).double()


def strided(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """The same rows [T, ...] as slices of wider ones that are NaN everywhere else, like those of a fused projection."""
    flat = x.reshape(len(x), -1)
    wide = torch.full((len(x), before + flat.shape[1] + after), math.nan, dtype=x.dtype)
    wide[:, before : before + flat.shape[1]] = flat
    return wide[:, before : before + flat.shape[1]].unflatten(1, x.shape[1:])


def assert_close(out: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
    """Each number within the tolerance of `exact`, relative to `size`, what its terms would sum up to without signs."""
    assert out.dtype == torch.float32
    assert out.shape == exact.shape
    assert out.isfinite().all(), "a number came from memory that nobody may see"
    excess = (out.double() - exact).abs() / (TOLERANCE * size + 1e-30)
    assert excess.max() <= 1, f"off by {excess.max().item() * TOLERANCE}"


@contextmanager
def poisoned_results() -> Iterator[None]:
    """Fresh tensors are full of NaN: what an op fails to write shows."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)
