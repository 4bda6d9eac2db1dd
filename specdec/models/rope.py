"""Rotary position embeddings: tables of cosines and sines, one row per position, computed once at load.

Every scaling is a function of the config and of a token's own position alone (D5), where transformers looks at the
length of the batch in two cases:

- `dynamic`: position p uses the frequencies of a sequence of p + 1 tokens. That is what transformers does when it
  decodes token by token; a long prompt read in one pass gets other frequencies there.
- `longrope`: a model opened with `max_model_len` up to its original length uses the short factors, else the long ones,
  at every position. transformers switches when a sequence outgrows the original length, which would change keys that
  are already cached.

Numbers are taken in float32 as transformers does, whatever the dtype of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from specdec.models.config import RopeConfig


class RopeTable(nn.Module):
    """Cosines and sines of the positions 0 .. max_model_len - 1, float32 [max_model_len, rotary_dim / 2] each."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: RopeConfig, max_model_len: int) -> None:
        super().__init__()
        frequencies, factor = inverse_frequencies(config, max_model_len)
        positions = torch.arange(max_model_len, dtype=torch.float32, device="cpu")
        angles = positions[:, None] * frequencies
        self.register_buffer("cos", angles.cos().mul_(factor), persistent=False)
        self.register_buffer("sin", angles.sin_().mul_(factor), persistent=False)

    @property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [max_model_len, rotary_dim / 2] each."""
        return self.cos, self.sin


def rope_table_bytes(config: RopeConfig, max_model_len: int) -> int:
    """Bytes of a `RopeTable`, before it is built."""
    return 2 * max_model_len * (config.rotary_dim // 2) * 4


def inverse_frequencies(config: RopeConfig, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Angular frequencies, float32 [R / 2] or, where they depend on the position, [max_model_len, R / 2]; and the
    factor of cosines and sines. Formulas: transformers' `modeling_rope_utils`."""
    scaling = config.scaling
    if scaling is None:
        return _plain(config), 1.0
    kind = scaling["rope_type"]
    if kind == "linear":
        return _plain(config) / scaling["factor"], 1.0
    if kind == "dynamic":
        return _dynamic(config, scaling, max_model_len), 1.0
    if kind == "llama3":
        return _llama3(_plain(config), scaling), 1.0
    if kind == "yarn":
        return _yarn(config, scaling), _yarn_attention_factor(scaling)
    assert kind == "longrope", f"rope type {kind!r} has passed the config check"
    return _longrope(config, scaling, max_model_len), _longrope_attention_factor(scaling)


def _exponents(config: RopeConfig) -> torch.Tensor:
    """0, 2, 4, ... over the rotated size: float32 [R / 2]."""
    return torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device="cpu") / config.rotary_dim


def _powers(config: RopeConfig) -> torch.Tensor:
    """The base to the exponents: float32 [R / 2]."""
    return torch.pow(config.theta, _exponents(config))


def _plain(config: RopeConfig) -> torch.Tensor:
    return torch.reciprocal(_powers(config))


def _dynamic(config: RopeConfig, scaling: Mapping[str, Any], max_model_len: int) -> torch.Tensor:
    """NTK scaling: from the original length on, the base grows with the position. [max_model_len, R / 2]"""
    original, factor, dim = scaling["original_max_position_embeddings"], scaling["factor"], config.rotary_dim
    lengths = torch.arange(1, max_model_len + 1, dtype=torch.float32, device="cpu").clamp(min=original)
    stretch = (factor * lengths / original - (factor - 1)) ** (dim / (dim - 2))
    return torch.reciprocal((config.theta * stretch)[:, None] ** _exponents(config))


def _llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    share = (original / wavelengths - low) / (high - low)
    blended = (1 - share) * frequencies / factor + share * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, blended)
    return torch.where(wavelengths < original / high, frequencies, scaled)


def _yarn(config: RopeConfig, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Blend of kept and interpolated frequencies over a ramp of dimensions (arXiv 2309.00071)."""
    dim, original = config.rotary_dim, scaling["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        """The dimension that turns `rotations` times over the original length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low = dimension(scaling.get("beta_fast") or 32)
    high = dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    powers = _powers(config)
    return torch.reciprocal(scaling["factor"] * powers) * ramp + torch.reciprocal(powers) * (1 - ramp)


def _yarn_attention_factor(scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = scaling["factor"]

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def _longrope(config: RopeConfig, scaling: Mapping[str, Any], max_model_len: int) -> torch.Tensor:
    """Each frequency has a factor of its own (arXiv 2402.13753); the model's length chooses between two sets."""
    is_short = max_model_len <= scaling["original_max_position_embeddings"]
    factors = torch.tensor(scaling["short_factor" if is_short else "long_factor"], dtype=torch.float32, device="cpu")
    return torch.reciprocal(factors * _powers(config))


def _longrope_attention_factor(scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = scaling["factor"]
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(scaling["original_max_position_embeddings"]))
