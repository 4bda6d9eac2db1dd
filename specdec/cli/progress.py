"""Progress of slow preparations on standard error: one line that changes on a terminal, few lines in a log."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specdec.cli.errors import say, tell

LOG_SECONDS = 10.0
"""A log is told the same thing with new numbers at most this often."""

BAR_WIDTH = 20

ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that takes lines for a person, each standing in for the one before; the last one stays."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Log().tell
        return
    shown = False

    def replace(line: str) -> None:
        nonlocal shown
        shown = True
        # A line that is wrapped could not be erased.
        tell(f"{ERASE_LINE}specdec: {line}"[: shutil.get_terminal_size().columns - 1 + len(ERASE_LINE)])

    try:
        yield replace
    finally:
        if shown:
            tell("\n")


def bar(fraction: float) -> str:
    """How full `fraction` (0 to 1) is, as a picture on a terminal and a number in a log."""
    percent = f"{100 * fraction:3.0f} %"
    if sys.stderr is None or not sys.stderr.isatty():
        return percent
    full = int(BAR_WIDTH * fraction)
    return f"[{'#' * full}{'-' * (BAR_WIDTH - full)}] {percent}"


class _Log:
    """Passes on what is new, and new numbers only now and then."""

    def __init__(self) -> None:
        self._kind = ""
        self._told = 0.0

    def tell(self, line: str) -> None:
        kind = re.sub(r"\d+", "", line)
        if kind == self._kind and time.monotonic() - self._told < LOG_SECONDS:
            return
        self._kind, self._told = kind, time.monotonic()
        say(line)
