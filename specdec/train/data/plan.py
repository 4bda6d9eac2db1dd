"""Which samples there are to be: every prompt with its temperatures, in one fixed order.

The order is that of hashes, so that any beginning of it is a fair share of all sources, whatever order files have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdec.train.data.filters import Exclusion, digest
from specdec.train.data.prompts import Prompt, Source
from specdec.types import GREEDY_TEMPERATURE

UNIT = float(2**63)


@dataclass(frozen=True)
class Mix:
    """Temperatures and how often each is used, in any unit."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    weights: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if not self.temperatures or len(self.weights) != len(self.temperatures):
            raise ValueError(
                f"there must be a weight for each temperature; got {len(self.weights)} for {len(self.temperatures)}"
            )
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(f"a temperature stands twice among {', '.join(f'{t:g}' for t in self.temperatures)}")
        for name, values in (("temperature", self.temperatures), ("weight", self.weights)):
            for value in values:
                if not 0 <= value < float("inf"):
                    raise ValueError(f"a {name} must be at least 0; got {value:g}")
        if not sum(self.weights):
            raise ValueError("one weight at least must be above 0")

    def draw(self, uniform: float, *, greedy: bool = True) -> float:
        """The temperature that a number from 0 to 1 falls on; without `greedy` none that gives one answer only."""
        kept = [
            (temperature, weight)
            for temperature, weight in zip(self.temperatures, self.weights, strict=True)
            if greedy or temperature >= GREEDY_TEMPERATURE
        ]
        rest = uniform * sum(weight for _, weight in kept)
        for temperature, weight in kept:
            rest -= weight
            if rest < 0:
                return temperature
        return next(temperature for temperature, weight in reversed(kept) if weight)

    @property
    def can_repeat(self) -> bool:
        """Whether a prompt may have several different answers."""
        return any(
            weight and temperature >= GREEDY_TEMPERATURE
            for temperature, weight in zip(self.temperatures, self.weights, strict=True)
        )


@dataclass(frozen=True)
class Job:
    """One answer, or one conversation, that is to be made. Its random numbers come from `key` alone."""

    number: int
    prompt: Prompt
    sample: int
    temperature: float
    key: int

    def seed(self, turn: int) -> int:
        """Of a turn's answer; turn -1 is the prompt, where the model writes it."""
        return digest(self.key, turn)


@dataclass(frozen=True)
class Plan:
    """All jobs in their order, and the prompts that are left out, by reason."""

    jobs: tuple[Job, ...]
    left_out: dict[str, int]


def make_plan(
    sources: Sequence[Source], exclusion: Exclusion, mix: Mix, samples: int, seed: int, most: int | None = None
) -> Plan:
    """`most` bounds the prompts of a source: which are taken, hashes say. ValueError where nothing is left to do, or
    several samples of a prompt would all be the same."""
    if samples > 1 and not mix.can_repeat:
        raise ValueError("several samples of a prompt need a temperature above 0: greedy answers are all the same")
    prompts = [prompt for source in sources for prompt in source.prompts]
    unique = list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]
    kept = [prompt for prompt in unique if prompt.number is not None or not exclusion.covers(prompt.text)]
    if not kept:
        raise ValueError("no prompts are left: all of them are evaluation prompts; give others, or fewer to exclude")
    taken = kept if most is None else _first_of_each(kept, most, seed)
    jobs = sorted((job for prompt in taken for job in _jobs(prompt, mix, samples, seed)), key=lambda job: job.key)
    numbered = tuple(Job(i, job.prompt, job.sample, job.temperature, job.key) for i, job in enumerate(jobs))
    left_out = {
        "repeated prompt": len(prompts) - len(unique),
        "evaluation prompt": len(unique) - len(kept),
        "beyond its source's share": len(kept) - len(taken),
    }
    return Plan(numbered, left_out)


def _first_of_each(prompts: Iterable[Prompt], most: int, seed: int) -> list[Prompt]:
    """At most so many prompts of each source, those with the smallest hashes."""
    by_source: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: digest(seed, prompt.key)):
        by_source.setdefault(prompt.source, []).append(prompt)
    return [prompt for own in by_source.values() for prompt in own[:most]]


def _jobs(prompt: Prompt, mix: Mix, samples: int, seed: int) -> Iterable[Job]:
    """The samples of a prompt: one of them at most is greedy."""
    greedy = True
    for sample in range(samples):
        key = digest(seed, prompt.key, sample)
        temperature = mix.draw(digest(key, "temperature") / UNIT, greedy=greedy)
        greedy = greedy and temperature >= GREEDY_TEMPERATURE
        yield Job(0, prompt, sample, temperature, key)
