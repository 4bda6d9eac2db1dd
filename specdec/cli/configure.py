"""From a YAML file and the options of the command line to one `EngineConfig`, before any model work.

The command line wins over the file, the file over the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec.cli.parsing import parse_json, parse_yaml
from specdec.cli.prompts import Prompt
from specdec.config import AUTO, EngineConfig, SpeculativeConfig, default_draft_length, unknown_name
from specdec.proposers.outside import is_outside
from specdec.proposers.registry import METHODS, check_settings
from specdec.types import SpeculationParams

DEFAULT_PROPOSER = AUTO
DEFAULT_MEASURED = "ngram"
"""What is measured and verified where nothing is named: a proposer that always drafts when it can."""
DRAFT = "draft"
HEADS = ("eagle", "eagle3", "medusa")
TREES = (DRAFT, *HEADS, "recycling")


@dataclass(frozen=True)
class ProposerOption:
    """An option that stands for a key of one proposer's settings."""

    flag: str
    proposers: tuple[str, ...]
    """Those that have the key."""


PROPOSER_OPTIONS = {
    "model": ProposerOption("--draft-model", (DRAFT, *HEADS)),
    "num_draft_layers": ProposerOption("--draft-layers", (DRAFT,)),
    "tree": ProposerOption("--tree", TREES),
    "tree_nodes": ProposerOption("--tree-nodes", TREES),
    "tree_width": ProposerOption("--tree-width", TREES),
}
"""By key of the settings."""


def stated_settings(options: Any) -> dict[str, Any]:
    """What a command's options, which have a field for each of `PROPOSER_OPTIONS`, say of a proposer's settings."""
    values = {
        key: getattr(options, option.flag.removeprefix("--").replace("-", "_"))
        for key, option in PROPOSER_OPTIONS.items()
    }
    return {key: value for key, value in values.items() if value is not None}


DEFAULT_NUM_SPECULATIVE_TOKENS = SpeculativeConfig().num_speculative_tokens


def read_config(path: Path) -> EngineConfig:
    """The engine configuration that a YAML file holds, its proposers checked. ValueError names the file."""
    try:
        options = parse_yaml(path.read_bytes())
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise ValueError("expected config keys and their values, such as `model: smollm2-135m`")
        config = EngineConfig.from_mapping(options)
        _check_proposers(config.speculative)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return config


def _check_proposers(listed: Sequence[SpeculativeConfig]) -> None:
    for entry in listed:
        check_settings(entry)


def build_config(
    *,
    file: Path | None,
    settings: Mapping[str, Any],
    proposer: str | None,
    num_speculative_tokens: int | None,
    proposer_settings: Mapping[str, Any],
    speculative_json: str | None,
    default_proposer: str = DEFAULT_PROPOSER,
) -> EngineConfig:
    """The engine's configuration. `settings` are `EngineConfig` fields that the command line gives; None: not given.

    `speculative_json` replaces the file's proposers; `proposer_settings` are keys of `PROPOSER_OPTIONS`, for the
    proposer that is named; a model or a number of layers names the proposer draft by itself, and with `auto` adds it to
    those that it chooses from. Without a file and without any of these the proposer is `default_proposer`.
    """
    config = EngineConfig() if file is None else read_config(file)
    is_auto = proposer == AUTO and bool(proposer_settings.keys() & {"model", "num_draft_layers"})
    if is_auto:
        proposer = None
    if proposer_settings:
        proposer = _owner(proposer_settings, proposer, speculative_json, config)
    if speculative_json is not None:
        named = _read_speculative_json(speculative_json, proposer, num_speculative_tokens, settings.get("verifier"))
        config = replace(config, speculative=named.speculative)
        if named.verifier != "auto":
            config = replace(config, verifier=named.verifier)
    elif file is None and proposer is None:
        proposer = default_proposer
    speculative = _choose(config.speculative, proposer, num_speculative_tokens, proposer_settings)
    if is_auto:
        speculative = _choose(speculative, AUTO, num_speculative_tokens, {})
    if num_speculative_tokens is None:
        room = settings.get("max_num_batched_tokens", config.max_num_batched_tokens) - 1
        speculative = tuple(_fitted(entry, room) for entry in speculative)
    _check_proposers(speculative)
    return replace(config, **settings, speculative=speculative)


def _owner(
    settings: Mapping[str, Any], proposer: str | None, speculative_json: str | None, config: EngineConfig
) -> str:
    """The proposer that the command line's settings are for; ValueError if it has no such key."""
    flags = [PROPOSER_OPTIONS[key].flag for key in settings]
    if speculative_json is not None:
        raise ValueError(f"{flags[0]} contradicts --speculative-config; set {next(iter(settings))} there")
    if "model" in settings and "num_draft_layers" in settings:
        raise ValueError("--draft-model and --draft-layers contradict each other; give one of them")
    named = proposer
    if proposer is None:
        listed = [entry.method for entry in config.speculative]
        proposer = listed[0] if listed and takes(listed[0], settings) else DRAFT
        if not settings.keys() & {"model", "num_draft_layers"} and proposer not in listed:
            owners = PROPOSER_OPTIONS[next(iter(settings))].proposers
            raise ValueError(f"{flags[0]} is of the proposers {', '.join(owners)}; name one of them with --proposer")
    for key in settings:
        option = PROPOSER_OPTIONS[key]
        if proposer not in option.proposers:
            whose = f"the proposer{'s' * (len(option.proposers) > 1)} {', '.join(option.proposers)}"
            raise ValueError(f"{option.flag} contradicts --proposer {named}: it is of {whose}")
    return proposer


def takes(proposer: str, settings: Iterable[str]) -> bool:
    """Whether a proposer has every one of these keys."""
    return all(proposer in PROPOSER_OPTIONS[key].proposers for key in settings)


def _read_speculative_json(text: str, proposer: str | None, k: int | None, verifier: str | None) -> EngineConfig:
    """A configuration of these proposers only. What the other options contradict is refused, not overruled."""
    try:
        given = parse_json(text)
    except ValueError as error:
        raise ValueError(f"--speculative-config: {error}") from None
    entries = given if isinstance(given, list) else [given]
    config = EngineConfig.from_mapping({"speculative_config": entries})
    methods = [entry.method for entry in config.speculative]
    if not methods:
        raise ValueError("--speculative-config names no proposer; use --proposer none for plain decoding")
    if proposer is not None and proposer not in methods:
        raise ValueError(f"--proposer {proposer} contradicts --speculative-config, which has {', '.join(methods)}")
    for entry in entries:
        stated = entry.get("num_speculative_tokens", k)
        if k is not None and stated != k:
            raise ValueError(f"--num-speculative-tokens {k} contradicts --speculative-config, which says {stated}")
    if verifier is not None and config.verifier not in ("auto", verifier):
        raise ValueError(f"--verifier {verifier} contradicts --speculative-config, which says {config.verifier}")
    return config


def _choose(
    listed: tuple[SpeculativeConfig, ...], proposer: str | None, k: int | None, own_settings: Mapping[str, Any]
) -> tuple[SpeculativeConfig, ...]:
    """Put `proposer` first, the default's place, adding it if it is missing; give every proposer `k` tokens."""
    if proposer is not None:
        same = [entry for entry in listed if entry.method == proposer]
        others = [entry for entry in listed if entry.method != proposer]
        listed = (*(_with_settings(entry, own_settings) for entry in same or [_default_entry(proposer)]), *others)
    if k is not None:
        listed = tuple(replace(entry, num_speculative_tokens=k) for entry in listed)
    return () if all(entry.method == "none" for entry in listed) else listed


def _fitted(entry: SpeculativeConfig, room: int) -> SpeculativeConfig:
    """`auto` drafts at most so much, and no more than fits a step."""
    if entry.method != AUTO or room < 1:
        return entry
    return replace(entry, num_speculative_tokens=min(entry.num_speculative_tokens, room))


def _default_entry(proposer: str) -> SpeculativeConfig:
    return SpeculativeConfig(proposer, default_draft_length(proposer))


def _with_settings(entry: SpeculativeConfig, own_settings: Mapping[str, Any]) -> SpeculativeConfig:
    """A proposer with the settings that the command line gives, which take the place of the file's; who drafts is one
    setting of two keys."""
    replaced = {"model", "num_draft_layers"} if own_settings.keys() & {"model", "num_draft_layers"} else set()
    kept = {key: value for key, value in entry.settings.items() if key not in replaced}
    settings = {**kept, **own_settings}
    sizes = [key for key in ("tree_nodes", "tree_width") if key in own_settings]
    if sizes and settings.get("tree", "chain" if entry.method in (DRAFT, *HEADS) else None) == "chain":
        raise ValueError(
            f"{PROPOSER_OPTIONS[sizes[0]].flag} is of a tree, and {entry.method} drafts a chain; add --tree"
        )
    return replace(entry, settings=settings)


def speculation_of(prompt: Prompt, config: EngineConfig, default_k: int) -> SpeculationParams:
    """The proposer and draft length of a prompt: its own, else the engine's; `default_k` for proposers not listed.

    A prompt may name a proposer that is built in or that the configuration lists: what code is loaded is not for
    a file of prompts to say.
    """
    proposer = prompt.proposer
    if proposer is None:
        proposer = config.speculative[0].method if config.speculative else "none"
    listed = [entry.method for entry in config.speculative]
    if proposer not in METHODS and proposer not in listed:
        if is_outside(proposer):
            raise ValueError(
                f"the proposer {proposer!r} is from outside and not loaded; name it in --proposer, "
                "--speculative-config or --config too"
            )
        raise ValueError(
            f"{unknown_name('proposer', proposer, [*METHODS, *listed])}; a class of your own is named "
            "'package.module:Class', in --proposer, --speculative-config or --config too"
        )
    k = prompt.num_speculative_tokens
    if k is None:
        k = next((s.num_speculative_tokens for s in config.speculative if s.method == proposer), default_k)
    return SpeculationParams(proposer, 0 if proposer == "none" else k)


def cover(config: EngineConfig, asked: SpeculationParams) -> EngineConfig:
    """`config` with the proposer that a prompt asks for, allowed a draft of the length that it asks for."""
    method, k = asked.proposer, asked.num_speculative_tokens
    assert method is not None
    assert k is not None
    listed = {entry.method: entry for entry in config.speculative} or {"none": SpeculativeConfig()}
    known = listed.get(method, SpeculativeConfig(method, k))
    if method not in listed:
        check_settings(known)
    listed[method] = replace(known, num_speculative_tokens=max(k, known.num_speculative_tokens))
    return replace(config, speculative=() if set(listed) == {"none"} else tuple(listed.values()))
