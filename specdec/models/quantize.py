"""Weights in few bits: groups of 32 along a row, each with a scale (and, in 4 bits, a least value) in float16.

Rounding is to nearest, without calibration. What the codes mean: `specdec.kernels.QuantizedWeight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from specdec.kernels import QuantizedWeight
from specdec.kernels.weights import GROUP
from specdec.models.parts import Packable, Quantize

_LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Scheme:
    """How a model's matrices are stored; None: in their own dtype."""

    matrices: Quantize | None
    """Those of the layers."""
    vocabulary: Quantize | None
    """The embedding and the output matrix, whose rounding shows in every logit."""


def quantize_int8(weight: torch.Tensor) -> QuantizedWeight:
    """[out, in] -> codes -127 to 127, scale = largest magnitude / 127."""
    groups = _groups(weight)  # [out, groups, GROUP]
    scales = _half(groups.abs().amax(dim=-1) / 127.0)
    codes = (groups * _inverse(scales)).round().clamp(-127, 127).to(torch.int8)
    return QuantizedWeight(codes.flatten(1)[:, : weight.shape[1]].contiguous(), scales)


def quantize_int4(weight: torch.Tensor) -> QuantizedWeight:
    """[out, in] -> codes 0 to 15 between a group's least and largest weight."""
    groups = _groups(weight)
    mins = _half(groups.amin(dim=-1))
    scales = _half((groups.amax(dim=-1) - mins.float()) / 15.0)
    codes = ((groups - mins.float()[..., None]) * _inverse(scales)).round().clamp(0, 15).to(torch.uint8)
    return QuantizedWeight(codes.flatten(1)[:, : weight.shape[1]].contiguous(), scales, mins)


def _groups(weight: torch.Tensor) -> torch.Tensor:
    """Float32 [out, groups, GROUP]; the last group of a row is filled up with its last weight, which changes neither
    its least nor its largest."""
    weight = weight.float()
    missing = -weight.shape[1] % GROUP
    if missing:
        weight = F.pad(weight[None], (0, missing), mode="replicate")[0]
    return weight.view(len(weight), -1, GROUP)


def _half(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    wide = scales.float()[..., None]
    return torch.where(wide != 0, 1.0 / wide, torch.zeros_like(wide))


SCHEMES = {
    "none": Scheme(None, None),
    "int8": Scheme(quantize_int8, quantize_int8),
    "int4": Scheme(quantize_int4, quantize_int8),
    # What the file holds in no form that the kernels know is rounded to the nearest of 8 bits.
    "gguf": Scheme(quantize_int8, quantize_int8),
}
"""By the name that a user gives."""


def join_rows(parts: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """Matrices one below the other, None if their forms differ."""
    mins = [part.mins for part in parts if part.mins is not None]
    if len(mins) not in (0, len(parts)):
        return None
    return QuantizedWeight(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(mins) if mins else None,
    )


def pack_parts(module: nn.Module, quantize: Quantize | None = None) -> None:
    """Give every part's weights the form that its kernels are fastest with."""
    for part in module.modules():
        if isinstance(part, Packable):
            part.pack_weights(quantize)
