"""How many threads a CPU backend takes."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> int:
    """Cores that this process may use, each counted once however many threads it runs."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
    siblings = Path("/sys/devices/system/cpu")
    try:
        cores = {(siblings / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in usable}
    except OSError:
        return len(usable)
    return len(cores)
