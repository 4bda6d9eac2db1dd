"""Who takes part in a comparison: how each one's worker is started and what it opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdec.config import EngineConfig, unknown_name

FOLDER = Path(__file__).parent
WORKER = FOLDER / "worker.py"

MODULES = {
    "transformers": "run_transformers",
    "llama-cpp": "run_llama_cpp",
    "vllm": "run_vllm",
    "openvino-genai": "run_openvino",
    "onnxruntime-genai": "run_onnxruntime",
}
"""What a peer is called -> the module around its library."""


@dataclass(frozen=True)
class Contestant:
    """An engine at one setting."""

    label: str
    argv: tuple[str, ...]
    model: str
    options: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside this process's own."""


def peer(label: str, venv: Path, model: str, options: Mapping[str, str]) -> Contestant:
    """`label` is a peer's name, or the path of a module like those of this folder, and perhaps ":" and more. `venv` is
    its virtual environment, or a Python. ValueError for what there is not."""
    name = label.partition(":")[0]
    if name not in MODULES and not name.endswith(".py"):
        raise ValueError(unknown_name("peer", name, MODULES))
    module = MODULES.get(name) or str(Path(name).resolve())
    if not (name in MODULES or Path(module).is_file()):
        raise ValueError(f"there is no file {name} for a peer of one's own")
    python = venv if venv.is_file() else venv / "bin" / "python"
    # Isolated: what is importable here must not be so there.
    return Contestant(label, (str(python), "-I", str(WORKER), module), model, options)


def own(label: str, config: EngineConfig) -> Contestant:
    """specdec itself, in this Python."""
    from specdec.eval.peers.run_specdec import config_text

    root = str(FOLDER.parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return Contestant(
        label,
        (sys.executable, "-P", str(WORKER), "run_specdec"),
        config.model,
        {"config": config_text(config)},
        {"PYTHONPATH": path},
    )
