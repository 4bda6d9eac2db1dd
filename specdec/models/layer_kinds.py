"""Which attention each layer of a model has: the rules by which transformers fills a missing `layer_types`.

Two kinds exist here, and both keep one KV entry per token, so that a rejected draft is taken back by forgetting
entries. A recurrent state has no such way back: those kinds are refused by name.
"""

from __future__ import annotations

from specdec.models.facts import Facts

FULL = "full_attention"
SLIDING = "sliding_attention"
KINDS = (FULL, SLIDING)

_RECURRENT = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "rwkv", "gated_deltanet", "ssm")


def full_only(facts: Facts) -> list[str]:
    """Every layer sees everything."""
    return [FULL] * facts.integer("num_hidden_layers")


def every_layer(facts: Facts) -> list[str]:
    """Every layer has the sliding window, if there is one."""
    kind = FULL if facts.get("sliding_window") is None else SLIDING
    return [kind] * facts.integer("num_hidden_layers")


def every_layer_if_enabled(facts: Facts) -> list[str]:
    """As `every_layer`, where `use_sliding_window` says so."""
    return every_layer(facts) if facts.flag("use_sliding_window") else full_only(facts)


def from_layer(facts: Facts) -> list[str]:
    """Where `use_sliding_window` says so, layers from `max_window_layers` on have the window (qwen)."""
    layers = range(facts.integer("num_hidden_layers"))
    if not facts.flag("use_sliding_window") or facts.get("sliding_window") is None:
        return [FULL for _ in layers]
    first = facts.integer("max_window_layers", low=0)
    return [SLIDING if i >= first else FULL for i in layers]


def alternating(facts: Facts) -> list[str]:
    """Every `sliding_window_pattern`-th layer is full, the others slide (gemma)."""
    period = facts.integer("sliding_window_pattern")
    return [SLIDING if (i + 1) % period else FULL for i in range(facts.integer("num_hidden_layers"))]


def nope_layers(facts: Facts) -> list[str]:
    """Where `use_sliding_window` says so, the layers without rotation have the window (smollm3)."""
    has_window = facts.flag("use_sliding_window") and facts.get("sliding_window") is not None
    return [SLIDING if has_window and not rotates else FULL for rotates in rotating_layers(facts)]


def rotating_layers(facts: Facts) -> list[bool]:
    """Which layers rotate: `no_rope_layers` (1: rotates), else all but every `no_rope_layer_interval`-th (smollm3)."""
    layers = facts.integer("num_hidden_layers")
    flags = facts.integers("no_rope_layers")
    if flags is None:
        interval = facts.integer("no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(layers)]
    if len(flags) < layers:
        raise facts.wrong("no_rope_layers", f"a list of at least {layers} entries")
    return [bool(flag) for flag in flags[:layers]]


def check_reversible(facts: Facts) -> None:
    """Refuse layers whose state cannot be rolled back, whatever the architecture."""
    for key in ("layer_types", "layers_block_type", "block_types"):
        for kind in facts.get(key) or ():
            if kind in _RECURRENT:
                raise ValueError(
                    f"{facts.prefix}{key} has {kind!r}, a layer that cannot be rolled back after a rejected draft "
                    f"(supported: {', '.join(KINDS)})"
                )


def read_kinds(facts: Facts, derived: list[str], *, own_layer_types: bool) -> list[str]:
    """The kind of each layer: `layer_types` where the family heeds it, checked; else what the other keys say."""
    given = facts.get("layer_types")
    if given is None:
        return derived
    if not isinstance(given, list) or len(given) != len(derived):
        raise facts.wrong("layer_types", f"a list of {len(derived)} layer types")
    kinds = [FULL if kind == "attention" else str(kind) for kind in given]
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{facts.prefix}layer type {kind!r} is not supported (supported: {', '.join(KINDS)})")
    if not own_layer_types and kinds != derived:
        raise ValueError(f"{facts.prefix}layer_types other than {derived[0]!r} are not supported for this architecture")
    return kinds
