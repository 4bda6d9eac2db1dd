"""The parts of a decoder layer. Parameters are made on the meta device and filled by the loader.

Every op goes through the kernels the part was built with; what varies from step to step is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from specdec.kernels import Kernels
from specdec.models.config import LayerConfig, ModelConfig
from specdec.models.moe import MixtureOfExperts
from specdec.models.parts import Linear, RMSNorm, activation
from specdec.step.batch import Batch

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Tables of cosines and sines, [positions, rotary_dim / 2] each."""


class Attention(nn.Module):
    """Grouped-query attention over the paged cache. Weights of queries, keys and values are one matrix.

    `input_size` is the width of what it reads, None: the model's own. Nobody sees the entries before `first_entry`.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        kernels: Kernels,
        *,
        input_size: int | None = None,
        first_entry: int = 0,
    ) -> None:
        super().__init__()
        self.kernels = kernels
        self.head_dim = config.head_dim
        self.scale = config.scale
        self.soft_cap = config.attention_soft_cap
        self.sliding_window = layer.sliding_window
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.sizes = (query_size, kv_size, kv_size)
        self.first_entry = first_entry
        self.qkv_proj = Linear(input_size or config.hidden_size, query_size + 2 * kv_size, config.qkv_bias, kernels)
        self.o_proj = Linear(query_size, config.hidden_size, config.output_bias, kernels)
        self.normalises_heads = config.qk_norm == "head"
        if config.qk_norm == "none":
            self.q_norm: nn.Module = nn.Identity()
            self.k_norm: nn.Module = nn.Identity()
        else:
            sizes = (config.head_dim, config.head_dim) if self.normalises_heads else (query_size, kv_size)
            self.q_norm, self.k_norm = (RMSNorm(size, config, kernels) for size in sizes)

    def forward(
        self, hidden: torch.Tensor, rotation: Rotation | None, batch: Batch, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Write the tokens' keys and values to the layer's caches, then attend: [T, input] -> [T, hidden]."""
        query, key, value = self.qkv_proj(hidden).split(self.sizes, dim=-1)
        query, key = self._heads(query, self.q_norm), self._heads(key, self.k_norm)  # [T, H or G, D]
        value = value.view(len(value), -1, self.head_dim)
        if rotation is not None:
            query = self.kernels.rotary(query, *rotation, batch.positions)
            key = self.kernels.rotary(key, *rotation, batch.positions)
        self.kernels.write_kv(key, value, keys, values, batch.slot_mapping)
        attended = self.kernels.paged_attention(
            query,
            keys,
            values,
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            committed_lens=batch.committed_lens,
            block_tables=batch.block_tables,
            positions=batch.positions,
            ancestor_masks=batch.ancestor_masks,
            scale=self.scale,
            sliding_window=self.sliding_window,
            soft_cap=self.soft_cap,
            first_entry=self.first_entry,
        )
        out: torch.Tensor = self.o_proj(attended.flatten(1))
        return out

    def _heads(self, x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """Split [T, heads * D] into heads, normalised one by one or all at once: [T, heads, D]."""
        if not self.normalises_heads:
            x = norm(x)
        x = x.view(len(x), -1, self.head_dim)
        return norm(x) if self.normalises_heads else x


class MLP(nn.Module):
    """Gated feed-forward block. Weights of gate and up are one matrix."""

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias, kernels)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, kernels)
        self.activation: Callable[[torch.Tensor], torch.Tensor] = activation(config, kernels)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        out: torch.Tensor = self.down_proj(self.activation(self.gate_up_proj(hidden)))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP, each on a residual branch, with norms before, after, or on both ends of the branch."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, kernels: Kernels) -> None:
        super().__init__()
        before, after = config.norm_placement != "post", config.norm_placement != "pre"

        def norm(present: bool) -> nn.Module:
            return RMSNorm(config.hidden_size, config, kernels) if present else nn.Identity()

        self.kernels = kernels
        self.attention_norm = norm(before)
        self.attention = Attention(config, layer, kernels)
        self.attention_post_norm = norm(after)
        self.mlp_norm = norm(before)
        self.mlp = MLP(config, kernels) if layer.moe is None else MixtureOfExperts(config, layer.moe, kernels)
        self.mlp_post_norm = norm(after)

    def forward(
        self, hidden: torch.Tensor, rotation: Rotation | None, batch: Batch, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; caches are the layer's own."""
        attended = self.attention(self.attention_norm(hidden), rotation, batch, keys, values)
        hidden = self.kernels.add(hidden, self.attention_post_norm(attended))
        return self.kernels.add(hidden, self.mlp_post_norm(self.mlp(self.mlp_norm(hidden))))
