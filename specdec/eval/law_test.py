"""The chi-square test of the first tokens' law, where verification promises plain decoding's distribution.

Every sample's tokens after the first, which is never drafted, are placed in the target's own law at that point
(`specdec.eval.places`). Plain decoding makes the places of two or three tokens in a row, accepted, recovered and bonus,
uniform and independent: a cube cut into equal cells, whatever the prompt, so that all samples count together. Beside it
stand the tests of each kind of token (`specdec.eval.kinds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch

from specdec.engine import Engine
from specdec.eval.checks import Check
from specdec.eval.chi_square import POWER, detectable_distance, draws_needed, p_value
from specdec.eval.draws import Drawn, Laws, Look, draw
from specdec.eval.driving import Watch, plural
from specdec.eval.kinds import Kinds
from specdec.eval.reader import BuildEngine, Text
from specdec.eval.verify_settings import LONGEST_DRAWN, TEST_LEVEL, Size
from specdec.types import SamplingParams

SMALL_DISTANCE = 0.05
POOLED = "cells pool tokens and prompts, and the tokens' own laws may be further apart"
CHAIN_BYTES = 512 * 2**20
"""Of draft laws that are held until the target's are read, for block verification: some 900 drafts of 4 tokens with a
vocabulary of 49,152."""
LENIENCE = {torch.float64: 1.0001, torch.float32: 1.01, torch.float16: 1.2, torch.bfloat16: 2.0, torch.int8: 2.0}
"""By dtype, the factor that rounding may put between two computations of a probability."""


@dataclass(frozen=True)
class LawTest:
    """Tests the verifier and the first proposer of `engine`; `build` makes the engine that decodes plainly.

    `temperature` is above 0. Samples go on from each of `contexts` in equal numbers, `num_draws` in all or a few more.
    """

    engine: Engine
    build: BuildEngine
    contexts: Many[Text]
    temperature: float
    num_draws: int
    seed: int
    watch: Watch

    def run(self) -> list[Check]:
        """Draw, read the target's laws, and test."""
        config = self.engine.config
        longest = config.speculative[0].num_speculative_tokens
        length = 1 + min(longest, LONGEST_DRAWN) + 1
        params = SamplingParams(temperature=self.temperature, max_tokens=length, ignore_eos=True, detokenize=False)
        verifier = "rejection" if config.verifier == "auto" else config.verifier
        drawn = draw(
            self.engine,
            self.contexts,
            params,
            self.num_draws,
            self.watch,
            self.seed,
            chain_bytes=CHAIN_BYTES if verifier == "block" else 0,
        )
        size = Size.of(len(drawn.draws), longest)
        laws = Laws(params, np.random.default_rng([1, self.seed % 2**64]))
        kinds = Kinds(LENIENCE[self.engine.runner.kv.layout.dtype])
        looks = []
        for sample in drawn.draws:
            if len(sample.token_ids) == length:  # a sample that failed is shorter, and told as a fault
                kinds.ask(laws, sample)
                tested = range(1, 1 + size.num_tested)
                looks.append([laws.ask(sample.before(i), sample.token_ids[i]) for i in tested])
        if looks:
            laws.read(self.build, config, self.watch)
        level = TEST_LEVEL
        return [*kinds.checks(verifier, level), _law_check(looks, drawn, kinds, size, level)]


def _law_check(looks: Many[Many[Look]], drawn: Drawn, kinds: Kinds, size: Size, level: float) -> Check:
    p = _joint_p_value(looks, size.num_sides) if looks else 1.0
    faults = list(drawn.faults)
    impossible = sum(look.prob == 0 for own in looks for look in own)
    if impossible:
        faults.append(f"{plural(impossible, 'token')} that the target gives probability 0")
    if p < level:
        faults.append(f"tokens 2 to {1 + size.num_tested} do not have plain decoding's law (chi-square, p = {p:.1g})")
    seen = detectable_distance(size.num_draws, size.num_cells, level)
    needed = draws_needed(SMALL_DISTANCE, size.num_cells, level)
    summary = (
        f"p = {p:.2g} for tokens 2 to {1 + size.num_tested} of {plural(size.num_draws, 'draw')} in {size.num_cells} "
        f"cells (fails below {level:g}; {POWER:.0%} of runs would show a distance of {seen:.2f} between the laws of "
        f"the cells, {SMALL_DISTANCE:g} needs {needed:,} draws; {POOLED}); of {plural(kinds.num_drafts, 'draft')} "
        f"{kinds.num_accepted:,} tokens accepted, {len(kinds.recovered):,} recovered, {len(kinds.bonus):,} bonus"
    )
    if not kinds.num_drafts and not faults:
        summary = f"no draft was verified in {plural(size.num_draws, 'draw')}: give prompts that are drafted for"
    figures = {
        "p_value": p,
        "level": level,
        "num_draws": size.num_draws,
        "num_tokens_tested": size.num_tested,
        "num_cells": size.num_cells,
        "detectable_total_variation": seen,
        "power": POWER,
        "draws_needed": {str(SMALL_DISTANCE): needed},
        "num_drafts": kinds.num_drafts,
        "num_accepted_tokens": kinds.num_accepted,
        "num_recovered_tokens": len(kinds.recovered),
        "num_bonus_tokens": len(kinds.bonus),
    }
    return Check.of("law", faults, kinds.num_drafts, summary, figures, is_needed=True)


def _joint_p_value(looks: Many[Many[Look]], num_sides: int) -> float:
    """Of the cells that the samples' places fall into, all of them equally likely."""
    cells = Counter(tuple(min(int(look.place * num_sides), num_sides - 1) for look in own) for own in looks)
    num_cells = num_sides ** len(looks[0])
    return p_value([*cells.values(), *[0] * (num_cells - len(cells))], [1 / num_cells] * num_cells)
