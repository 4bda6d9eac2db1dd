"""Starting: the engine's modules imported quickly, and how long everything took until it was ready."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.config import EngineConfig, calm_threads
from specdec.core.start_up import StartUp

if TYPE_CHECKING:
    from specdec.engine import Engine


def import_engine() -> None:
    """Import torch and the engine.

    Modules are no garbage, but torch's make Python look for some again and again while they are read, and at its end
    (0.2 and 0.5 s, a third of what importing takes). So it does not look meanwhile, and what is there by then is left
    alone for good. That is for a command to do, whose process it is, and not for a library.
    """
    calm_threads()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import specdec.engine.build  # noqa: F401
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def load_engine(config: EngineConfig, progress: Callable[[str], None] | None) -> Engine:
    """The real engine; imports torch."""
    import_engine()
    from specdec.engine.build import build_engine

    return build_engine(config, progress, StartUp({"imports": seconds_since_start()}))


def seconds_since_start() -> float:
    """Since this process began; on a system that does not say when that was, since its processor first worked for it,
    in seconds of the processor."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError, IndexError):
        return time.process_time()


def describe(start_up: StartUp) -> str:
    """One line: all of it, and its parts."""
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in start_up.seconds.items())
    return f"start-up {start_up.total:.2f} s: {parts}" if parts else "start-up not timed"
