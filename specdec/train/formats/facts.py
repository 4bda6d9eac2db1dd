"""What the config.json of a head says, whatever the layout. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

DEFAULT_SPECULATIVE_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class Target:
    """The model that a head drafts for, as far as it is known."""

    name: str | None = None
    """A hub name, path or alias."""
    architecture: str | None = None
    """Such as LlamaForCausalLM."""


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """The one decoder layer of an EAGLE head: of an EAGLE-1/2 head these are all the facts."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int
    """The target's."""
    target: Target = Target()
    model_type: str = "llama"
    """qwen3: queries and keys are normalised."""
    rope_scaling: Mapping[str, Any] | None = None
    speculative_tokens: int = DEFAULT_SPECULATIVE_TOKENS
    """How many tokens engines draft where they are not told."""


@dataclass(frozen=True, kw_only=True)
class Eagle3Facts:
    """An EAGLE-3 head."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int
    """The target's."""
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...] | None
    """The target's layers whose inputs are the features; None: the authors' choice, 2, n // 2 and n - 3."""
    norm_before_residual: bool = False
    target: Target = Target()
    model_type: str = "llama"
    rope_scaling: Mapping[str, Any] | None = None
    speculative_tokens: int = DEFAULT_SPECULATIVE_TOKENS

    @property
    def layer(self) -> LayerFacts:
        """What is said of the layer alone."""
        return LayerFacts(**{field.name: getattr(self, field.name) for field in fields(LayerFacts)})


@dataclass(frozen=True, kw_only=True)
class MedusaFacts:
    """Medusa heads: `num_heads` of `num_layers` residual layers and an output matrix each.

    A vocabulary of fewer tokens than the target's is listed in tensors d2t and t2d, as in EAGLE-3's layout; Medusa's
    authors have none.
    """

    hidden_size: int
    vocab_size: int
    """The target's."""
    draft_vocab_size: int | None = None
    """Rows of the output matrices where a d2t says which tokens they are."""
    num_heads: int
    num_layers: int = 1
    target: Target = Target()


HeadFacts = LayerFacts | Eagle3Facts | MedusaFacts


def layer_config(facts: LayerFacts, *, attention_bias: bool, mlp_bias: bool) -> dict[str, Any]:
    """The keys that a transformers config of the layer has."""
    return {
        "model_type": facts.model_type,
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": facts.rms_norm_eps,
        "rope_theta": facts.rope_theta,
        "rope_scaling": None if facts.rope_scaling is None else dict(facts.rope_scaling),
        "max_position_embeddings": facts.max_position_embeddings,
        "vocab_size": facts.vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
    }
