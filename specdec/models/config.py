"""The architecture of a decoder as plain facts, whatever file they came from.

`families.py` translates checkpoints into this; `decoder.py` reads nothing else. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

NormPlacement = Literal["pre", "post", "sandwich"]
"""Where a block's norms sit: before attention and MLP (llama), after them (olmo2), or both (gemma2, gemma3)."""


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts in place of a layer's MLP."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalize_weights: bool = True
    """Renormalise the chosen experts' softmax weights to sum to 1."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `scaling` holds the checkpoint's own parameters (type, factor, ...), None for plain RoPE."""

    theta: float = 10000.0
    rotary_dim: int = 0
    """How many of a head's entries rotate; `head_dim` unless the model rotates a part."""
    scaling: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class LayerConfig:
    """What differs between layers of one model."""

    sliding_window: int | None = None
    rope: RopeConfig | None = None
    """None: this layer does not rotate (smollm3's NoPE layers)."""
    moe: MoeConfig | None = None


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float = 1e-6
    norm_placement: NormPlacement = "pre"
    norm_unit_offset: bool = False
    """Norm weights are stored as w - 1 (gemma)."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """RMS norm of queries and keys: per head (qwen3, gemma3) or over all heads at once (olmo2)."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float | None = None
    """None: head_dim ** -0.5."""
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    embedding_scale: float | None = None
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """The checkpoint's own dtype."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        """The factor of attention scores before the softmax."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
