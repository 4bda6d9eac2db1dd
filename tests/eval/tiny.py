"""Tiny engines for the checks of losslessness, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.eval.checks import Check, Report
from specdec.eval.driving import Watch
from specdec.eval.losslessness import Settings, verify_losslessness
from specdec.proposers.base import DraftModel, Proposer
from tests.toys import ScriptedModel, looping_script, random_script

VOCABULARY = 13
PROMPTS = [(1, 2, 3, 4, 5), (4,) * 6, (5, 6, 7, 8, 5, 6, 7), (12, 3)]


@dataclass
class Tiny:
    """Scripted models around which any number of engines are built."""

    target: ScriptedModel
    draft: ScriptedModel | None = None
    own: Mapping[str, Callable[[], Proposer]] = field(default_factory=dict)

    def build(self, config: EngineConfig) -> Engine:
        facts = TargetFacts(self.target.vocab_size, self.target.max_model_len)
        methods = [entry.method for entry in config.speculative]
        drafts = {}
        if self.draft is not None and "draft" in methods:
            drafts["draft"] = DraftModel(self.draft, self.draft.vocab_size, self.draft.max_model_len)
        given = {name: make() for name, make in self.own.items() if name in methods}
        return assemble(config, self.target, facts, draft_models=drafts, proposers=given)


def tiny(salt: int = 0) -> Tiny:
    """A target that loops, so that copying helps, and a draft model that agrees with it now and then."""
    target = looping_script(VOCABULARY, 5, salt=salt)
    noise = random_script(VOCABULARY, salt=salt + 100, spread=1.0)
    draft = ScriptedModel(lambda prefix: target(prefix) + noise(prefix), VOCABULARY)
    return Tiny(ScriptedModel(target, VOCABULARY), draft)


def config(proposer: str, k: int = 3, **options: object) -> EngineConfig:
    settings = {"num_draft_layers": 1} if proposer == "draft" else {}
    defaults = {"block_size": 4, "kv_cache_tokens": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 256}
    speculative = (SpeculativeConfig(proposer, k, settings),)
    return EngineConfig(model="scripted", speculative=speculative, **{**defaults, **options})  # type: ignore[arg-type]


def verify(
    models: Tiny,
    own: EngineConfig,
    temperature: float = 0.0,
    *,
    prompts: Many[tuple[int, ...]] = PROMPTS,
    **options: int,
) -> Report:
    settings = Settings(temperature, **{"max_tokens": 24, "draws": 512, **options})
    return verify_losslessness(models.build, models.build(own), prompts, settings, Watch())


def named(report: Report, name: str) -> Check:
    (found,) = (check for check in report.checks if check.name == name)
    return found
