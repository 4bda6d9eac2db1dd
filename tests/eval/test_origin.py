"""Figures say where they come from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from specdec import __version__
from specdec.eval.origin import commit, describe, load_average

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, "-C", str(folder), *args], check=True, capture_output=True)


@needs_git
def test_a_commit_is_that_of_the_checkout_and_changes_show(tmp_path: Path) -> None:
    package = tmp_path / "specdec"
    package.mkdir()
    assert commit(package) is None
    (package / "a.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one", "--no-verify")
    clean = commit(package)
    assert clean is not None
    assert len(clean) == 40
    (package / "new.py").write_text("untracked")
    assert commit(package) == clean
    (package / "a.py").write_text("2")
    assert commit(package) == clean + "+"
    deeper = package / "site-packages" / "specdec"
    deeper.mkdir(parents=True)
    assert commit(deeper) is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit(Path(__file__).parent) is None


def test_the_rest_is_this_process_and_machine() -> None:
    found = describe("specdec eval", 0.25, 3)
    assert found.command == "specdec eval"
    assert found.versions.specdec == __version__
    assert found.versions.python == platform.python_version()
    assert found.versions.torch.startswith("2.")
    assert found.versions.transformers[0].isdigit()
    assert (found.machine.load_average, found.machine.threads) == (0.25, 3)
    assert found.machine.cpu
    assert 1 <= found.machine.cores <= (os.cpu_count() or 1)
    assert datetime.fromisoformat(found.date).utcoffset() is not None
    assert load_average() is None or load_average() >= 0  # type: ignore[operator]
