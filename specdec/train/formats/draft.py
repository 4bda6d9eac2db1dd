"""A small draft model as a Hugging Face directory, tokenizer and all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specdec.models.config import ModelConfig
from specdec.tokenizer import Tokenizer
from specdec.train.formats.directory import CONFIG, WEIGHTS, fresh_directory


def write_draft(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    overwrite: bool = False,
) -> None:
    """Write a llama of `config` with `tensors` under Hugging Face's names. It appears whole or not at all; ValueError
    where something is there already, unless that is such a model and `overwrite`."""
    with fresh_directory(directory, replace=overwrite, holds=_holds_model) as staged:
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        dtype = str(own["model.norm.weight"].dtype).removeprefix("torch.")
        (staged / CONFIG).write_text(json.dumps(_config(config, dtype), indent=2) + "\n", encoding="utf-8")
        save_file(own, staged / WEIGHTS, metadata={"format": "pt"})
        (staged / WEIGHTS).chmod((staged / CONFIG).stat().st_mode)
        tokenizer.save(staged)


def check_llama(config: ModelConfig) -> None:
    """ValueError if a model is of another make than llama's."""
    plain = ModelConfig(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        layers=config.layers,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings,
        eos_token_ids=config.eos_token_ids,
        dtype=config.dtype,
    )
    ropes = {layer.rope for layer in config.layers if layer.rope is None or layer.rope.scaling is None}
    are_plain = all(layer.sliding_window is None and layer.moe is None for layer in config.layers)
    if config != plain or not are_plain or None in ropes or len(ropes) != 1:
        raise ValueError(
            f"a small draft of {config.architecture} is not supported: only of models whose layers are all llama's, "
            "without biases, windows, experts or a stretched rope"
        )


def _holds_model(directory: Path) -> bool:
    return (directory / CONFIG).is_file() and (directory / WEIGHTS).is_file()


def _config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    rope = config.layers[0].rope
    assert rope is not None
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": dtype,
    }
