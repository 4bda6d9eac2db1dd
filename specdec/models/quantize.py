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
from specdec.models.chunks import row_chunks
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
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = _for_groups(weight)
    for rows in row_chunks(*weight.shape):
        groups = _groups(weight[rows])  # [rows, groups, GROUP]
        scales[rows] = _half(groups.abs().amax(dim=-1) / 127.0)
        rounded = (groups * _inverse(scales[rows])).round_().clamp_(-127, 127)
        codes[rows] = rounded.flatten(1)[:, : weight.shape[1]]
    return QuantizedWeight(codes, scales)


def quantize_int4(weight: torch.Tensor) -> QuantizedWeight:
    """[out, in] -> codes 0 to 15 between a group's least and largest weight."""
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales, mins = _for_groups(weight), _for_groups(weight)
    for rows in row_chunks(*weight.shape):
        groups = _groups(weight[rows])
        mins[rows] = _half(groups.amin(dim=-1))
        least = mins[rows].float()
        scales[rows] = _half((groups.amax(dim=-1) - least) / 15.0)
        rounded = (groups - least[..., None]).mul_(_inverse(scales[rows])).round_().clamp_(0, 15)
        codes[rows] = rounded.flatten(1)[:, : weight.shape[1]]
    return QuantizedWeight(codes, scales, mins)


def _for_groups(weight: torch.Tensor) -> torch.Tensor:
    """Room for a number of each group."""
    return torch.empty(len(weight), -(-weight.shape[1] // GROUP), dtype=torch.float16, device=weight.device)


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


def pack_parts(module: nn.Module, scheme: Scheme, vocabulary: Sequence[nn.Module]) -> None:
    """Give every part's weights the form that its kernels are fastest with. `vocabulary` are the parts whose rows are
    tokens."""
    for part in module.modules():
        if isinstance(part, Packable):
            part.pack_weights(scheme.vocabulary if any(part is each for each in vocabulary) else scheme.matrices)
