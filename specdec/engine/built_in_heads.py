"""Heads that come with the package, in the place of those that a configuration leaves to be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine.draft_heads import KINDS
from specdec.models.built_in import HeadShelf
from specdec.proposers.auto import auto_entry, takes_built_in_head, with_members


@dataclass(frozen=True)
class ChosenHeads:
    """The built-in heads of one target that a configuration asks for."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    """By proposer."""
    for_auto: SpeculativeConfig | None = None
    """What `auto` may choose from as well."""

    def complete(self, config: EngineConfig) -> EngineConfig:
        """The configuration with an entry for all that `auto` chooses from, and every head named by its path.

        It may have fewer proposers than the one that the heads were chosen for.
        """
        if self.for_auto is not None and takes_built_in_head(config):
            config = replace(config, speculative=(*config.speculative, self.for_auto))
        entries = with_members(config).speculative
        return replace(config, speculative=tuple(self._with_path(entry) for entry in entries))

    def _with_path(self, entry: SpeculativeConfig) -> SpeculativeConfig:
        if entry.method not in self.paths:
            return entry
        return replace(entry, settings={**entry.settings, "model": str(self.paths[entry.method])})


def choose_heads(config: EngineConfig, shelf: HeadShelf) -> ChosenHeads:
    """Whatever the configuration leaves out, or calls by a built-in head's name.

    ValueError, in one line, where a proposer names no head and none is built in for the model, or it is not installed.
    """
    paths = {}
    for entry in with_members(config).speculative:
        if entry.method not in KINDS:
            continue
        name = entry.settings.get("model")
        if name is None:
            paths[entry.method] = shelf.find(shelf.for_target(config.model, KINDS[entry.method], entry.method))
        elif (path := shelf.named(name)) is not None:
            paths[entry.method] = path
    return ChosenHeads(paths, _for_auto(config, shelf) if takes_built_in_head(config) else None)


def _for_auto(config: EngineConfig, shelf: HeadShelf) -> SpeculativeConfig | None:
    auto = auto_entry(config)
    assert auto is not None
    if not any(shelf.has(head) for head in shelf.heads):
        return None
    for head in shelf.of_target(config.model):
        if shelf.has(head):
            length = min(auto.num_speculative_tokens, head.draft_length)
            settings = {
                "model": str(shelf.path(head)),
                "confidence_threshold": head.confidence_threshold,
                "expected_acceptance": head.acceptance,
            }
            return SpeculativeConfig(head.kind, length, settings)
    return None
