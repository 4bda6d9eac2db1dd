"""Is an engine lossless on these prompts? Which checks can tell depends on the temperature and the verifier.

Greedy and coupled verification promise plain decoding's tokens, which are compared; rejection and block verification
its distribution, which is tested; and whatever is promised, cached state must be what it counts as.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from specdec.config import EXACTNESS
from specdec.engine import Engine
from specdec.eval.chances import Chances
from specdec.eval.checks import Check, Report
from specdec.eval.driving import Stopped, Watch, plural
from specdec.eval.equality import Equality
from specdec.eval.kv_check import KVCheck, answer_length
from specdec.eval.law_test import LawTest
from specdec.eval.reader import BuildEngine, Text
from specdec.eval.verify_settings import ERROR_LEVEL, LONGEST_DRAWN, LONGEST_SAMPLE, Settings, check_settings, resolve
from specdec.types import SamplingParams

LONGEST_CONTEXT = 256
"""Prompts are cut to so many tokens where their length does not matter: for the law of the first tokens, and the KV."""
MOST_KV_CONTEXTS = 8
LEAST_MODEL_LEN = 16


class _Part(Protocol):
    """Some checks that run together."""

    @property
    def name(self) -> str: ...

    def run(self) -> None: ...

    def checks(self) -> list[Check]:
        """What was found, also when the run was cut short."""
        ...


def verify_losslessness(
    build: BuildEngine, engine: Engine, prompts: Many[Text], settings: Settings, watch: Watch
) -> Report:
    """Run every check that applies to `engine` and its first proposer. `build` makes other engines of the same models.

    The proposer `auto` chooses by chance from now on (`specdec.eval.chances`), here and in all engines of the checks.

    ValueError in one line for what cannot be verified.
    """
    config = engine.config
    check_settings(config, settings)
    if engine.max_model_len < LEAST_MODEL_LEN:
        raise ValueError(
            f"sequences of at most {engine.max_model_len} tokens are too short to check; {LEAST_MODEL_LEN} are needed"
        )
    params = settings.params
    verifier = resolve(config.verifier, params)
    chances = Chances(settings.seed)
    build, engine = chances.builder(build), chances.take_over(engine)
    parts: list[_Part]
    if EXACTNESS[verifier] == "bytes":
        parts = [_Bytes(build, engine, prompts, params, watch, f"{verifier} equality")]
    else:
        parts = [_Law(build, engine, prompts, settings, watch), _KV(build, engine, prompts, params, watch)]
    checks, interrupted = _run(parts)
    setup = {
        "model": config.model,
        "proposer": config.speculative[0].method,
        "num_speculative_tokens": config.speculative[0].num_speculative_tokens,
        "temperature": settings.temperature,
        "verifier": verifier,
        "seed": settings.seed,
        "num_prompts": len(prompts),
    }
    return Report(
        setup,
        _promise(verifier, prompts),
        (*checks, *chances.checks()),
        _not_run(verifier, config.speculative[0].num_speculative_tokens),
        interrupted,
    )


def contexts(prompts: Many[Text], longest: int) -> list[Text]:
    """Texts to go on from: each prompt, and before it the prompt with its first half once more, where a proposer that
    copies has something to copy. Cut to `longest` tokens, and to `LONGEST_CONTEXT`."""
    longest = min(LONGEST_CONTEXT, longest)
    found: list[Text] = []
    for prompt in prompts:
        own = prompt[:longest]
        found += [(*own, *own[: max(1, len(own) // 2)])[:longest], own]
    return list(dict.fromkeys(found))


def _run(parts: Many[_Part]) -> tuple[list[Check], bool]:
    """All checks, and whether somebody stopped them; of an unfinished part only faults count."""
    checks: list[Check] = []
    for part in parts:
        try:
            part.run()
            checks += part.checks()
        except Stopped:
            return checks + [check for check in part.checks() if check.faults], True
        except Exception as error:  # of the engine under test, which may be wrong in any way
            checks += [*_faulty(part), Check.broken(part.name, error)]
    return checks, False


def _faulty(part: _Part) -> list[Check]:
    """What a part that broke down had found wrong by then."""
    try:
        return [check for check in part.checks() if check.faults]
    except Exception:
        return []


def _promise(verifier: str, prompts: Many[Text]) -> str:
    on = f"on {plural(len(prompts), 'prompt')}, and cached state is what it counts as"
    if EXACTNESS[verifier] == "bytes":
        return f"{verifier} verification gives plain decoding's tokens {on}"
    return f"{verifier} verification keeps plain decoding's distribution, at an error level of {ERROR_LEVEL:g}, {on}"


def _not_run(verifier: str, longest_draft: int) -> tuple[str, ...]:
    """Which checks do not apply."""
    if verifier == "greedy":
        return ("the law of sampled tokens: at temperature 0 nothing is sampled",)
    if EXACTNESS[verifier] == "bytes":
        return (
            "the law of sampled tokens: it follows from the same tokens",
            "greedy equality: the temperature is not 0",
        )
    notes = [f"equality with plain decoding: {verifier} verification promises the distribution, not the tokens"]
    if longest_draft > LONGEST_DRAWN:
        notes.append(f"acceptance beyond position {LONGEST_DRAWN} of a draft: samples are too short for it")
    notes.append("independence of samples, and of later siblings in a tree of drawn children: only laws are tested")
    return tuple(notes)


@dataclass
class _KV:
    """The KV check on some contexts."""

    name: ClassVar[str] = "cached state"

    build: BuildEngine
    engine: Engine
    prompts: Many[Text]
    params: SamplingParams
    watch: Watch

    def __post_init__(self) -> None:
        config, longest = self.engine.config, self.engine.max_model_len
        length = answer_length(config, longest)
        every = 2 if len(self.prompts) >= 4 else 1
        self.contexts = contexts(self.prompts, longest - length - 2)[::every][:MOST_KV_CONTEXTS]
        params = replace(self.params, max_tokens=length)
        self.check = KVCheck(self.build, config, self.contexts, params, self.watch)

    def run(self) -> None:
        self.check.run()

    def checks(self) -> list[Check]:
        return self.check.checks()


class _Bytes:
    """Equality, the KV check, and the equality of the KV check's answers."""

    name = "equality"

    def __init__(
        self, build: BuildEngine, engine: Engine, prompts: Many[Text], params: SamplingParams, watch: Watch, name: str
    ) -> None:
        self._name = name
        self._prompts = prompts
        self._params = params
        self._equality = Equality(engine, watch)
        self._kv = _KV(build, engine, prompts, params, watch)

    def run(self) -> None:
        self._equality.run(self._prompts, self._params)
        self._kv.run()
        self._equality.run_preempted(self._kv.contexts, self._kv.check.params, self._kv.check.answers)

    def checks(self) -> list[Check]:
        return [self._equality.check(self._name), *self._kv.checks()]


@dataclass
class _Law:
    """The law test."""

    name: ClassVar[str] = "law test"

    build: BuildEngine
    engine: Engine
    prompts: Many[Text]
    settings: Settings
    watch: Watch

    def __post_init__(self) -> None:
        self._checks: list[Check] = []

    def run(self) -> None:
        listed = contexts(self.prompts, self.engine.max_model_len - LONGEST_SAMPLE)
        settings = self.settings
        test = LawTest(self.engine, self.build, listed, settings.temperature, settings.draws, settings.seed, self.watch)
        self._checks = test.run()

    def checks(self) -> list[Check]:
        return self._checks
