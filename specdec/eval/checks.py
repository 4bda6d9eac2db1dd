"""What a check of losslessness found, and the verdict that several add up to. Plain values, for people and programs."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.proposers.outside import one_line

PASSED = "passed"
FAILED = "failed"
EMPTY = "empty"
"""Nothing happened that the check could have judged."""


@dataclass(frozen=True)
class Check:
    """One check: `summary` in one line what was looked at, `faults` a line each, the most telling first. `notes` are no
    faults."""

    name: str
    status: str
    summary: str
    faults: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_needed: bool = True
    """Whether a run in which it is empty verifies nothing."""
    unseen: tuple[str, ...] = ()
    """What the check is about and never happened, so that nothing is known of it."""
    broke_down: bool = False
    """Whether it came to no end, so that nothing is known."""

    @staticmethod
    def of(
        name: str,
        faults: Sequence[str],
        num_judged: int,
        summary: str,
        figures: Mapping[str, Any],
        *,
        notes: Sequence[str] = (),
        unseen: Sequence[str] = (),
        is_needed: bool = False,
    ) -> Check:
        """Failed with any fault, empty without anything that could be judged."""
        status = FAILED if faults else PASSED if num_judged else EMPTY
        return Check(name, status, summary, tuple(faults), figures, tuple(notes), is_needed, tuple(unseen))

    @staticmethod
    def broken(name: str, error: Exception) -> Check:
        """Failed: the check itself, or what it ran, raised this."""
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
        fault = f"broke down: {one_line(error)}{where}"
        return Check(name, FAILED, "came to no end", (fault,), broke_down=True)


@dataclass(frozen=True)
class Report:
    """A whole run. `setup` says what was run on what, by name; `not_run` which checks do not apply, and why."""

    setup: Mapping[str, Any]
    promise: str
    """What is shown where all checks pass."""
    checks: tuple[Check, ...]
    not_run: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == FAILED)

    @property
    def empty(self) -> tuple[Check, ...]:
        """Checks that should have judged something and could not."""
        return tuple(check for check in self.checks if check.status == EMPTY and check.is_needed)

    @property
    def is_verified(self) -> bool:
        return bool(self.checks) and not (self.failed or self.empty or self.interrupted)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.failed:
            first = min(self.failed, key=lambda check: check.broke_down)
            return f"NOT {'verified' if first.broke_down else 'lossless'}: {first.name}: {first.faults[0]}"
        if self.interrupted:
            return f"interrupted: {len(self.checks)} checks were finished, and none failed"
        if self.empty:
            return f"NOT verified: {self.empty[0].name}: {self.empty[0].summary}"
        untold = [check.name for check in self.checks if check.status == EMPTY]
        never = dict.fromkeys(each for check in self.checks for each in check.unseen)
        line = f"verified: {self.promise}" + (f"; too little to judge: {', '.join(untold)}" if untold else "")
        return line + (f"; never happened: {', '.join(never)}" if never else "")
