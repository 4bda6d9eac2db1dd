"""Where figures come from: the command, the commit, the versions and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from specdec import __version__
from specdec.eval.results import Machine, Origin, Versions

PACKAGE = Path(__file__).parents[1]


def load_average() -> float | None:
    """Of the last minute; None where the system has none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def describe(command: str, load: float | None, num_threads: int) -> Origin:
    """The origin of what this process measures now; `load` was the load average before it did anything,
    `num_threads` are those of the model."""
    import torch

    return Origin(
        command=command,
        commit=commit(PACKAGE),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=Versions(
            specdec=__version__,
            torch=str(torch.__version__),
            transformers=metadata.version("transformers"),
            python=platform.python_version(),
        ),
        machine=Machine(_cpu(), _cores(), torch.get_num_threads(), load, num_threads),
    )


def commit(package: Path) -> str | None:
    """The commit of the checkout that `package` is the top folder's child of, "+" if tracked files have changes."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) != package.parent:
        return None
    head = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return None if head is None else head + ("+" if changed else "")


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    """The processor's name, as Linux tells it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
