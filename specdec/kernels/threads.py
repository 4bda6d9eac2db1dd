"""How many threads a CPU backend takes, and who else may not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """torch computes on the calling thread alone in a `with` block. Its threads spin for milliseconds after each of its
    ops, on the very cores that a backend's own threads need next.

    The setting is the process's: a thread that first uses torch while another is in such a block has it for good. Where
    it is 1 already, whoever made it so puts it back.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
