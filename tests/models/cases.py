"""Tiny random models of every family, and what transformers says of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.models.auto import AutoModelForCausalLM
from transformers.utils import logging

from specdec.kernels import Kernels, reference
from specdec.models.decoder import Decoder
from specdec.models.loader import load_model, open_checkpoint

VOCAB = 61
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PHI_FACTORS = {"short_factor": [1.0, 1.05, 1.2, 1.4], "long_factor": [1.5, 2.0, 3.5, 4.0]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}


def _rope(**parameters: Any) -> Callable[[], PreTrainedConfig]:
    return lambda: LlamaConfig(**BASE, rope_parameters={"rope_theta": 10000.0, **parameters})


CASES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**BASE),
    "llama_biased": lambda: LlamaConfig(
        **{**BASE, "num_key_value_heads": 4}, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=24
    ),
    "mistral": lambda: MistralConfig(**BASE, sliding_window=9),
    "mistral_full": lambda: MistralConfig(**BASE, sliding_window=None, head_dim=8),
    "qwen2": lambda: Qwen2Config(**BASE, use_sliding_window=True, sliding_window=10, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**BASE, head_dim=24, attention_bias=True, tie_word_embeddings=True),
    "qwen3_sliding": lambda: Qwen3Config(
        **BASE, head_dim=16, use_sliding_window=True, sliding_window=12, max_window_layers=2
    ),
    "gemma2": lambda: Gemma2Config(**BASE, head_dim=16, sliding_window=10, query_pre_attn_scalar=20),
    "gemma3": lambda: Gemma3TextConfig(
        **{**BASE, "num_hidden_layers": 4},
        head_dim=16,
        sliding_window=10,
        sliding_window_pattern=2,
        query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "gemma3_capped": lambda: Gemma3TextConfig(**BASE, head_dim=16, sliding_window=7, final_logit_softcapping=20.0),
    "phi3": lambda: Phi3Config(**BASE, sliding_window=11),
    "phi3_longrope": lambda: Phi3Config(
        **BASE,
        original_max_position_embeddings=32,
        rope_parameters={"rope_type": "longrope", "partial_rotary_factor": 0.5, "rope_theta": 1e4, **PHI_FACTORS},
    ),
    "olmo2": lambda: Olmo2Config(**BASE),
    "smollm3": lambda: SmolLM3Config(
        **{**BASE, "num_hidden_layers": 4}, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=9
    ),
    "mixtral": lambda: MixtralConfig(**BASE, num_local_experts=5, num_experts_per_tok=2, sliding_window=20),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **{**BASE, "num_hidden_layers": 4},
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        decoder_sparse_step=2,
        norm_topk_prob=True,
    ),
    "qwen3_moe_plain": lambda: Qwen3MoeConfig(
        **BASE,
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=13,
    ),
    "rope_linear": _rope(rope_type="linear", factor=3.0),
    "rope_llama3": _rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "rope_yarn": _rope(**YARN),
    "rope_yarn_options": _rope(**YARN, mscale=0.8, mscale_all_dim=1.1, beta_fast=20, beta_slow=2, truncate=False),
    "rope_dynamic": lambda: LlamaConfig(
        **{**BASE, "max_position_embeddings": 40},
        rope_parameters={"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0},
    ),
}
STEPWISE = ("rope_dynamic",)
"""Cases whose transformers logits depend on how the prompt is cut; token by token is what a decoder has to equal."""


def build(config: PreTrainedConfig) -> PreTrainedModel:
    """A transformers model with weights of a sensible size: states of order one, norms and biases that matter."""
    logging.set_verbosity_error()
    torch.manual_seed(0)
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                scale = 0.6 if "embed" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(std=scale)
    return model


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count,), generator=generator).tolist()


def load(
    directory: Path, dtype: str = "auto", max_model_len: int | None = None, kernels: Kernels = reference
) -> Decoder:
    checkpoint = open_checkpoint(directory)
    device = torch.device("cpu")
    return load_model(checkpoint, dtype=dtype, device=device, kernels=kernels, max_model_len=max_model_len)


class _StayWide(TorchFunctionMode):
    """Leaves out the steps to float32 that transformers takes inside a float64 model: norms, softmax, router.

    Its rotary tables stay float32, as ours are.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            if func is torch.Tensor.to and torch.float32 in args:
                return args[0]
            if func is torch.nn.functional.softmax and kwargs.get("dtype") == torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def _numerics(dtype: torch.dtype) -> Iterator[None]:
    if dtype != torch.float64:
        yield
        return
    with _StayWide():
        yield


@torch.no_grad()
def transformers_logits(model: PreTrainedModel, prompt: list[int], *, stepwise: bool = False) -> torch.Tensor:
    """Logits at every position, [len(prompt), vocab]: in one pass, or token by token through transformers' cache."""
    with _numerics(model.dtype):
        if not stepwise:
            return model(torch.tensor([prompt]), use_cache=False).logits[0]
        cache = DynamicCache(config=model.config)
        parts = []
        for position, token in enumerate(prompt):
            with warnings.catch_warnings():
                # The argument has a new name in late releases of transformers 5; all of them take the old one.
                warnings.simplefilter("ignore", FutureWarning)
                out = model(
                    torch.tensor([[token]]),
                    position_ids=torch.tensor([[position]]),
                    past_key_values=cache,
                    use_cache=True,
                )
            parts.append(out.logits[0])
    return torch.cat(parts)
