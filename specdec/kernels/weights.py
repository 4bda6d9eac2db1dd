"""Matrices that a backend multiplies with: as they are, in a few bits a weight, or in an order of the backend's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32
"""Weights along a row that share a scale."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [out, in] in codes: weight = scale * code + min, a scale for every `GROUP` weights of a row.

    `codes` uint8 [out, in] (0 to 15) with `mins`, or int8 [out, in] without; `scales` and `mins` float16
    [out, ceil(in / GROUP)]. What is multiplied with it is rounded too: each group of a row of states to 8 bits, as
    round(x / s) * s with s the largest magnitude / 127. With int8 codes and float32 scales [out, 1] a whole row is one
    group, of weights and of states.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states it is multiplied with."""
        return torch.float32

    @property
    def by_rows(self) -> bool:
        """Whether a row has one scale."""
        return self.scales.dtype == torch.float32

    @property
    def group(self) -> int:
        """How many weights along a row share a scale."""
        return self.shape[1] if self.by_rows else GROUP

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.mins is None else self.mins.nbytes)

    def __len__(self) -> int:
        return self.codes.shape[0]

    def rows(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Weights of some rows, float32 [n, in]."""
        scales = self.scales[indices].float().repeat_interleave(self.group, dim=1)[:, : self.shape[1]]
        weights = self.codes[indices].float() * scales
        if self.mins is None:
            return weights
        return weights + self.mins[indices].float().repeat_interleave(GROUP, dim=1)[:, : self.shape[1]]


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out, in] whose bytes only the backend that packed it can read."""

    data: torch.Tensor
    kind: int
    shape: torch.Size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states it is multiplied with."""
        return torch.float32

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __len__(self) -> int:
        return self.shape[0]


Weight = torch.Tensor | QuantizedWeight | PackedWeight
