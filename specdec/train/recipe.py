"""Every hyperparameter of a training run, read from one YAML file. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from specdec.config import unknown_name


@dataclass(frozen=True)
class RunConfig:
    """How much is trained, in what portions, and how often it is looked at."""

    seed: int = 0
    epochs: int = 8
    step_tokens: int = 1024
    """Tokens of a micro-batch, about."""
    accumulation: int = 1
    """Micro-batches for one step of the optimiser."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the products; weights and sums are float32. auto: bfloat16 where the machine multiplies it fast."""
    device: str = "auto"
    evaluations: int = 40
    """How often the held-out samples are looked at, evenly over the run."""
    checkpoint_minutes: float = 10.0
    held_out_share: float = 0.02
    """Of the prompts."""
    held_out_tokens: int = 20000
    """Answer tokens that each look takes in, at most."""


@dataclass(frozen=True)
class OptimiserConfig:
    method: Literal["muon", "adamw"] = "muon"
    """Of the matrices inside a layer; all else is AdamW's."""
    muon_iterations: int = 5
    """How close Muon comes to a step that is orthogonal; more cost more."""
    learning_rate: float = 2e-3
    warmup: float = 0.03
    """Share of the steps."""
    final_share: float = 0.02
    """Of the learning rate, at the end of the cosine."""
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 0.5
    """Longest gradient."""
    ema: float = 0.998
    """How much of the weights' average each step keeps; 0: no average."""


@dataclass(frozen=True)
class LossConfig:
    unroll_decay: float = 0.8
    """Weight of each unroll against the one before."""
    acceptance_share: float = 1.0
    """Of -log sum min(target, draft) in the late loss; the rest is forward KL."""
    acceptance_from: float = 0.67
    """Share of the steps after which the late loss begins; 1: never."""


@dataclass(frozen=True)
class Eagle3Config:
    unrolls: int = 4
    draft_vocab_size: int = 8192
    """All of the target's tokens, if it has fewer."""
    aux_layers: tuple[int, ...] = ()
    """The target's layers whose inputs are the features; empty: those of the data."""
    start: Literal["target", "random"] = "target"
    """From the target's last layer and output rows, or from nothing."""
    train_output: Literal["all", "first", "none"] = "all"
    """What the output matrix learns from: every unroll, the first one alone, which is faster, or nothing."""
    chain_share: float = 0.5
    """Share of the positions whose chains are unrolled; the first guess is trained at all of them."""
    train_on: Literal["answers", "all"] = "answers"
    weight_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """What the trained head is written in."""


@dataclass(frozen=True)
class MedusaConfig:
    """`loss.unroll_decay` is the weight of each head against the one before."""

    num_heads: int = 4
    draft_vocab_size: int = 8192
    """All of the target's tokens, if it has fewer."""
    train_on: Literal["answers", "all"] = "answers"
    weight_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """What the trained heads are written in."""


@dataclass(frozen=True)
class DraftConfig:
    """A model of the target's first layers, with its embedding and output matrix, which stay as they are."""

    num_layers: int = 4
    loss_vocab_size: int = 16384
    """So many of the commonest tokens the laws are compared over; all of the target's, if it has fewer."""
    train_on: Literal["answers", "all"] = "answers"
    weight_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """What the trained model is written in."""


@dataclass(frozen=True)
class TrainConfig:
    """A recipe: sections as in the file."""

    run: RunConfig = field(default_factory=RunConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    eagle3: Eagle3Config = field(default_factory=Eagle3Config)
    medusa: MedusaConfig = field(default_factory=MedusaConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)


DEFAULTS: Mapping[str, TrainConfig] = {
    "eagle3": TrainConfig(),
    "medusa": TrainConfig(),
    "draft": TrainConfig(run=RunConfig(epochs=4), optimiser=OptimiserConfig(learning_rate=3e-4)),
}
"""By trainee. Layers that are the target's own already need less than those that begin from little."""

_RANGES: Mapping[str, tuple[float, float]] = {
    "run.epochs": (1, 10_000),
    "run.step_tokens": (1, 10_000_000),
    "run.accumulation": (1, 10_000),
    "run.evaluations": (1, 1_000_000),
    "run.checkpoint_minutes": (0, 1e6),
    "run.held_out_share": (0, 0.9),
    "run.held_out_tokens": (1, 1e9),
    "run.seed": (0, 2**63 - 1),
    "optimiser.muon_iterations": (1, 20),
    "optimiser.learning_rate": (0, 1),
    "optimiser.warmup": (0, 1),
    "optimiser.final_share": (0, 1),
    "optimiser.beta1": (0, 0.999999),
    "optimiser.beta2": (0, 0.999999),
    "optimiser.epsilon": (0, 1),
    "optimiser.weight_decay": (0, 10),
    "optimiser.clip": (0, 1e6),
    "optimiser.ema": (0, 1),
    "loss.unroll_decay": (0, 1),
    "loss.acceptance_share": (0, 1),
    "loss.acceptance_from": (0, 1),
    "eagle3.unrolls": (1, 7),
    "eagle3.draft_vocab_size": (1, 10_000_000),
    "eagle3.chain_share": (0, 1),
    "medusa.num_heads": (1, 16),
    "medusa.draft_vocab_size": (1, 10_000_000),
    "draft.num_layers": (1, 1000),
    "draft.loss_vocab_size": (1, 10_000_000),
}
"""Least and most of each number."""

T = TypeVar("T")


def read_recipe(values: Mapping[str, Any], where: str, trainee: str = "eagle3") -> TrainConfig:
    """The recipe that a parsed YAML file holds; what it leaves out has the trainee's default. ValueError, led by
    `where`, for a key that is not known (with the nearest that is) and a value that cannot be."""
    return changed(DEFAULTS[trainee], values, where)


def changed(config: TrainConfig, values: Mapping[str, Any], where: str) -> TrainConfig:
    """`config` with what `values` (sections of keys) say; ValueError as `read_recipe`."""
    sections = {}
    known = {each.name: getattr(config, each.name) for each in fields(config)}
    for name, section in values.items():
        if name not in known:
            raise ValueError(f"{where}: {unknown_name('section', name, known)}")
        if not isinstance(section, Mapping):
            raise ValueError(f"{where}: {name} must be a section of keys and values, got {section!r}")
        sections[name] = _changed_section(known[name], name, section, where)
    return replace(config, **sections)


def _changed_section(section: T, name: str, values: Mapping[str, Any], where: str) -> T:
    kinds = get_type_hints(type(section))
    checked = {}
    for key, value in values.items():
        if key not in kinds:
            raise ValueError(f"{where}: {unknown_name(f'key of {name}', key, kinds)}")
        checked[key] = _checked(value, kinds[key], f"{where}: {name}.{key}", _RANGES.get(f"{name}.{key}"))
    return replace(section, **checked)  # type: ignore[type-var]


def _number(value: Any) -> Any:
    """Whole numbers count as fractions; and YAML takes 5e-4, which has no point, for a text."""
    if type(value) is int:
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _checked(value: Any, kind: Any, where: str, bounds: tuple[float, float] | None) -> Any:
    """`value` as a `kind`."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{where} is {value!r}, and must be one of {', '.join(map(str, get_args(kind)))}")
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(type(each) is int for each in value):
            raise ValueError(f"{where} is {value!r}, and must be a list of whole numbers")
        return tuple(value)
    if kind is float:
        value = _number(value)
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ValueError(f"{where} is {value!r}, and must be {names[kind]}")
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{where} is {value}, and must be between {bounds[0]:g} and {bounds[1]:g}")
    return value
