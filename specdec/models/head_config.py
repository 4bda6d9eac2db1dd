"""What the config.json of an EAGLE head says, in its authors' form or that of the speculators library.

A fact that would change the computation and that is not computed here is refused by name, never ignored. No torch here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specdec.config import unknown_name
from specdec.models.config import ModelConfig
from specdec.models.facts import Facts
from specdec.models.families import model_config

EagleKind = Literal["eagle", "eagle3"]

AUX_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""The layers that the speculators library makes heads of, by model_type; the authors know llama's alone."""

_ONLY: Mapping[str, bool] = {
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "layernorms": False,
    "parallel_drafting": False,
    "use_mtp_layernorm": False,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
}
"""Variants of heads that other libraries can switch on or off, and the one way each is computed here."""


@dataclass(frozen=True)
class EagleConfig:
    """An EAGLE head as plain facts, for one target."""

    kind: EagleKind
    model: ModelConfig
    """Of the head's one layer. `vocab_size` is the number of tokens it may be fed."""
    target_hidden_size: int
    aux_layers: tuple[int, ...] = ()
    """The target's layers whose inputs are the features, in order (eagle3)."""
    draft_vocab_size: int = 0
    """How many logits the head's own output matrix has (eagle3)."""
    fc_bias: bool = False
    norm_before_residual: bool = False
    """The residual branch starts from the normalised features (eagle3)."""
    own_embedding: bool = False
    """The head has an embedding of its own; else it uses the target's."""

    @property
    def feature_size(self) -> int:
        """Width of the target features of one position."""
        return max(1, len(self.aux_layers)) * self.target_hidden_size


def read_eagle_config(
    raw: Mapping[str, Any], kind: EagleKind, tensors: Collection[str], target: ModelConfig, where: str
) -> EagleConfig:
    """The facts of `raw` (a parsed config.json; `where` names it in errors) and of the names of the head's tensors,
    which stand without what they have in common (`layer.` for the layer). ValueError for what is wrong, not supported,
    or made for another target."""
    facts = Facts(raw, {}, where)
    _refuse_variants(facts, kind)
    model = _layer_config(facts, tensors)
    _check_target(facts, kind, model, target, own_embedding="embed_tokens.weight" in tensors)
    return EagleConfig(
        kind=kind,
        model=model,
        target_hidden_size=target.hidden_size,
        aux_layers=_aux_layers(facts, target.num_layers) if kind == "eagle3" else (),
        draft_vocab_size=(facts.optional_integer("draft_vocab_size") or model.vocab_size) if kind == "eagle3" else 0,
        fc_bias="fc.bias" in tensors or (kind == "eagle" and _says_bias(facts)),
        norm_before_residual=facts.flag("norm_before_residual"),
        own_embedding="embed_tokens.weight" in tensors,
    )


def _says_bias(facts: Facts) -> bool:
    """The authors' heads have a bias unless they say otherwise, those of the speculators library if they say so."""
    if "speculators_model_type" in facts.values:
        return facts.flag("fusion_bias")
    return facts.get("bias") is None or facts.flag("bias")


def _refuse_variants(facts: Facts, kind: EagleKind) -> None:
    for section in (facts, Facts(facts.mapping("eagle_config"), {}, f"{facts.prefix}eagle_config")):
        for key, only in _ONLY.items():
            if section.get(key) is not None and section.flag(key) != only:
                raise ValueError(f"{section.prefix}{key} {str(not only).lower()} is not supported for {kind} heads")


def _layer_config(facts: Facts, tensors: Collection[str]) -> ModelConfig:
    """The head's layer as a model of one layer. What the config leaves open about biases, the tensors say."""
    layer, architecture = facts, _ARCHITECTURES["llama"]
    if "speculators_model_type" in facts.values:
        layer = Facts(facts.mapping("transformer_layer_config"), {}, f"{facts.prefix}transformer_layer_config")
        model_type = layer.text("model_type") or "llama"
        if model_type not in _ARCHITECTURES:
            raise ValueError(layer.prefix + unknown_name("model_type of a head's layer", model_type, _ARCHITECTURES))
        architecture = _ARCHITECTURES[model_type]
    if layer.get("num_hidden_layers") not in (None, 1):
        raise layer.wrong("num_hidden_layers", "1: heads of several layers are not supported")
    values = {**layer.values, "architectures": [architecture], "num_hidden_layers": 1, "tie_word_embeddings": False}
    for key in ("quantization_config", "compression_config"):
        values[key] = layer.get(key) or facts.get(key)
    if layer.get("use_sliding_window") is False:
        values["sliding_window"] = None
    model = model_config(values, layer.where)
    if model.layers[0].sliding_window is not None:
        raise ValueError(f"{layer.prefix}sliding_window {layer.get('sliding_window')} is not supported for heads")
    return replace(
        model,
        qkv_bias=model.qkv_bias or layer.flag("qkv_bias") or "layer.self_attn.q_proj.bias" in tensors,
        output_bias="layer.self_attn.o_proj.bias" in tensors,
        mlp_bias=model.mlp_bias or "layer.mlp.down_proj.bias" in tensors,
    )


def _check_target(
    facts: Facts, kind: EagleKind, model: ModelConfig, target: ModelConfig, *, own_embedding: bool
) -> None:
    """ValueError if the head is for features or tokens of other numbers than the target's."""
    size = facts.optional_integer("target_hidden_size") or model.hidden_size
    if kind == "eagle":
        size = model.hidden_size
    if size != target.hidden_size:
        raise ValueError(
            f"{facts.prefix}the head is for a model of hidden size {size}; this model's is {target.hidden_size}"
        )
    if not own_embedding and model.hidden_size != target.hidden_size:
        raise ValueError(
            f"{facts.prefix}the head has no embed_tokens.weight and cannot use the model's embedding: "
            f"its hidden_size is {model.hidden_size}, the model's {target.hidden_size}"
        )
    if model.vocab_size < target.vocab_size:
        raise ValueError(
            f"{facts.prefix}the head is for a vocabulary of {model.vocab_size} tokens; this model has "
            f"{target.vocab_size}"
        )


def _aux_layers(facts: Facts, num_layers: int) -> tuple[int, ...]:
    """The head's own layer ids, else the authors' choice: the inputs of layers 2, n // 2 and n - 3."""
    section = Facts(facts.mapping("eagle_config"), {}, f"{facts.prefix}eagle_config")
    source = facts if section.get(AUX_LAYER_IDS) is None else section
    ids = source.integers(AUX_LAYER_IDS)
    if ids is None:
        default = (2, num_layers // 2, num_layers - 3)
        if not default[0] < default[1] < default[2]:
            raise ValueError(
                f"{facts.prefix}{AUX_LAYER_IDS} is missing, and the default, layers 2, n // 2 and n - 3, needs a model "
                f"of at least 7 layers; this one has {num_layers}"
            )
        return default
    if not ids or not all(0 <= i <= num_layers for i in ids):
        raise source.wrong(AUX_LAYER_IDS, f"a list of layers from 0 to {num_layers}, the model's number of layers")
    return tuple(ids)
