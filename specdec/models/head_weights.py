"""Which tensors of a head's file make up each of its parameters, under the names that various libraries give them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from specdec.models.head_config import EagleConfig
from specdec.models.weights import IGNORABLE, Piece, WeightPlan, attention_parts, mlp_parts

_PREFIXES = ("", "model.")
_FUSIONS = ("fc.", "fusion_fc.")
_LAYERS = ("midlayer.", "layers.0.", "transformer.")
_LEFT_OVERS = re.compile(r"^verifier_(norm|lm_head)\.weight$")
"""Copies of the target's tensors that the speculators library trains with."""
_VOCABULARY = ("d2t", "t2d")
"""Tensors of a reduced vocabulary: no weights."""

_RESIDUAL = re.compile(r"^(?P<prefix>(.*\.)?)(?P<head>\d{1,6})\.(?P<layer>\d{1,6})\.linear\.weight$", re.ASCII)
"""A residual layer of a Medusa head."""


@dataclass(frozen=True)
class EagleNames:
    """How a file spells what is called `fc.`, `layer.` and so on here (EAGLE-1/2: `layers.0.`, EAGLE-3: `midlayer.`,
    vLLM: `layers.0.` for both, speculators' EAGLE-1: `fusion_fc.` and `transformer.`)."""

    prefix: str = ""
    fusion: str = "fc."
    layer: str = "layers.0."

    @staticmethod
    def of(names: Collection[str]) -> EagleNames | None:
        """The spelling in a file with these names; None if it has no matrix that fuses token and features."""
        for prefix in _PREFIXES:
            for fusion in _FUSIONS:
                if f"{prefix}{fusion}weight" in names:
                    found = [layer for layer in _LAYERS if any(name.startswith(prefix + layer) for name in names)]
                    return EagleNames(prefix, fusion, found[0] if found else EagleNames.layer)
        return None

    def canonical(self, names: Iterable[str]) -> frozenset[str]:
        """The names as they are spelled here."""
        return frozenset(map(self._canonical, names))

    def _canonical(self, name: str) -> str:
        name = name.removeprefix(self.prefix)
        for ours, theirs in (("layer.", self.layer), ("fc.", self.fusion)):
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name


def plan_eagle(config: EagleConfig, spelling: EagleNames, names: Collection[str]) -> WeightPlan:
    """Lay out the tensors `names` of an EAGLE head. Says nothing of what is missing."""
    names = frozenset(names)
    prefix, layer = spelling.prefix, spelling.prefix + spelling.layer
    pieces: dict[str, tuple[Piece, ...]] = {"inputs.fc.weight": (Piece(f"{prefix}{spelling.fusion}weight"),)}
    if config.fc_bias:
        pieces["inputs.fc.bias"] = (Piece(f"{prefix}{spelling.fusion}bias"),)
    if config.own_embedding:
        pieces["embed_tokens.weight"] = (Piece(f"{prefix}embed_tokens.weight"),)
    if config.kind == "eagle3":
        pieces["inputs.input_norm.weight"] = (Piece(f"{layer}input_layernorm.weight"),)
        pieces["inputs.hidden_norm.weight"] = (Piece(f"{layer}hidden_norm.weight"),)
        pieces["norm.weight"] = (Piece(f"{prefix}norm.weight"),)
        pieces["lm_head.weight"] = (Piece("lm_head.weight"),)
    pieces["layer.mlp_norm.weight"] = (Piece(f"{layer}post_attention_layernorm.weight"),)
    pieces |= {f"layer.{name}": parts for name, parts in attention_parts(config.model, f"{layer}self_attn.", names)}
    pieces |= {f"layer.{name}": parts for name, parts in mlp_parts(config.model, f"{layer}mlp.", names)}
    ignored = {name for name in names if IGNORABLE.search(name)}
    if config.kind == "eagle3":
        ignored |= {name for name in names if name in _VOCABULARY or _LEFT_OVERS.search(name)}
    return WeightPlan(pieces, frozenset(ignored))


@dataclass(frozen=True)
class MedusaLayout:
    """How many heads a Medusa file holds, of how many residual layers each, and what their names begin with."""

    prefix: str
    num_heads: int
    num_layers: int

    @staticmethod
    def of(names: Iterable[str]) -> MedusaLayout | None:
        """Counted from the names of the tensors; None if none of them is a Medusa head's."""
        found = [match for match in map(_RESIDUAL.match, names) if match]
        if not found:
            return None
        return MedusaLayout(
            prefix=found[0]["prefix"],
            num_heads=1 + max(int(match["head"]) for match in found),
            num_layers=1 + max(int(match["layer"]) for match in found),
        )

    def output_matrix(self, head: int) -> str:
        """The name of a head's output matrix, [V, H]."""
        return f"{self.prefix}{head}.{self.num_layers}.weight"


def plan_medusa(layout: MedusaLayout) -> WeightPlan:
    """Lay out the tensors of a Medusa file. Says nothing of what is missing."""
    pieces: dict[str, tuple[Piece, ...]] = {}
    for head in range(layout.num_heads):
        for layer in range(layout.num_layers):
            for kind in ("weight", "bias"):
                name = f"{layout.prefix}{head}.{layer}.linear.{kind}"
                pieces[f"residuals.{head}.{layer}.{kind}"] = (Piece(name),)
        pieces[f"lm_heads.{head}.weight"] = (Piece(layout.output_matrix(head)),)
    return WeightPlan(pieces, frozenset(_VOCABULARY))
