"""Tiny draft heads as other projects write them to disk, and a tiny target for them.

Tensors are made under the authors' own names; each writer lays them out as one of the formats has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen3Config

from specdec.kernels import Kernels, reference
from specdec.models.config import LayerConfig, ModelConfig, RopeConfig
from specdec.models.decoder import Decoder
from specdec.models.heads import EagleHead, MedusaHead, load_head

VOCAB, DRAFT_VOCAB = 41, 17
TARGET_HIDDEN, HIDDEN, INTERMEDIATE = 24, 24, 20
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
MAX_LEN, EPS, THETA = 96, 1e-5, 5000.0
NUM_LAYERS = 9
AUX_LAYERS = (2, 4, 6)
"""The authors' choice for a target of NUM_LAYERS layers."""

Tensors = dict[str, torch.Tensor]


def target(
    *,
    num_layers: int = NUM_LAYERS,
    hidden_size: int = TARGET_HIDDEN,
    vocab_size: int = VOCAB,
    max_model_len: int = MAX_LEN,
    dtype: torch.dtype = torch.float64,
    soft_cap: float | None = None,
    kernels: Kernels = reference,
) -> Decoder:
    """A llama with random weights."""
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=max_model_len,
        layers=(LayerConfig(rope=RopeConfig(rotary_dim=8)),) * num_layers,
        final_soft_cap=soft_cap,
    )
    decoder = Decoder(config, kernels, max_model_len)
    torch.manual_seed(5)
    for module in decoder.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            weight = _random(*parameter.shape).to(dtype)
            setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    return decoder.eval()


def load(
    path: Path, to: Decoder, *, dtype: str = "auto", kernels: Kernels = reference, **options: Any
) -> EagleHead | MedusaHead:
    return load_head(path, target=to, dtype=dtype, device=torch.device("cpu"), kernels=kernels, **options)


def load_eagle(path: Path, to: Decoder, *, dtype: str = "auto", kernels: Kernels = reference) -> EagleHead:
    head = load(path, to, dtype=dtype, kernels=kernels)
    assert isinstance(head, EagleHead)
    return head


# Tensors


def _random(*shape: int) -> torch.Tensor:
    """Matrices that keep the size of states, vectors around one."""
    if len(shape) == 1:
        return 1 + 0.3 * torch.randn(shape, dtype=torch.float64)
    return torch.randn(shape, dtype=torch.float64) * shape[-1] ** -0.5


def _layer(prefix: str, input_size: int, hidden: int, biases: tuple[str, ...]) -> Tensors:
    """Attention and MLP of a llama layer, with the second norm."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, input_size),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, input_size),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, input_size),
        "self_attn.o_proj": (hidden, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, hidden),
        "mlp.up_proj": (INTERMEDIATE, hidden),
        "mlp.down_proj": (hidden, INTERMEDIATE),
        "post_attention_layernorm": (hidden,),
    }
    tensors = {f"{prefix}{name}.weight": _random(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}{name}.bias": _random(shapes[name][0]) for name in biases}


def eagle_tensors(*, bias: bool = True, embeddings: bool = True, biases: tuple[str, ...] = ()) -> Tensors:
    """An EAGLE-1/2 head under its authors' names."""
    torch.manual_seed(1)
    tensors = {"fc.weight": _random(HIDDEN, 2 * HIDDEN), **_layer("layers.0.", HIDDEN, HIDDEN, biases)}
    if bias:
        tensors["fc.bias"] = _random(HIDDEN)
    if embeddings:
        tensors["embed_tokens.weight"] = _random(VOCAB, HIDDEN) * 4
    return tensors


def eagle3_tensors(
    *,
    hidden: int = HIDDEN,
    aux: int = 3,
    draft_vocab: int = DRAFT_VOCAB,
    embeddings: bool = True,
    biases: tuple[str, ...] = (),
) -> Tensors:
    """An EAGLE-3 head under its authors' names; `draft_vocab` equal to VOCAB leaves out the mapping."""
    torch.manual_seed(2)
    tensors = {
        "fc.weight": _random(hidden, aux * TARGET_HIDDEN),
        "midlayer.hidden_norm.weight": _random(hidden),
        "midlayer.input_layernorm.weight": _random(hidden),
        **_layer("midlayer.", 2 * hidden, hidden, biases),
        "norm.weight": _random(hidden),
        "lm_head.weight": _random(draft_vocab, hidden),
    }
    if embeddings:
        tensors["embed_tokens.weight"] = _random(VOCAB, hidden) * 4
    if draft_vocab != VOCAB:
        tensors |= mapping(torch.randperm(VOCAB)[:draft_vocab].sort().values)
    return tensors


def mapping(target_ids: torch.Tensor) -> Tensors:
    """d2t and t2d of a head that guesses these tokens."""
    marks = torch.zeros(VOCAB, dtype=torch.bool)
    marks[target_ids] = True
    return {"d2t": target_ids - torch.arange(len(target_ids)), "t2d": marks}


def medusa_tensors(num_heads: int = 3, num_layers: int = 1, prefix: str = "", vocab_size: int = VOCAB) -> Tensors:
    """A Medusa head under its authors' names."""
    torch.manual_seed(3)
    tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{prefix}{head}.{layer}.linear.weight"] = _random(TARGET_HIDDEN, TARGET_HIDDEN)
            tensors[f"{prefix}{head}.{layer}.linear.bias"] = _random(TARGET_HIDDEN)
        tensors[f"{prefix}{head}.{num_layers}.weight"] = _random(vocab_size, TARGET_HIDDEN)
    return tensors


# Files


def layer_facts(hidden: int = HIDDEN) -> dict[str, Any]:
    """What every config says of the layer."""
    return {
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": EPS,
    }


def write(directory: Path, tensors: Tensors, config: Mapping[str, Any] | None, file: str = "model.safetensors") -> Path:
    """Tensors in a file of that name (its ending is its format) beside a config, if there is one."""
    directory.mkdir(exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        torch.save(tensors, directory / file)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_eagle(directory: Path, tensors: Tensors, file: str = "pytorch_model.bin", **facts: Any) -> Path:
    """The authors' EAGLE-1/2 directory. They leave `bias` out where there is one."""
    if "fc.bias" not in tensors:
        facts = {"bias": False, **facts}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rope_theta": THETA}
    return write(directory, tensors, {**config, **layer_facts(), **facts}, file)


def write_eagle3(directory: Path, tensors: Tensors, file: str = "pytorch_model.bin", **facts: Any) -> Path:
    """The authors' EAGLE-3 directory."""
    rows, hidden = tensors["lm_head.weight"].shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "draft_vocab_size": rows,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    if hidden != TARGET_HIDDEN:
        config["target_hidden_size"] = TARGET_HIDDEN
    return write(directory, tensors, {**config, **layer_facts(hidden), **facts}, file)


def write_speculators(directory: Path, tensors: Tensors, *, qwen3: bool = False, **facts: Any) -> Path:
    """An EAGLE-3 directory of the speculators library and vLLM; the layer's config is as transformers writes it."""
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    rows, hidden = tensors["lm_head.weight"].shape
    layer = (Qwen3Config if qwen3 else LlamaConfig)(**layer_facts(hidden), rope_parameters={"rope_theta": THETA})
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "transformer_layer_config": layer.to_diff_dict(),
        "draft_vocab_size": rows,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": None,
        "embed_requires_grad": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "some/model", "architectures": ["LlamaForCausalLM"]},
        },
    }
    return write(directory, tensors, {**config, **facts})


def write_speculators_eagle(directory: Path, tensors: Tensors, **facts: Any) -> Path:
    """An EAGLE-1 directory of the speculators library."""
    renamed = {"fc.": "fusion_fc.", "layers.0.": "transformer."}
    for old, new in renamed.items():
        tensors = {name.replace(old, new) if name.startswith(old) else name: t for name, t in tensors.items()}
    layer = LlamaConfig(**layer_facts(), rope_parameters={"rope_theta": THETA})
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer.to_diff_dict(),
        "layernorms": False,
        "fusion_bias": "fusion_fc.bias" in tensors,
    }
    return write(directory, tensors, {**config, **facts})
