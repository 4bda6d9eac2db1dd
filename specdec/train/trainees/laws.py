"""The target's law as a draft is held to it, and as it is measured against it."""

from __future__ import annotations

import torch

from specdec.train.target import TargetParts

ROWS = 256
"""Whose logits over the target's whole vocabulary exist at a time."""


class LawTarget:
    """Output rows of the tokens `token_ids` (int64 [Vd]), and of all."""

    def __init__(self, target: TargetParts, token_ids: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
        self.soft_cap = target.config.final_soft_cap
        self._whole = target.output_matrix
        self._rows = target.output_matrix[token_ids]
        # A shift of all logits changes no law, and smaller ones lose less in bfloat16; a cap would see the shift.
        rows = self._rows if self.soft_cap else self._rows - self._rows.mean(0)
        self.matrix = rows.to(device, dtype)
        """[Vd, H], for `target_law`."""

    def says(self, finals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of final states [n, H]: the greedy tokens int64 [n], and the logs of the sums over the vocabulary [n]."""
        best, normalisers = [], []
        for part in torch.split(finals, ROWS):
            logits = self._capped(part.float() @ self._whole.T)
            best.append(logits.argmax(-1))
            normalisers.append(logits.logsumexp(-1))
        return torch.cat(best), torch.cat(normalisers)

    def overlap(self, logits: torch.Tensor, finals: torch.Tensor, normalisers: torch.Tensor) -> float:
        """Sum over rows of sum_v min(target, draft), the target's law being that over its whole vocabulary; `logits`
        [n, Vd] are the draft's over its own."""
        own = torch.softmax(logits.float(), -1).cpu()
        target = (self._capped(finals.float() @ self._rows.T) - normalisers[:, None]).exp()
        return float(torch.minimum(own, target).sum())

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)
