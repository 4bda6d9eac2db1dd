"""The worker process around a peer library: `python -I worker.py run_transformers`, or the path of a module like it.

Requests come as lines of JSON on standard input, and each is answered by one on what was standard output:

    {"op": "load", "model": PATH, "num_threads": N, "max_length": N, "max_batch": B, "options": {NAME: TEXT}}
        -> {"library": TEXT, "precision": TEXT}
    {"op": "generate", "prompts": [[ID, ...], ...], "max_tokens": N}
        -> {"token_ids": [[ID, ...], ...], "first_token_s": T or null, "first_tokens": N, "total_s": T}
    {"op": "stats"}
        -> {"peak_memory_bytes": N or null}

or by {"error": TEXT}. The end of the input ends the process. What libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import IO, Any

FOLDER = Path(__file__).parent
PACKAGE = "specdec_peers"
"""What this folder is called here: the name of the real package would need the real package."""


def main() -> None:
    replies = own_output()
    namespace()
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(line)) + "\n")
        replies.flush()


def own_output() -> IO[str]:
    """Standard output for the replies alone: whatever else is written to it goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def namespace() -> None:
    """Make this folder importable as `PACKAGE`, and nothing beside it."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)


def adapter(name: str) -> ModuleType:
    """The module of that name in this folder, or the one that is a file of one's own."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{PACKAGE}.{name}")
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None:
        raise ValueError(f"{name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """Answers requests. A fault of the library is an answer too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._peer: Any = None
        self._operations: dict[str, Callable[..., dict[str, Any]]] = {
            "load": self.load,
            "generate": self.generate,
            "stats": self.stats,
        }

    def answer(self, line: str) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return self._operations[request.pop("op")](**request)
        except (Exception, SystemExit) as error:
            return {"error": " ".join(f"{type(error).__name__}: {error}".split())}

    def load(self, **request: Any) -> dict[str, Any]:
        generation = importlib.import_module(f"{PACKAGE}.generation")
        self._peer = adapter(self._name).load(generation.Load(**request))
        return {"library": self._peer.library, "precision": self._peer.precision}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        return asdict(self._peer.generate(prompts, max_tokens))

    def stats(self) -> dict[str, Any]:
        return {"peak_memory_bytes": peak_memory(os.getpid())}


def peak_memory(pid: int, proc: Path = Path("/proc")) -> int | None:
    """VmHWM of a process and all below it, in bytes; None where the system does not tell."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
        children = [path.read_text().split() for path in (proc / str(pid) / "task").glob("*/children")]
    except OSError:
        return None
    own = next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    if own is None:
        return None
    return own + sum(peak_memory(int(child), proc) or 0 for ids in children for child in ids)


if __name__ == "__main__":
    main()
