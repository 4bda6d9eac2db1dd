"""GGUF files of tiny transformers models, written as llama.cpp's converter writes them, with the `gguf` package.

Nothing here is shared with the reader: names come from the package's own table, layouts from the converter.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map, quants
from transformers import PreTrainedConfig, PreTrainedModel

ARCHITECTURES = {
    "llama": (MODEL_ARCH.LLAMA, "llama"),
    "mistral": (MODEL_ARCH.LLAMA, "llama"),
    "mixtral": (MODEL_ARCH.LLAMA, "llama"),
    "qwen2": (MODEL_ARCH.QWEN2, "qwen2"),
    "qwen3": (MODEL_ARCH.QWEN3, "qwen3"),
    "gemma3_text": (MODEL_ARCH.GEMMA3, "gemma3"),
}


def write_model(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: Mapping[str, int | float | str | bool | list[bool]] | None = None,
) -> Path:
    """Write `model`, its matrices as `kind`. `extra` are further metadata, by full key."""
    config = model.config
    architecture, name = ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, name)
    _add_config(writer, config)
    for key, value in (extra or {}).items():
        _add_value(writer, key, value)
    for tensor, weights in _tensors(model, architecture).items():
        if weights.ndim > 1 and kind != GGMLQuantizationType.F32:
            writer.add_tensor(tensor, quants.quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_value(writer: GGUFWriter, key: str, value: int | float | str | bool | list[bool]) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_config(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.eos_token_id is not None:
        writer.add_eos_token_id(config.eos_token_id)
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("mistral", "mixtral", "gemma3_text") and config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    _add_rope(writer, rope.get("full_attention", rope))


def _add_rope(writer: GGUFWriter, rope: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _tensors(model: PreTrainedModel, architecture: MODEL_ARCH) -> dict[str, np.ndarray]:
    config = model.config
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".experts." in name or name.endswith("mlp.gate.weight"):
            tensors |= _experts(name, parameter.numpy())
            continue
        weights = parameter.numpy()
        part = name.split(".")[-2]
        if architecture == MODEL_ARCH.LLAMA and part in heads:
            weights = permute(weights, heads[part])
        if architecture == MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            weights = weights + np.float32(1)
        converted = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert converted is not None, name
        tensors[converted] = weights
    if architecture == MODEL_ARCH.LLAMA and config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(config)
    return tensors


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """Interleave the two halves of each head's rows."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _experts(name: str, weights: np.ndarray) -> dict[str, np.ndarray]:
    """transformers holds a layer's experts stacked, gate above up."""
    layer = name.split(".")[2]
    if name.endswith("mlp.gate.weight"):
        return {f"blk.{layer}.ffn_gate_inp.weight": weights}
    if name.endswith("down_proj"):
        return {f"blk.{layer}.ffn_down_exps.weight": weights}
    gate, up = np.split(weights, 2, axis=1)
    return {f"blk.{layer}.ffn_gate_exps.weight": gate, f"blk.{layer}.ffn_up_exps.weight": up}


def llama3_divisors(config: PreTrainedConfig) -> np.ndarray:
    rope, size = config.rope_parameters, config.head_dim
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    divisors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / size)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def gguf_string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """A metadata entry whose value is `payload`, said to be of value type `kind`."""
    return gguf_string(key) + struct.pack("<I", kind) + payload


def gguf_tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor info; `shape` in the file's order, the row's length first."""
    return gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_bytes(
    values: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file put together by hand, with data aligned to 32 bytes; `counts` replaces the true numbers of entries."""
    num_tensors, num_values = counts or (len(tensors), len(values))
    header = magic + struct.pack("<IQQ", version, num_tensors, num_values) + b"".join((*values, *tensors))
    return header + bytes(-len(header) % 32) + data


def equal_bits(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> bool:
    """Whether two float32 arrays hold the same bits; one NaN is as good as another."""
    x, y = (np.asarray(array, np.float32).ravel() for array in (a, b))
    return x.shape == y.shape and bool(np.all((x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))))
