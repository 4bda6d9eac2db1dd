"""Tiny engines for the checks of losslessness: every proposer there is, around models of a few weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.eval.checks import Check, Report
from specdec.eval.driving import Watch
from specdec.eval.losslessness import verify_losslessness
from specdec.eval.verify_settings import Settings
from specdec.proposers.base import Drafter, DraftModel, Proposer
from specdec.step.model import Model
from tests.heads import tiny_eagle, tiny_medusa, tiny_target
from tests.toys import ScriptedModel, looping_script, random_script

VOCABULARY = 13
PROMPTS = [(1, 2, 3, 4, 5), (4,) * 6, (5, 6, 7, 8, 5, 6, 7), (12, 3)]


@dataclass
class Tiny:
    """Models around which any number of engines are built; `own` makes proposers by name."""

    target: Model
    drafts: Mapping[str, Drafter] = field(default_factory=dict)
    own: Mapping[str, Callable[[], Proposer]] = field(default_factory=dict)
    vocab_size: int = VOCABULARY
    max_model_len: int = 256

    def build(self, config: EngineConfig) -> Engine:
        methods = [entry.method for entry in config.speculative]
        return assemble(
            config,
            self.target,
            TargetFacts(self.vocab_size, self.max_model_len),
            draft_models={name: draft for name, draft in self.drafts.items() if name in methods},
            proposers={name: make() for name, make in self.own.items() if name in methods},
        )


def scripted(salt: int = 0) -> Tiny:
    """A target that loops, so that copying helps, and a draft model that agrees with it now and then."""
    target = looping_script(VOCABULARY, 5, salt=salt)
    noise = random_script(VOCABULARY, salt=salt + 100, spread=1.0)
    draft = ScriptedModel(lambda prefix: np.asarray(target(prefix)) + noise(prefix), VOCABULARY)
    return Tiny(ScriptedModel(target, VOCABULARY), {"draft": DraftModel(draft, VOCABULARY, 256)})


def tiny_for(method: str) -> Tiny:
    """Models for a proposer: heads need a real decoder, all others do with scripts."""
    if method not in ("eagle", "eagle3", "medusa"):
        return scripted()
    target = tiny_target()
    head = tiny_medusa() if method == "medusa" else tiny_eagle(target, method, reduced=method == "eagle3")
    return Tiny(target, {method: head})


def layered(count: int) -> Tiny:
    """A real decoder whose own first layers draft."""
    target = tiny_target()
    return Tiny(target, {"draft": DraftModel(target.first_layers(count), VOCABULARY, 256)})


SETTINGS: dict[str, dict[str, Any]] = {
    "draft": {"num_draft_layers": 1},
    "eagle": {"model": "given"},
    "eagle3": {"model": "given"},
    "medusa": {"model": "given"},
}
"""What methods that need settings are given; the models are there already."""


def config(method: str, k: int = 3, **options: Any) -> EngineConfig:
    defaults = {"block_size": 4, "kv_cache_tokens": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 256}
    speculative = (SpeculativeConfig(method, k, SETTINGS.get(method, {})),)
    return EngineConfig(model="tiny", speculative=speculative, **{**defaults, **options})


def verify(
    models: Tiny,
    own: EngineConfig,
    temperature: float = 0.0,
    *,
    prompts: Many[tuple[int, ...]] = PROMPTS,
    watch: Watch | None = None,
    **settings: int,
) -> Report:
    asked = Settings(temperature, **{"max_tokens": 24, "draws": 512, **settings})
    return verify_losslessness(models.build, models.build(own), prompts, asked, watch or Watch())


def named(report: Report, name: str) -> Check:
    (found,) = (check for check in report.checks if check.name == name)
    return found
