"""Medusa heads: each guesses one of the tokens to come, all from the same state of the target (arXiv 2401.10774)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from specdec.kernels import Kernels
from specdec.models.parts import Linear, weight_bytes
from specdec.models.quantize import SCHEMES, Scheme, pack_parts


class MedusaHead(nn.Module):
    """`num_heads` heads of `num_layers` residual layers and an output matrix each.

    `draft_token_ids` int64 [Vd] are the target ids of the logits; None where logits and target ids are the same.
    Its parameters are on the meta device until the loader assigns them.
    """

    draft_token_ids: torch.Tensor | None

    def __init__(self, *, num_heads: int, num_layers: int, hidden_size: int, vocab_size: int, kernels: Kernels) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.hidden_size = hidden_size
        self.residuals = nn.ModuleList(
            nn.ModuleList(Linear(hidden_size, hidden_size, True, kernels) for _ in range(num_layers))
            for _ in range(num_heads)
        )
        self.lm_heads = nn.ModuleList(Linear(hidden_size, vocab_size, False, kernels) for _ in range(num_heads))
        self.register_buffer("draft_token_ids", None, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The target's states after its final norm [n, H] -> logits [num_heads, n, Vd], float32 (float64 of a float64
        head). From the state at position t, head i guesses the token at t + 2 + i."""
        hidden = hidden.to(self.dtype)
        logits = torch.stack([self._head(i, hidden) for i in range(self.num_heads)])
        return logits if logits.dtype == torch.float64 else logits.float()

    def _head(self, i: int, hidden: torch.Tensor) -> torch.Tensor:
        residuals = self.residuals[i]
        assert isinstance(residuals, nn.ModuleList)
        for layer in residuals:
            hidden = hidden + F.silu(layer(hidden))
        logits: torch.Tensor = self.lm_heads[i](hidden)
        return logits

    @property
    def num_logits(self) -> int:
        """Vd: how many tokens each head can guess."""
        return len(self._first_matrix().weight)

    @property
    def dtype(self) -> torch.dtype:
        return self._first_matrix().weight.dtype

    def _first_matrix(self) -> Linear:
        first = self.lm_heads[0]
        assert isinstance(first, Linear)
        return first

    def pack(self, scheme: Scheme = SCHEMES["none"]) -> None:
        """Give the loaded weights the form that the kernels are fastest with, quantised by the scheme."""
        pack_parts(self, scheme, vocabulary=[*self.lm_heads])

    def keep_tokens(self, token_ids: torch.Tensor) -> None:
        """Of the logits of all the target's tokens, keep those of `token_ids` (int64 [Vd]), in their order."""
        assert self.draft_token_ids is None
        for lm_head in self.lm_heads:
            assert isinstance(lm_head, Linear)
            lm_head.keep_rows(token_ids)
        self.draft_token_ids = token_ids

    @property
    def weight_bytes(self) -> int:
        """Bytes of what the heads hold."""
        return weight_bytes(self)
