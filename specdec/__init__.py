"""specdec: an inference engine for language models in which every step verifies a draft.

The public names are imported when first used; `import specdec` itself is quick and loads nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.config import EngineConfig, SpeculativeConfig
    from specdec.engine import Engine
    from specdec.llm import LLM
    from specdec.types import CompletionOutput, RequestOutput, SamplingParams, SpeculationParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "Engine",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "SpeculationParams",
    "SpeculativeConfig",
    "__version__",
]

_HOMES = {
    "LLM": "specdec.llm",
    "CompletionOutput": "specdec.types",
    "Engine": "specdec.engine",
    "EngineConfig": "specdec.config",
    "RequestOutput": "specdec.types",
    "SamplingParams": "specdec.types",
    "SpeculationParams": "specdec.types",
    "SpeculativeConfig": "specdec.config",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'specdec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
