"""A small chat model that makes data in milliseconds, with everything around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import safe_open

from specdec.config import EngineConfig, SpeculativeConfig
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.proposers.base import Proposer
from specdec.step.model import Model
from specdec.tokenizer import Tokenizer
from specdec.train.data.conversation import Limits
from specdec.train.data.filters import Exclusion
from specdec.train.data.make import Bounds, Made, Maker, Watch
from specdec.train.data.plan import Mix, Plan, make_plan
from specdec.train.data.prompts import Message, Prompt, Source, self_written
from specdec.train.data.tap import Tap
from specdec.train.data.target import Target
from tests.heads import HIDDEN, tiny_target
from tests.toys import BYTE_VOCABULARY, EOS, ScriptedModel, byte_tokenizer, random_script

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LAYERS = (1, 3)


def chat_tokenizer() -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def letters(prefix: tuple[int, ...]) -> np.ndarray:
    """Words of a few letters, that depend on all that was said and end now and then."""
    logits = np.full(BYTE_VOCABULARY, -1e9)
    likely = [*range(97, 103), 32, EOS]
    logits[likely] = random_script(len(likely), order=len(prefix), spread=1.5)(prefix)
    logits[[32, EOS]] += [1.5, -1.0]
    return logits


def small_decoder() -> Model:
    return tiny_target(vocab_size=BYTE_VOCABULARY)


@cache
def scripted() -> Model:
    """One for all tests: what it said once it knows by heart."""
    return ScriptedModel(letters, BYTE_VOCABULARY)


def engine_around(
    model: Model,
    *,
    proposer: str = "none",
    k: int = 3,
    settings: Mapping[str, object] | None = None,
    proposers: Mapping[str, Proposer] | None = None,
    max_num_seqs: int = 8,
    kv_cache_tokens: int = 4096,
    max_num_batched_tokens: int = 64,
) -> Engine:
    config = EngineConfig(
        model="toy",
        block_size=4,
        kv_cache_tokens=kv_cache_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=False,
        verifier="coupled",
        speculative=() if proposer == "none" else (SpeculativeConfig(proposer, k, settings or {}),),
    )
    facts = TargetFacts(BYTE_VOCABULARY, 256, frozenset((EOS,)))
    return assemble(config, model, facts, chat_tokenizer(), proposers=proposers)


def target_around(model: Model, *, states: bool = False, **options: object) -> Target:
    tap = Tap(model, LAYERS) if states else None
    engine = engine_around(tap or model, **options)  # type: ignore[arg-type]
    return Target(engine, tap, "hash", BYTE_VOCABULARY, HIDDEN, LAYERS)


def sources(count: int = 20, written: int = 6) -> list[Source]:
    prompts = [Prompt(f"source {i % 2}", (Message("user", f"question {i} of many"),)) for i in range(count)]
    prompts.append(Prompt("talk", (Message("user", "how are you"),), ("and then", "why")))
    return [Source("file", tuple(prompts), "hash"), self_written(written)]


def plan(given: Sequence[Source] | None = None, *, samples: int = 1, seed: int = 0) -> Plan:
    return make_plan(sources() if given is None else given, Exclusion(()), Mix(), samples, seed)


def short_plan() -> Plan:
    """For a model that takes its time."""
    return plan(sources(7, 2))


def maker(directory: Path, target: Target, own: Plan | None = None, **changes: object) -> Maker:
    made = Maker(
        directory=directory,
        plan=own or plan(),
        target=target,
        limits=Limits(max_tokens=12, max_written=40, max_model_len=200),
        exclusion=Exclusion(()),
        shard_jobs=5,
        identity={"seed": 0},
        run={"command": "specdec train data"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def make(directory: Path, target: Target, own: Plan | None = None, **changes: object) -> Made:
    return maker(directory, target, own, **changes).make()


def after_steps(count: int) -> Watch:
    """Stops before step `count`."""
    asked = iter(range(count))
    return Watch(stopped=lambda: next(asked, None) is None)


NO_BOUNDS = Bounds()


def files(directory: Path) -> dict[str, object]:
    """The shards and states of a directory: of a shard each tensor's bytes and the metadata, whose order in the file
    is nobody's concern."""
    paths = [path for path in sorted(directory.iterdir()) if path.name != "data.json"]
    return {path.name: shard_content(path) if path.suffix == ".safetensors" else path.read_bytes() for path in paths}


def shard_content(path: Path) -> dict[str, object]:
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return {name: (each.dtype.str, each.tobytes()) for name, each in tensors.items()} | file.metadata()
