"""What commands import, and that they tell how long starting took."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from specdec.cli.start import describe, seconds_since_start
from specdec.core.start_up import StartUp

MODULES = """
import json, sys
from specdec.cli import main
try:
    main({args!r})
except SystemExit as done:
    print(json.dumps([done.code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_of(*args: str) -> set[str]:
    """What a command has imported when it ends."""
    program = MODULES.format(args=list(args))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert not code, done.stderr
    return set(modules)


@pytest.mark.parametrize(
    "args", [("--help",), ("--version",), ("models",), ("generate", "--help"), ("verify", "--help")]
)
def test_what_needs_no_engine_imports_none(args: tuple[str, ...]) -> None:
    assert not modules_of(*args) & {"torch", "transformers", "tokenizers", "gguf", "safetensors", "jinja2"}


@pytest.mark.model
def test_a_gguf_model_needs_no_library_of_other_formats() -> None:
    modules = modules_of("generate", "hi", "--max-tokens=1", "--quiet")
    assert "torch" in modules
    assert not modules & {"transformers", "gguf", "huggingface_hub"}


def test_the_engine_is_imported_without_a_look_for_garbage_and_then_as_ever() -> None:
    program = (
        "import gc; seen = []; gc.callbacks.append(lambda phase, info: seen.append(phase)); "
        "from specdec.cli.start import import_engine; seen.clear(); import_engine(); "
        "print(len(seen), gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system must say when a process began")
def test_what_the_process_slept_before_counts() -> None:
    program = "import time; time.sleep(0.3); from specdec.cli.start import *; print(seconds_since_start())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.3
    assert seconds_since_start() > 0.0


def test_a_line_tells_the_parts() -> None:
    assert describe(StartUp({"imports": 0.8, "weights": 0.256})) == "start-up 1.06 s: imports 0.80, weights 0.26"
