"""The weights of an EAGLE-3 head, and what they start from: noise, or the target's last layer and output rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from specdec.models.config import ModelConfig, RopeConfig
from specdec.train.formats.facts import Eagle3Facts, Target
from specdec.train.target import TargetParts

SPREAD = 0.02
"""Standard deviation of what starts as noise."""


@dataclass(frozen=True)
class Eagle3Shape:
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]

    def facts(self, vocab_size: int, draft_vocab_size: int, target: Target) -> Eagle3Facts:
        return Eagle3Facts(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope.theta,
            max_position_embeddings=self.max_position_embeddings,
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=self.target_hidden_size,
            aux_layers=self.aux_layers,
            target=target,
            rope_scaling=self.rope.scaling,
        )


def shape_for(target: ModelConfig, aux_layers: tuple[int, ...]) -> Eagle3Shape:
    """The shape of the target's own layers."""
    ropes = [layer.rope for layer in target.layers if layer.rope is not None]
    return Eagle3Shape(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope=ropes[-1] if ropes else RopeConfig(rotary_dim=target.head_dim),
        max_position_embeddings=target.max_position_embeddings,
        target_hidden_size=target.hidden_size,
        aux_layers=aux_layers,
    )


class Eagle3Weights(nn.Module):
    """float32, as noise of `seed`; matrices are [out, in]. `token_ids` (int64 [Vd], ascending) are the tokens that the
    head can say, and are kept with its weights."""

    token_ids: torch.Tensor

    def __init__(self, shape: Eagle3Shape, token_ids: torch.Tensor, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("token_ids", token_ids)
        size, inner, target_size = shape.hidden_size, shape.intermediate_size, shape.target_hidden_size
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        generator = torch.Generator().manual_seed(seed)

        def noise(*dims: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*dims, generator=generator) * SPREAD)

        self.fc = noise(size, len(shape.aux_layers) * target_size)
        self.q_proj, self.k_proj, self.v_proj = noise(queries, 2 * size), noise(keys, 2 * size), noise(keys, 2 * size)
        self.o_proj = noise(size, queries)
        self.gate_proj, self.up_proj, self.down_proj = noise(inner, size), noise(inner, size), noise(size, inner)
        self.lm_head = noise(len(token_ids), size)
        self.input_layernorm, self.hidden_norm = nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size))
        self.post_attention_layernorm, self.norm = nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size))

    @torch.no_grad()
    def take(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of a head with some of these tokens; the others keep their output rows. RuntimeError
        where shapes differ."""
        own = dict(kept)
        rows = torch.searchsorted(self.token_ids, own.pop("token_ids"))
        lm_head = self.lm_head.clone()
        lm_head[rows] = own["lm_head"]
        self.load_state_dict({**own, "lm_head": lm_head, "token_ids": self.token_ids})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the authors' names."""
        own = dict(self.named_parameters())
        attention = {
            f"midlayer.self_attn.{name}.weight": own[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        }
        mlp = {f"midlayer.mlp.{name}.weight": own[name] for name in ("gate_proj", "up_proj", "down_proj")}
        norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        return {
            "fc.weight": own["fc"],
            **{f"midlayer.{name}.weight": own[name] for name in norms},
            **attention,
            **mlp,
            "norm.weight": own["norm"],
            "lm_head.weight": own["lm_head"],
        }


@torch.no_grad()
def start_from_target(weights: Eagle3Weights, target: TargetParts) -> None:
    """Let the head begin as the target's last layer on the highest auxiliary state, with the target's output rows.

    Of what it reads, the embedding's half starts as noise. ValueError if the target's last layer is of another kind.
    """
    config, layer = target.config, target.last_layer
    if config.norm_placement != "pre" or "mlp.gate_up_proj.weight" not in layer or config.norm_unit_offset:
        raise ValueError(
            f"a head cannot start from the last layer of {config.architecture}, which is not llama's; set "
            "eagle3.start: random"
        )
    size, shape = config.hidden_size, weights.shape
    weights.fc[:, -size:] += torch.eye(size)
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    parts = torch.split(layer["attention.qkv_proj.weight"], [queries, keys, keys])
    for own, theirs in zip((weights.q_proj, weights.k_proj, weights.v_proj), parts, strict=True):
        own[:, size:] = theirs
    weights.o_proj.copy_(layer["attention.o_proj.weight"])
    gate, up = layer["mlp.gate_up_proj.weight"].chunk(2)
    weights.gate_proj.copy_(gate)
    weights.up_proj.copy_(up)
    weights.down_proj.copy_(layer["mlp.down_proj.weight"])
    weights.hidden_norm.copy_(layer["attention_norm.weight"])
    weights.post_attention_layernorm.copy_(layer["mlp_norm.weight"])
    weights.norm.copy_(target.final_norm)
    weights.lm_head.copy_(target.output_matrix[weights.token_ids])
