"""What the controller did and why, in numbers: for `--explain-speculation` and for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specdec.core.control.plan import Plan
from specdec.core.control.types import PLAIN


@dataclass(frozen=True)
class ProposerAccount:
    """One proposer: how often it was asked, what its drafts took, and what was accepted of them by position."""

    name: str
    num_asked: int
    num_probes: int
    draft_seconds: float
    """All together."""
    next_draft_seconds: float
    """Expected of a draft of one token."""
    tried: tuple[int, ...]
    kept: tuple[int, ...]
    """By position: drafts in which it was reached, and in which it was accepted."""
    is_off: bool
    """It has lost more than it may, and is only looked at now and then."""

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """Of each position, given that the one before was accepted."""
        return tuple(kept / tried for kept, tried in zip(self.kept, self.tried, strict=True))


@dataclass(frozen=True)
class Explanation:
    """Counts since the engine began. Seconds and tokens are those of steps that computed drafts and decodes alone."""

    chosen: Mapping[tuple[str, int], int]
    """By proposer and length, how often; ("none", 0) is plain decoding."""
    proposers: tuple[ProposerAccount, ...]
    step_seconds: Mapping[int, float]
    """T(M) as it is known now."""
    num_tokens: int
    seconds: float
    expected_tokens: float
    expected_seconds: float
    plain_seconds: float
    """What these steps would have taken without drafts, by T(M)."""
    num_steps: int
    num_sequence_steps: int
    """Sequences summed over the steps: the tokens that plain decoding would have committed in as many."""
    hint_seconds: float
    follow_seconds: float
    probe_loss_seconds: float
    """What probes lost, and plain steps that were taken to see what they take."""

    @property
    def num_choices(self) -> int:
        return sum(self.chosen.values())

    @property
    def plain_share(self) -> float:
        """Of all choices, those for plain decoding."""
        return self.chosen.get((PLAIN, 0), 0) / self.num_choices if self.num_choices else 0.0

    @property
    def measured_goodput(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def expected_goodput(self) -> float:
        """Tokens a second, as the choices promised."""
        return self.expected_tokens / self.expected_seconds if self.expected_seconds else 0.0

    @property
    def plain_goodput(self) -> float:
        """Tokens a second of plain decoding, by T(M)."""
        return self.num_sequence_steps / self.plain_seconds if self.plain_seconds else 0.0


@dataclass
class Tallies:
    """The counts as they grow."""

    members: list[str]
    chosen: Counter[tuple[str, int]] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    num_asked: Counter[str] = field(default_factory=Counter)
    draft_seconds: dict[str, float] = field(default_factory=dict)
    tried: dict[str, list[int]] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    num_tokens: int = 0
    num_sequence_steps: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    plain_seconds: float = 0.0
    hint_seconds: float = 0.0
    follow_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.draft_seconds = dict.fromkeys(self.members, 0.0)
        self.tried = {name: [] for name in self.members}
        self.kept = {name: [] for name in self.members}

    def chose(self, proposer: str, length: int, is_probe: bool) -> None:
        self.chosen[proposer, length] += 1
        if is_probe:
            self.probes[proposer] += 1

    def verified(self, proposer: str, depth: int, accepted: int) -> None:
        tried, kept = self.tried[proposer], self.kept[proposer]
        reached = min(accepted + 1, depth)
        tried.extend([0] * (reached - len(tried)))
        kept.extend([0] * (reached - len(kept)))
        for position in range(reached):
            tried[position] += 1
            kept[position] += position < accepted

    def stepped(self, num_tokens: int, seconds: float, plain_seconds: float, plan: Plan) -> None:
        """A step committed so many tokens; what was promised counts only beside what came of it."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.seconds += seconds
        self.plain_seconds += plain_seconds
        self.num_sequence_steps += len(plan.options)
        self.expected_tokens += plan.tokens
        self.expected_seconds += plan.seconds

    def explanation(
        self, points: Mapping[int, float], costs: Mapping[str, float], probe_loss: float, off: Iterable[str]
    ) -> Explanation:
        switched_off = set(off)
        proposers = tuple(
            ProposerAccount(
                name,
                self.num_asked[name],
                self.probes[name],
                self.draft_seconds[name],
                costs[name],
                tuple(self.tried[name]),
                tuple(self.kept[name]),
                name in switched_off,
            )
            for name in self.members
        )
        return Explanation(
            chosen=dict(self.chosen),
            proposers=proposers,
            step_seconds=dict(points),
            num_tokens=self.num_tokens,
            seconds=self.seconds,
            expected_tokens=self.expected_tokens,
            expected_seconds=self.expected_seconds,
            plain_seconds=self.plain_seconds,
            num_steps=self.num_steps,
            hint_seconds=self.hint_seconds,
            follow_seconds=self.follow_seconds,
            probe_loss_seconds=probe_loss,
            num_sequence_steps=self.num_sequence_steps,
        )
