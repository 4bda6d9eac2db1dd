"""The rotary settings of a config.json, in every spelling transformers has had, as a RopeConfig.

Old files say `rope_theta` and `rope_scaling` (with `type` or `rope_type`), files of transformers 5 `rope_parameters`.
What a scaling leaves to its defaults is filled in here, so that `rope.py` reads facts only. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.models.config import RopeConfig
from specdec.models.facts import Facts

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")

_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": (),
}


LONGEST = 2**30
"""No model reaches further, whatever its file says."""


def read_rope(facts: Facts, head_dim: int, *, partial: bool) -> RopeConfig:
    """The one rotary embedding of a model; `partial` says whether its family can rotate a part of each head."""
    parameters = dict(facts.mapping("rope_scaling") or facts.mapping("rope_parameters"))
    nested = [key for key, value in parameters.items() if isinstance(value, Mapping)]
    if nested:
        raise ValueError(f"{facts.prefix}rope parameters per layer type ({', '.join(nested)}) are not supported here")
    share = parameters.pop("partial_rotary_factor", facts.get("partial_rotary_factor"))
    share = 1.0 if share is None else share
    if not isinstance(share, int | float) or not 0 < share <= 1 or (share != 1 and not partial):
        raise ValueError(f"{facts.prefix}partial_rotary_factor {share!r} is not supported for this architecture")
    return _rope_config(facts, parameters, facts.number("rope_theta"), int(head_dim * share))


def read_gemma3_rope(facts: Facts, head_dim: int) -> dict[str, RopeConfig]:
    """Gemma 3 rotates its full and its sliding layers differently: one RopeConfig per layer type.

    `rope_scaling` speaks of the full layers alone.
    """
    given = facts.mapping("rope_parameters")
    unknown = set(given) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(
            f"{facts.prefix}rope_parameters of gemma3 must be given for full_attention and sliding_attention; "
            f"got {', '.join(sorted(unknown))}"
        )
    full = {**(given.get("full_attention") or {}), **facts.mapping("rope_scaling")}
    sliding = dict(given.get("sliding_attention") or {})
    return {
        "full_attention": _rope_config(facts, full, facts.number("rope_theta"), head_dim),
        "sliding_attention": _rope_config(facts, sliding, facts.number("rope_local_base_freq"), head_dim),
    }


def extended_limit(max_position_embeddings: int, rope: RopeConfig) -> int:
    """How many positions a model reaches: its `max_position_embeddings`, stretched where the scaling stretches it.

    As vLLM does: `linear` and `dynamic` multiply it, `yarn` multiplies the length it was trained with; `llama3` and
    `longrope` files already state the stretched length.
    """
    scaling = rope.scaling or {}
    if scaling.get("rope_type") in ("linear", "dynamic"):
        return int(min(LONGEST, max_position_embeddings * scaling["factor"]))
    if scaling.get("rope_type") == "yarn":
        stretched = scaling["original_max_position_embeddings"] * scaling["factor"]
        return max(max_position_embeddings, int(min(LONGEST, stretched)))
    return max_position_embeddings


def _rope_config(facts: Facts, parameters: dict[str, Any], theta: float, rotary_dim: int) -> RopeConfig:
    """Check one flat set of rope parameters and fill in what it leaves to its defaults."""
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"{facts.prefix}the rotated part of a head must be even and at least 2; got {rotary_dim}")
    own = Facts(parameters, {"rope_theta": theta}, f"{facts.prefix}rope parameters")
    theta = own.number("rope_theta")
    if theta <= 1:
        raise own.wrong("rope_theta", "a number above 1")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = facts.defaults.get("rope_type_aliases", {}).get(kind, kind)
    if kind not in ROPE_TYPES:
        raise ValueError(f"{facts.prefix}rope type {kind!r} is not supported (supported: {', '.join(ROPE_TYPES)})")
    if kind == "default":
        return RopeConfig(theta, rotary_dim)
    for key in _NEEDS[kind]:
        own.number(key)
    return RopeConfig(theta, rotary_dim, _filled(facts, own, kind, rotary_dim))


def _filled(facts: Facts, own: Facts, kind: str, rotary_dim: int) -> dict[str, Any]:
    """The scaling with its rope type, original length and factor spelled out."""
    scaling = {key: value for key, value in own.values.items() if key not in ("type", "rope_theta", "rope_type")}
    scaling["rope_type"] = kind
    limit = facts.integer("max_position_embeddings")
    if kind == "dynamic":
        scaling["original_max_position_embeddings"] = limit
    elif kind in ("yarn", "llama3", "longrope"):
        outer, inner = (source.optional_integer("original_max_position_embeddings") for source in (facts, own))
        scaling["original_max_position_embeddings"] = original = outer or inner or limit
        if scaling.get("factor") is None:
            scaling["factor"] = limit / original
    if kind == "longrope":
        for key in ("short_factor", "long_factor"):
            factors = scaling.get(key)
            if not isinstance(factors, list) or len(factors) != rotary_dim // 2 or not all(map(_is_positive, factors)):
                raise own.wrong(key, f"a list of {rotary_dim // 2} numbers above 0")
    for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"):
        if scaling.get(key) is not None:
            own.number(key)
    if scaling.get("original_max_position_embeddings") == 1 or (kind == "dynamic" and rotary_dim == 2):
        raise ValueError(f"{facts.prefix}rope type {kind!r} is not defined for lengths of 1 or heads of 2")
    Facts(scaling, {}, own.where).number("factor")
    return scaling


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
