"""The controller of an engine's `auto`: its members as they were loaded, and the machine as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.core.control.controller import Controller
from specdec.core.control.step_cost import StepCost
from specdec.core.control.types import Member
from specdec.core.scheduler import Scheduler
from specdec.engine.calibration import draft_times, step_seconds
from specdec.proposers.auto import auto_entry, is_tree, member_length, member_names
from specdec.proposers.base import Proposer
from specdec.proposers.registry import METHODS, check_settings, num_nodes
from specdec.runner import Runner


def build_controller(
    config: EngineConfig, runner: Runner, scheduler: Scheduler, clock: Callable[[], float]
) -> Controller | None:
    """The controller of `auto`, if it is configured. The engine must be idle: its machine is measured now."""
    entry = auto_entry(config)
    if entry is None:
        return None
    members = portfolio_members(config, entry.num_speculative_tokens, runner.proposers)
    controller = Controller(members, StepCost(step_seconds(runner, scheduler, clock)))
    for member in members:
        times = draft_times(runner, scheduler, member, clock)
        if times is not None:
            controller.calibrated(member.name, times)
    return controller


def portfolio_members(config: EngineConfig, auto_length: int, loaded: Mapping[str, Proposer]) -> list[Member]:
    """Whom `auto` chooses from where its drafts may have `auto_length` tokens. ValueError if two of them have KV."""
    entries = {entry.method: entry for entry in config.speculative}
    found = []
    for name in member_names(config):
        entry, proposer = entries[name], loaded[name]
        member = Member(name, auto_length, auto_length, has_kv=bool(proposer.kv_caches), learns=proposer.wants.logits)
        found.append(_as_set(member, entry, auto_length) if _has_settings(name) else member)
    with_kv = [member.name for member in found if member.has_kv]
    if len(with_kv) > 1:
        raise ValueError(
            f"the proposer 'auto' takes at most one proposer with KV of its own, and has {' and '.join(with_kv)}; name "
            "those that it may choose from as its proposers, as in {'method': 'auto', 'proposers': ['ngram', "
            f"'{with_kv[0]}']}}"
        )
    return found


def _as_set(member: Member, entry: SpeculativeConfig, auto_length: int) -> Member:
    """What a member's own entry says of its drafts."""
    settings = check_settings(entry)
    return replace(
        member,
        length=member_length(entry, auto_length),
        nodes=num_nodes(entry),
        is_tree=is_tree(entry),
        ends_early=getattr(settings, "confidence_threshold", 0.0) > 0,
        expected=tuple(getattr(settings, "expected_acceptance", ())),
    )


def _has_settings(name: str) -> bool:
    """Whether a member is of the table, or from outside by its name; an instance that was given has no settings."""
    return name in METHODS or ":" in name
