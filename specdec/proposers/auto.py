"""`auto`: a portfolio of the other proposers. It drafts nothing itself; `specdec.core.control` chooses who does.

This module knows which proposers belong to it and what an engine must load for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec.config import AUTO, EngineConfig, SpeculativeConfig

DEFAULT_MEMBERS = ("ngram", "suffix")
"""Those that need no model and pay where a row costs something. Where a step of 5 rows takes 1.25 plain ones, recycling
with 4 nodes is 1.12 times as fast as plain decoding on the built-in tasks; beside these two, which make it 1.7 to 1.8
times, what it learns at each step costs more than it brings."""
_HEADS = ("eagle", "eagle3", "medusa")
TREE_DEPTH = 4
"""How deep the trees of members are that are not listed for themselves."""


@dataclass(frozen=True)
class AutoSettings:
    """Who may draft: names of proposers. None: `DEFAULT_MEMBERS`, and all that the configuration lists; and, with
    `built_in_head`, the head that is built in for the target, unless another with KV of its own is listed."""

    proposers: Sequence[str] | None = None
    built_in_head: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.built_in_head, bool):
            raise ValueError(f"built_in_head of 'auto' must be true or false; got {self.built_in_head!r}")
        names = self.proposers
        if names is None:
            return
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
        ):
            raise ValueError(f"proposers of 'auto' must be a list of names; got {names!r}")
        if not names:
            raise ValueError("proposers of 'auto' must name at least one; plain decoding is the proposer 'none'")
        if wrong := [name for name in names if name in (AUTO, "none")]:
            raise ValueError(f"proposers of 'auto' draft themselves; {wrong[0]!r} does not")
        if len(set(names)) < len(names):
            raise ValueError(f"proposers of 'auto' names one twice: {', '.join(names)}")

    def num_nodes(self, num_speculative_tokens: int) -> int:
        """The most that a default member drafts; those that the configuration lists count for themselves."""
        from specdec.proposers.registry import num_nodes

        names = DEFAULT_MEMBERS if self.proposers is None else self.proposers
        own = [num_nodes(_entry(name, num_speculative_tokens)) for name in names if name in DEFAULT_MEMBERS]
        return max(own, default=num_speculative_tokens)


def auto_entry(config: EngineConfig) -> SpeculativeConfig | None:
    """The configuration's own entry for `auto`, if it has one."""
    return next((entry for entry in config.speculative if entry.method == AUTO), None)


def member_names(config: EngineConfig) -> tuple[str, ...]:
    """The proposers that `auto` chooses from; none where it is not configured."""
    from specdec.proposers.registry import check_settings

    entry = auto_entry(config)
    if entry is None:
        return ()
    settings = check_settings(entry)
    assert isinstance(settings, AutoSettings)
    if settings.proposers is not None:
        return tuple(settings.proposers)
    listed = [each.method for each in config.speculative if each.method not in (AUTO, "none")]
    return tuple(dict.fromkeys((*DEFAULT_MEMBERS, *listed)))


def takes_built_in_head(config: EngineConfig) -> bool:
    """Whether `auto` is configured and may choose a head that is built in: it was not told whom to choose from, and no
    listed proposer is a head or keeps KV of its own."""
    from specdec.proposers.registry import check_settings, keeps_kv

    entry = auto_entry(config)
    if entry is None:
        return False
    settings = check_settings(entry)
    assert isinstance(settings, AutoSettings)
    if settings.proposers is not None or not settings.built_in_head:
        return False
    listed = [each.method for each in config.speculative if each.method != AUTO]
    return not any(method in _HEADS or keeps_kv(method) for method in listed)


def with_members(config: EngineConfig) -> EngineConfig:
    """The configuration with an entry for every proposer that `auto` chooses from."""
    entry = auto_entry(config)
    if entry is None:
        return config
    listed = {each.method for each in config.speculative}
    added = [_entry(name, entry.num_speculative_tokens) for name in member_names(config) if name not in listed]
    return replace(config, speculative=(*config.speculative, *added))


def _entry(name: str, length: int) -> SpeculativeConfig:
    entry = SpeculativeConfig(name, length)
    return replace(entry, num_speculative_tokens=min(length, TREE_DEPTH)) if is_tree(entry) else entry


def is_tree(entry: SpeculativeConfig) -> bool:
    """Whether a proposer's drafts are trees, which have one size."""
    from specdec.proposers.registry import check_settings, num_nodes

    choice = getattr(check_settings(entry), "tree_choice", None)
    return num_nodes(entry) > entry.num_speculative_tokens or (choice is not None and choice.tree != "chain")


def member_length(entry: SpeculativeConfig, auto_length: int) -> int:
    """The longest draft of a member. A chain that is looked up has any length; one that a model computes has the length
    that memory was planned for."""
    if "model" in entry.settings or "num_draft_layers" in entry.settings or is_tree(entry):
        return min(entry.num_speculative_tokens, auto_length)
    return max(entry.num_speculative_tokens, auto_length)
