"""What is asked of a run of the losslessness checks, and whether it can be answered. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.config import EXACTNESS, EngineConfig, check_verifier
from specdec.types import SamplingParams

LEAST_EXPECTED = 5
"""Samples of every cell of a chi-square test, for its approximation to hold."""
ERROR_LEVEL = 1e-3
"""The probability that a lossless engine fails, over all tests of a run."""
NUM_TESTS = 5
"""Among which the error level is shared: the law, and four of the kinds of token."""
TEST_LEVEL = ERROR_LEVEL / NUM_TESTS / 2
"""Of each: half its share, for with few samples in a cell the true level of a chi-square test is up to 1.7 times the
nominal one (simulated at 5 a cell)."""
DEEPEST = 2
"""The longest draft whose tokens, and one more, are tested together."""
LONGEST_DRAWN = 6
"""The longest draft that samples leave room for: acceptance is tested at every position of it."""
LONGEST_SAMPLE = 1 + LONGEST_DRAWN + 1
"""Tokens of a sample at most: one that is never drafted, and those of a draft and one more."""
MOST_SIDES = 4
"""Cells along each side of the cube of places."""


@dataclass(frozen=True)
class Settings:
    """What is asked of a run. `max_tokens` is the length of compared answers, `draws` the samples of the law test."""

    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 32
    draws: int = 512

    @property
    def params(self) -> SamplingParams:
        """How compared answers are sampled; ValueError for what is out of range."""
        return SamplingParams(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens)


@dataclass(frozen=True)
class Size:
    """How much is drawn: samples, the tokens of each that are tested, and cells along each of them."""

    num_draws: int
    num_tested: int
    num_sides: int

    @property
    def num_cells(self) -> int:
        return int(self.num_sides**self.num_tested)

    @staticmethod
    def of(num_draws: int, longest_draft: int) -> Size:
        """As many cells as expect enough samples; ValueError if there are too few samples for any test."""
        tested = min(DEEPEST, longest_draft) + 1
        sides = int((num_draws / LEAST_EXPECTED) ** (1 / tested) + 1e-9)
        if sides < 2:
            raise ValueError(
                f"the number of draws must be at least {LEAST_EXPECTED * 2**tested}, so that every cell of the "
                f"chi-square test expects {LEAST_EXPECTED}; got {num_draws}"
            )
        return Size(num_draws, tested, min(MOST_SIDES, sides))


def check_settings(config: EngineConfig, settings: Settings) -> None:
    """ValueError in one line if there is nothing to verify, or no way to."""
    verifier = resolve(config.verifier, settings.params)
    if not config.speculative or config.speculative[0].method == "none":
        raise ValueError(
            "without a proposer there is nothing to verify: plain decoding is what drafts are held against"
        )
    if not config.speculative[0].num_speculative_tokens:
        raise ValueError("with num_speculative_tokens 0 nothing is drafted; give at least 1")
    check_verifier(config.verifier, settings.temperature)
    if EXACTNESS[verifier] == "lossy":
        raise ValueError(
            f"the verifier {verifier!r} is lossy and promises nothing that could be verified; use 'rejection', 'block' "
            "or 'coupled'"
        )
    if EXACTNESS[verifier] == "distribution":
        Size.of(settings.draws, config.speculative[0].num_speculative_tokens)


def resolve(verifier: str, params: SamplingParams) -> str:
    """The verifier that is at work: `auto` spelled out, and greedy wherever the temperature is 0."""
    if params.is_greedy:
        return "greedy"
    return "rejection" if verifier == "auto" else verifier
