"""Recorded acceptance, and whether a later run has lost any of it: a lower bound only.

A run regresses where the upper end of its own bootstrap interval lies below the recorded value: even a lucky draw of
its prompts does not reach what was recorded. Being better is no finding, and speed is not compared, because it belongs
to a machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from specdec.eval.codec import decode, encode
from specdec.eval.results import Estimate, Group, Origin, Result, Run

FORMAT = 1
FIGURES = ("mean_acceptance_length", "acceptance_rate")


@dataclass(frozen=True)
class Conditions:
    """What must be the same for figures to compare."""

    model: str
    verifier: str
    max_tokens: int
    limit: int | None
    seed: int
    concurrency: int | None = None
    """None where it was not recorded, and so cannot be compared."""


@dataclass(frozen=True)
class Entry:
    """One run's acceptance on one task."""

    task: str
    proposer: str
    num_speculative_tokens: int
    temperature: float
    num_prompts: int
    mean_acceptance_length: Estimate
    acceptance_rate: Estimate

    @property
    def key(self) -> tuple[str, str, int, float]:
        """What an entry is compared by."""
        return self.task, self.proposer, self.num_speculative_tokens, self.temperature

    @property
    def label(self) -> str:
        """For a person."""
        return f"{self.proposer} k={self.num_speculative_tokens} T={self.temperature:g} on {self.task}"


@dataclass(frozen=True)
class Baseline:
    origin: Origin
    conditions: Conditions
    entries: tuple[Entry, ...]
    format: int = FORMAT


def conditions(result: Result) -> Conditions:
    """The conditions that a result was measured under."""
    settings = result.settings
    return Conditions(**{field.name: getattr(settings, field.name) for field in fields(Conditions)})


def record(result: Result) -> Baseline:
    """The acceptance of a whole result. ValueError if it was interrupted: some of the prompts compare with nothing."""
    if result.interrupted:
        raise ValueError("an interrupted evaluation is no baseline")
    return Baseline(result.origin, conditions(result), tuple(_entries(result)))


def _entries(result: Result) -> Iterable[Entry]:
    return (_entry(run, group) for run in result.runs for group in run.tasks)


def _entry(run: Run, group: Group) -> Entry:
    assert group.task is not None
    return Entry(
        group.task,
        run.proposer,
        run.num_speculative_tokens,
        run.temperature,
        group.num_prompts,
        group.mean_acceptance_length,
        group.acceptance_rate,
    )


def write(baseline: Baseline, path: Path) -> None:
    """As JSON that a person can read a change of."""
    path.write_text(json.dumps(encode(baseline), indent=1) + "\n", "utf-8")


def read(path: Path) -> Baseline:
    """What `write` wrote; ValueError, naming the file, for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT or "entries" not in value:
        raise ValueError(f"{path}: not a baseline that --record-baseline wrote")
    try:
        baseline = decode(Baseline, value, "baseline")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    assert isinstance(baseline, Baseline)
    return baseline


def check_comparable(
    baseline: Baseline, asked: Conditions, num_prompts: Mapping[str, int], variants: Iterable[tuple[str, int, float]]
) -> None:
    """ValueError if a run would not compare with the baseline: `num_prompts` of each task, and each `variants`'
    proposer, draft length and temperature."""
    for field in fields(Conditions):
        recorded, own = getattr(baseline.conditions, field.name), getattr(asked, field.name)
        is_unknown = field.name == "concurrency" and recorded is None
        if recorded != own and not is_unknown:
            raise ValueError(
                f"the baseline was recorded with {field.name} {recorded}, and this run has {own}; run it as recorded: "
                f"{baseline.origin.command}"
            )
    keys = {(task, *variant) for task in num_prompts for variant in variants}
    shared = [entry for entry in baseline.entries if entry.key in keys]
    if not shared:
        known = "; ".join(entry.label for entry in baseline.entries) or "nothing"
        raise ValueError(
            f"the baseline has none of the tasks, proposers, k and temperatures of this run; it has {known}"
        )
    for entry in shared:
        if entry.num_prompts != num_prompts[entry.task]:
            raise ValueError(
                f"the baseline was recorded with {entry.num_prompts} prompts of {entry.task}, and this run has "
                f"{num_prompts[entry.task]}; record it anew"
            )


def compare(baseline: Baseline, result: Result) -> tuple[str, ...]:
    """A line for each figure that has regressed. Entries that only one side has are passed over."""
    measured = {entry.key: entry for entry in _entries(result)}
    return tuple(
        line
        for recorded in baseline.entries
        if recorded.key in measured
        for name in FIGURES
        if (line := _regression(name, recorded, measured[recorded.key])) is not None
    )


def _regression(name: str, recorded: Entry, measured: Entry) -> str | None:
    was, now = getattr(recorded, name), getattr(measured, name)
    upper = now.value if now.high is None else now.high
    if upper >= was.value:
        return None
    return (
        f"{recorded.label}: {name.replace('_', ' ')} {now.value:.3f}, at most {upper:.3f} with its interval; "
        f"{was.value:.3f} was recorded"
    )
