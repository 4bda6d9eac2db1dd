"""Whether block verification keeps as much of each draft as it should: its kept lengths, against their own law.

How much of a chain x_1 .. x_k is kept depends on the whole of it (2403.10444). With c_0 = 1, c_i = min(c_{i-1} *
target_i[x_i] / draft_i[x_i], 1), A_i = sum(max(c_i * target_{i+1} - draft_{i+1}, 0)), h_i = A_i / (A_i + 1 - c_i) for
0 < i < k, h_0 = 1 and h_k = c_k, the length i is kept with probability h_i * prod_{j > i} (1 - h_j). This is computed
here from the laws alone, in no way that the verifier uses, and from the target's laws of rejected tokens too.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from specdec.eval.checks import Check
from specdec.eval.draws import Laws
from specdec.eval.driving import plural
from specdec.eval.reader import Text
from specdec.eval.witness import Chain

LEAST_DRAFTS = 40
"""Of these together the law of the kept lengths is tested."""


@dataclass
class Judged:
    """A verified chain, how much of it was kept, and its h of each length as far as the target's laws were seen."""

    chain: Chain
    num_kept: int
    carried: float = 1.0
    coins: list[float] = field(default_factory=lambda: [1.0])

    def see(self, length: int, target: torch.Tensor) -> None:
        """The target's law, float64 [V], after `length` drafted tokens. Shorter lengths come first."""
        assert length < len(self.chain.token_ids)
        assert len(self.coins) == max(length, 1), "laws come in the order of the lengths"
        if length:
            own = self.chain.later_probs[length - 1].to(target)
            missing, excess = 1.0 - self.carried, float((self.carried * target - own).clamp(min=0.0).sum())
            self.coins.append(excess / (excess + missing) if excess + missing > 0 else 1.0)
        draft_prob = self.chain.draft_probs[length]
        if draft_prob > 0:
            self.carried = min(1.0, self.carried * float(target[self.chain.token_ids[length]]) / draft_prob)
        if length + 1 == len(self.chain.token_ids):
            self.coins.append(self.carried)

    @property
    def law(self) -> list[float]:
        """The probability of keeping each length, from 0 to the whole draft."""
        chances, none_longer = [], 1.0
        for coin in reversed(self.coins):
            chances.append(coin * none_longer)
            none_longer *= 1.0 - coin
        return chances[::-1]


@dataclass(frozen=True)
class Count:
    """How often something happened that each draft had its own chance of."""

    what: str
    seen: int
    chances: tuple[float, ...]

    @property
    def expected(self) -> float:
        return sum(self.chances)

    @property
    def p_value(self) -> float:
        """Exact, two-sided: twice the probability of as few, or of as many."""
        law = number_law(self.chances)
        return min(1.0, 2 * min(float(law[: self.seen + 1].sum()), float(law[self.seen :].sum())))

    def __str__(self) -> str:
        drafts = plural(len(self.chances), "draft")
        return f"{self.what} tokens were kept of {self.seen:,} out of {drafts}, {self.expected:,.1f} expected"


def number_law(chances: Many[float]) -> npt.NDArray[np.float64]:
    """The law of how many of independent events happen."""
    if len(chances) < 2:
        return np.array([1.0 - chances[0], chances[0]]) if chances else np.array([1.0])
    half = len(chances) // 2
    return np.convolve(number_law(chances[:half]), number_law(chances[half:]))


@dataclass
class BlockAcceptance:
    """The chains of drawn tokens that block verification judged."""

    judged: list[Judged] = field(default_factory=list)

    def ask(self, laws: Laws, before: Text, chain: Chain, num_kept: int) -> None:
        """Ask for the target's laws after `before` and along the chain."""
        judged = Judged(chain, num_kept)
        self.judged.append(judged)
        for length in range(len(chain.token_ids)):
            laws.show((*before, *chain.token_ids[:length]), partial(judged.see, length))

    def counts(self) -> Iterator[Count]:
        """Drafts of which at least so much was kept, and of which just so much, where that says anything else."""
        laws = [each.law for each in self.judged]
        for length in range(1, max(map(len, laws), default=0)):
            own = [(each.num_kept, law) for each, law in zip(self.judged, laws, strict=True) if len(law) > length]
            chances = tuple(min(1.0, sum(law[length:])) for _, law in own)
            yield Count(f"{length} or more", sum(kept >= length for kept, _ in own), chances)
            chances = tuple(law[length] for _, law in own)
            if any(len(law) > length + 1 for _, law in own):
                yield Count(f"just {length}", sum(kept == length for kept, _ in own), chances)

    def check(self, level: float) -> Check:
        """The error level is shared among the counts."""
        enough = len(self.judged) >= LEAST_DRAFTS
        counts = list(self.counts()) if enough else []
        p_values = [min(1.0, count.p_value * len(counts)) for count in counts]
        p, expected = (
            min(p_values, default=1.0),
            sum(length * chance for each in self.judged for length, chance in enumerate(each.law)),
        )
        accepted, drafts = sum(each.num_kept for each in self.judged), plural(len(self.judged), "draft")
        faults = [
            f"{count} by the target's laws and the draft's, the whole draft judged together (p = {own:.1g})"
            for own, count in sorted(zip(p_values, counts, strict=True), key=lambda pair: pair[0])
            if own < level
        ]
        summary = f"{accepted:,} tokens of {drafts} kept, {expected:,.1f} expected"
        summary += f"; by length p = {p:.2g}" if enough else ": too few to test"
        lengths = [{"what": count.what, "seen": count.seen, "expected": count.expected} for count in counts]
        figures = {"p_value": p, "level": level, "num_accepted": accepted, "expected": expected, "lengths": lengths}
        return Check.of("acceptance", faults, int(enough), summary, figures)
