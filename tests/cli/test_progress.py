"""Progress lines on a terminal and in a log."""

from __future__ import annotations

import io
import sys

import pytest

from specdec.cli.progress import progress_line

LINES = ["fetching m: 1 of 9 MB", "fetching m: 2 of 9 MB", "fetching m: unpacking"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_line() as tell:
        for line in LINES:
            tell(line)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert shown.endswith("specdec: fetching m: unpacking\n")
    assert shown.count("\n") == 1


def test_a_terminal_stays_clean_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_line():
        pass
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_log_is_told_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line() as tell:
        for line in LINES:
            tell(line)
    assert capsys.readouterr().err == "specdec: fetching m: 1 of 9 MB\nspecdec: fetching m: unpacking\n"
