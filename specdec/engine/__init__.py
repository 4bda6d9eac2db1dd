"""The engine: requests in, one step at a time, outputs out."""

from specdec.engine.loop import Engine
from specdec.engine.requests import Prompt, TargetFacts

__all__ = ["Engine", "Prompt", "TargetFacts"]
