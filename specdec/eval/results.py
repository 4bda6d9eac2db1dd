"""What an evaluation found, as frozen values that go to JSON and back without loss.

Counts and measured times are fields; every figure made from them is a property, so that none can contradict its parts.
`to_json` writes both, `from_json` reads the fields alone. `FORMULAS` says in one line how each figure is made, for
reports and help texts. Shares are between 0 and 1, times in seconds, positions of a draft start at 1, indices of output
tokens at 0. This module knows neither engine nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec.eval.codec import decode, encode

FORMAT = 1
"""The version of the JSON form; another one is refused."""

FORMULAS = {
    "acceptance_rate": "accepted draft tokens / drafted tokens, summed over prompts",
    "mean_acceptance_length": "1 + accepted draft tokens / verified drafts: tokens committed per verified draft; the "
    "recovered or bonus token counts; a step without a draft is no draft",
    "tokens_per_step": "output tokens after each prompt's first / the steps that committed them, with a draft or "
    "without",
    "mean_draft_length": "drafted tokens / verified drafts",
    "unconditional": "drafts whose token at position j was accepted / drafts that had a position j",
    "conditional": "drafts whose token at position j was accepted / drafts that had a position j and whose token at "
    "position j - 1 was accepted (every draft for j = 1)",
    "interval": "95 % percentile bootstrap over prompts: prompts are drawn with replacement, the figure is made anew "
    "from the drawn prompts' sums; every run draws the same prompts, and plain and proposer are drawn together",
    "by_output_position": "the same figures over the drafts that began at an output token of this range",
    "distinct_n": "different n-grams / all n-grams of an output's tokens; the mean over outputs of at least n tokens",
    "curve": "T(M) / T(1): T(M) is the median time of one forward pass of the target over M tokens of one sequence, "
    "logits at all M included, at the context stated; the passes for all M take turns",
    "draft_cost": "c = T_draft / T_target: mean time to make a draft / mean time of the target's forward pass in plain "
    "decoding, both per step at batch 1",
    "draft_cost_per_token": "c / mean length of a draft",
    "predicted_speedup": "tokens per step * (T(1) + O_plain) / (sum over m of share(m) * T(m + 1) + T_draft + O): "
    "share(m) is the share of steps that verified m draft tokens, O and O_plain the mean time of a step outside the "
    "model and the drafting; T(M) is the curve's, all else is of the timed steps at batch 1",
    "measured_speedup": "tokens/s with the proposer / tokens/s of plain decoding, same engine, same prompts, taken in "
    "turns prompt by prompt",
    "gap": "predicted speed-up / measured speed-up at batch 1 - 1",
    "tokens_per_second": "tokens / seconds, summed over groups of batch-size prompts that start together; the clock "
    "of a group runs from when each prompt has its first token to the end of the last answer, and counts the tokens "
    "of that time",
    "time_per_output_token": "(time of the last token - time of the first) / (tokens - 1), the mean over answers of at "
    "least 2 tokens",
    "share": "the oracle's steps / the steps of the acceptance pass, over the same prompts: the proposer's tokens per "
    "step as a share of the oracle's",
    "oracle_tokens_per_step": "output tokens after each prompt's first / the fewest steps that can commit them, where "
    "each step may take any member's draft, or the beginning of one; at temperature 0",
    "longest_tokens_per_step": "the same, where each step takes the draft of which most is right",
    "first_tokens_per_step": "the same, where each step takes the draft of the first member, in their order, that "
    "drafts anything there",
    "perfect_tokens_per_step": "the same, where each step takes a draft of the longest member's length (a member's own "
    "in its row) that is right",
    "sayable_tokens_per_step": "the same, where the draft is right up to the first token that the proposer cannot say",
    "fresh_tokens_per_step": "the same, where each token of the draft is guessed as the first one of a draft is",
    "alone_tokens_per_step": "output tokens after each prompt's first / the steps that commit them if this member "
    "alone drafts, by its drafts at every output token: where nothing learns it is what the acceptance pass measures",
    "measured_tokens_per_step": "output tokens after each prompt's first / the steps of the acceptance pass, over the "
    "prompts of the oracle",
    "mean_agreed": "leading draft tokens that are right, the mean over all output tokens after each prompt's first, "
    "those without a draft included",
    "agreed": "the share of those output tokens at which exactly so many leading draft tokens are right",
    "num_equal": "prompts whose output tokens are those of plain decoding with the same seed, all of them",
}
"""Figure -> how it is made. Every property and `Estimate` of this module has its formula here, under its name or the
name that its docstring gives."""


@dataclass(frozen=True)
class Estimate:
    """A figure over prompts and its paired bootstrap interval (`FORMULAS["interval"]`).

    The bounds are None where there are fewer than two prompts.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Position:
    """Position `position` (from 1; the depth, in a tree) of the drafts of a group."""

    position: int
    num_drafts: int
    """Verified drafts that had this position."""
    num_reached: int
    """Those of them whose token at the position before was accepted; for position 1 all of them."""
    num_accepted: int
    """Those whose token at this position was accepted."""

    @property
    def unconditional(self) -> float:
        """num_accepted / num_drafts."""
        return self.num_accepted / self.num_drafts if self.num_drafts else 0.0

    @property
    def conditional(self) -> float | None:
        """num_accepted / num_reached; None where no draft came so far."""
        return self.num_accepted / self.num_reached if self.num_reached else None


@dataclass(frozen=True)
class Group:
    """Acceptance over all prompts (`task` and `category` None), one task's (`category` None), or one category's."""

    task: str | None
    category: str | None
    num_prompts: int
    num_tokens: int
    """Output tokens, the first one of each prompt included."""
    num_steps: int
    """Steps that committed tokens after the first one of their prompt, with or without a draft."""
    num_drafts: int
    """Verified drafts; an empty one is none."""
    num_draft_tokens: int
    """Tokens of those drafts: nodes, in a tree. Where an answer ended inside a draft, the part before the end."""
    num_accepted_tokens: int
    acceptance_rate: Estimate
    """num_accepted_tokens / num_draft_tokens."""
    mean_acceptance_length: Estimate
    """1 + num_accepted_tokens / num_drafts."""
    positions: tuple[Position, ...]
    """From position 1 to the deepest that any draft had."""

    @property
    def tokens_per_step(self) -> float:
        """(num_tokens - num_prompts) / num_steps."""
        return (self.num_tokens - self.num_prompts) / self.num_steps if self.num_steps else 1.0

    @property
    def mean_draft_length(self) -> float:
        """num_draft_tokens / num_drafts."""
        return self.num_draft_tokens / self.num_drafts if self.num_drafts else 0.0


@dataclass(frozen=True)
class OutputRange:
    """Acceptance of the drafts that began at output tokens `start` <= index < `end` (`FORMULAS["by_output_position"]`).

    A draft begins at the index of its first token. Ranges without a draft are left out.
    """

    start: int
    end: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_rate(self) -> float:
        """num_accepted_tokens / num_draft_tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + num_accepted_tokens / num_drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0


@dataclass(frozen=True)
class Timing:
    """Decoding in groups of `batch_size` prompts that start together; prompts are repeated where there are too few."""

    batch_size: int
    num_answers: int
    num_tokens: int
    """Tokens that came while the clock ran: after every prompt of the group had its first."""
    seconds: float
    """Time on that clock (`FORMULAS["tokens_per_second"]`)."""
    time_per_output_token: float | None
    """Seconds (`FORMULAS["time_per_output_token"]`); None where no answer has two tokens."""

    @property
    def tokens_per_second(self) -> float:
        """num_tokens / seconds."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Speed:
    """Plain decoding and the proposer at one batch size, on the same prompts, taken in turns."""

    plain: Timing
    proposer: Timing
    speedup: Estimate
    """proposer.tokens_per_second / plain.tokens_per_second (`FORMULAS["measured_speedup"]`); the interval draws the
    groups of prompts."""


@dataclass(frozen=True)
class Prediction:
    """The speed-up at batch 1 that acceptance and the parts' times predict (`FORMULAS["predicted_speedup"]`).

    Times are means per step, in seconds.
    """

    tokens_per_step: float
    """Of the timed prompts, when they were timed."""
    draft_lengths: tuple[float, ...]
    """`draft_lengths[m]`: the share of their steps that verified m draft tokens (nodes, in a tree)."""
    forward_1: float
    """T(1), from the curve."""
    verify: float
    """Sum over m of draft_lengths[m] * T(m + 1), from the curve; between its points T is interpolated."""
    draft: float
    """T_draft: making a draft, the steps that made none included."""
    overhead: float
    """O: a step with the proposer, outside the target's forward pass and the drafting."""
    plain_overhead: float
    """O_plain: a plain step outside the target's forward pass."""
    plain_forward: float
    """T_target: the target's forward pass of a plain step. Measured in the timed steps, so the agreement with
    `forward_1` says how far the curve is to be trusted."""
    measured_speedup: float
    """At batch 1 on the same prompts."""

    @property
    def predicted_speedup(self) -> float:
        """tokens_per_step * (forward_1 + plain_overhead) / (verify + draft + overhead)."""
        return (
            self.tokens_per_step * (self.forward_1 + self.plain_overhead) / (self.verify + self.draft + self.overhead)
        )

    @property
    def gap(self) -> float:
        """predicted_speedup / measured_speedup - 1."""
        return self.predicted_speedup / self.measured_speedup - 1

    @property
    def draft_cost(self) -> float:
        """c = draft / plain_forward."""
        return self.draft / self.plain_forward

    @property
    def draft_cost_per_token(self) -> float:
        """c / mean length of a draft, steps without one left out of that mean."""
        share = sum(self.draft_lengths[1:])
        mean = sum(m * part for m, part in enumerate(self.draft_lengths)) / share if share else 0.0
        return self.draft_cost / mean if mean else 0.0


@dataclass(frozen=True)
class GroupSpeed:
    """A task's part of the prompts that were timed at batch 1, or a category's."""

    task: str
    category: str | None
    """None: the whole task."""
    speed: Speed
    prediction: Prediction | None
    """By the curve of all timed prompts."""


@dataclass(frozen=True)
class Divergence:
    """A prompt whose tokens are not those of plain decoding: the first that differs, None where a side had ended."""

    task: str
    prompt_id: str
    index: int
    """Of the output token."""
    plain: int | None
    proposer: int | None


@dataclass(frozen=True)
class Exactness:
    """What the verifier promises, and what this run saw of it."""

    verifier: str
    level: str
    """"bytes", "distribution" or "lossy"."""
    checked: bool
    """Whether outputs were compared with plain decoding's token by token: always at level "bytes", else never."""
    num_prompts: int = 0
    """Compared."""
    num_equal: int = 0
    """`FORMULAS["num_equal"]`."""
    divergences: tuple[Divergence, ...] = ()
    """The first few."""


@dataclass(frozen=True)
class Piece:
    """The text that one token completes, which may be empty, and where the token came from."""

    text: str
    source: str
    """The proposer that drafted it, "recovered" or "bonus"."""


@dataclass(frozen=True)
class Sample:
    """One answer, token by token."""

    task: str
    category: str
    prompt_id: str
    prompt: str
    """The prompt's text; of a conversation, the last turn's."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Run:
    """One proposer at one draft length and temperature, against plain decoding."""

    proposer: str
    num_speculative_tokens: int
    temperature: float
    groups: tuple[Group, ...]
    """All prompts; then each task's; then each category's, in the order of the prompts."""
    output_ranges: tuple[OutputRange, ...]
    distinct: tuple[float | None, ...]
    """`distinct[n - 1]`: distinct-n for n = 1, 2, 3 (`FORMULAS["distinct_n"]`); None where no output has n tokens."""
    exactness: Exactness
    samples: tuple[Sample, ...]
    speeds: tuple[Speed, ...] = ()
    """By batch size; empty where nothing was timed."""
    prediction: Prediction | None = None
    """None where batch 1 was not timed."""
    group_speeds: tuple[GroupSpeed, ...] = ()
    """Of batch 1: each task's, then each category's, in the order of the prompts."""
    complete: bool = True
    """False: interrupted before every prompt was answered and every batch size timed. What is here was measured."""
    alarm: str | None = None
    """What is wrong with the proposer itself: it never drafts, or hardly any first token is accepted."""

    @property
    def overall(self) -> Group:
        return self.groups[0]

    @property
    def tasks(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.task is not None and group.category is None)

    @property
    def categories(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.category is not None)


@dataclass(frozen=True)
class PlainRun:
    """Plain decoding of the same engine on the same prompts: the baseline of every run at its temperature."""

    temperature: float
    num_prompts: int
    num_tokens: int
    distinct: tuple[float | None, ...]
    """As in `Run`: a model that loops by itself flatters proposers that copy."""
    timings: tuple[Timing, ...] = ()
    """By batch size."""


@dataclass(frozen=True)
class Ceiling:
    """Steps with better drafts than a member's, of the same length, from the best on; never more than with its own."""

    num_tokens: int
    """Output tokens after each prompt's first."""
    perfect_steps: int
    """All of a draft is right."""
    sayable_steps: int
    """It is right up to the first token that the proposer's vocabulary lacks."""
    fresh_steps: int
    """Each token is guessed as the first one of a draft is, from committed tokens alone."""

    @property
    def perfect_tokens_per_step(self) -> float:
        """num_tokens / perfect_steps."""
        return self._per_step(self.perfect_steps)

    @property
    def sayable_tokens_per_step(self) -> float:
        """num_tokens / sayable_steps."""
        return self._per_step(self.sayable_steps)

    @property
    def fresh_tokens_per_step(self) -> float:
        """num_tokens / fresh_steps."""
        return self._per_step(self.fresh_steps)

    def _per_step(self, num_steps: int) -> float:
        return self.num_tokens / num_steps if num_steps else 1.0


@dataclass(frozen=True)
class Shadowed:
    """A member of an oracle: drafts at every output token after each prompt's first, none of which was verified."""

    proposer: str
    num_speculative_tokens: int
    num_steps: int
    """That the answers would take with this member's drafts alone."""
    measured_steps: int | None
    """Of the acceptance pass with this proposer and length; None where that is no run."""
    agreed: tuple[int, ...]
    """`agreed[a]`: output tokens at which exactly the first a tokens of the draft are right; without a draft 0 are."""
    positions: tuple[Position, ...]
    """Of all drafts, not only of those that its own steps would verify."""
    ceiling: Ceiling | None = None

    @property
    def alone_tokens_per_step(self) -> float:
        """sum(agreed) / num_steps."""
        return sum(self.agreed) / self.num_steps if self.num_steps else 1.0

    @property
    def measured_tokens_per_step(self) -> float | None:
        """sum(agreed) / measured_steps."""
        return sum(self.agreed) / self.measured_steps if self.measured_steps else None

    @property
    def mean_agreed(self) -> float:
        """Mean of a over `agreed`."""
        return sum(a * count for a, count in enumerate(self.agreed)) / max(1, sum(self.agreed))


@dataclass(frozen=True)
class Oracle:
    """What choosing among some proposers could have reached at temperature 0, over all prompts or one task's.

    Prompts of which any pass has other tokens than plain decoding are left out.
    """

    proposer: str | None
    """`auto`, whose members these are; None: those that were named, at one draft length."""
    num_speculative_tokens: int
    task: str | None
    members: tuple[Shadowed, ...]
    num_prompts: int
    num_tokens: int
    """Output tokens after each prompt's first."""
    num_steps: int
    """The fewest (`FORMULAS["oracle_tokens_per_step"]`)."""
    longest_steps: int
    first_steps: int
    perfect_steps: int
    measured_steps: int | None
    """Of `proposer` in the acceptance pass; None where there is none."""
    share: Estimate | None
    """num_steps / measured_steps."""

    @property
    def oracle_tokens_per_step(self) -> float:
        """num_tokens / num_steps."""
        return self._per_step(self.num_steps)

    @property
    def longest_tokens_per_step(self) -> float:
        """num_tokens / longest_steps."""
        return self._per_step(self.longest_steps)

    @property
    def first_tokens_per_step(self) -> float:
        """num_tokens / first_steps."""
        return self._per_step(self.first_steps)

    @property
    def perfect_tokens_per_step(self) -> float:
        """num_tokens / perfect_steps."""
        return self._per_step(self.perfect_steps)

    @property
    def measured_tokens_per_step(self) -> float | None:
        """num_tokens / measured_steps."""
        return None if self.measured_steps is None else self._per_step(self.measured_steps)

    def _per_step(self, num_steps: int) -> float:
        return self.num_tokens / num_steps if num_steps else 1.0


@dataclass(frozen=True)
class CurvePoint:
    """T(M) of `FORMULAS["curve"]`."""

    num_tokens: int
    """M."""
    seconds: float
    """T(M), the median."""
    ratio: float
    """T(M) / T(1)."""


@dataclass(frozen=True)
class Curve:
    """T(M) at batch 1."""

    context: int
    """Tokens of the sequence before the M."""
    repeats: int
    """Passes for each M."""
    points: tuple[CurvePoint, ...]
    """Ascending M, from 1."""


@dataclass(frozen=True)
class Versions:
    specdec: str
    torch: str
    transformers: str
    python: str


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    """Logical processors that this process may use."""
    torch_threads: int
    load_average: float | None
    """Of the last minute, when the evaluation began, before the model ran; None where the system has none."""
    threads: int | None = None
    """That the model ran on; None where that was not recorded."""


@dataclass(frozen=True)
class Settings:
    """What was asked for. Where one of these differs, figures do not compare."""

    model: str
    dtype: str
    """Of the loaded weights."""
    verifier: str
    tasks: tuple[str, ...]
    max_tokens: int
    limit: int | None
    """The most prompts of a task; None: all."""
    seed: int
    timing_prompts: int
    batch_sizes: tuple[int, ...]
    resamples: int
    """Of the bootstrap."""
    confidence: float
    """Of its intervals: 0.95."""
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    concurrency: int | None = None
    """Prompts that the acceptance pass answered at once; None where that was not recorded."""


@dataclass(frozen=True)
class Origin:
    """How the figures came about."""

    command: str
    commit: str | None
    """Of the source tree, with "+" appended where it had changes; None outside a checkout."""
    date: str
    """When the measuring ended: ISO 8601, UTC."""
    versions: Versions
    machine: Machine


@dataclass(frozen=True)
class Result:
    """A whole evaluation."""

    origin: Origin
    settings: Settings
    plain: tuple[PlainRun, ...]
    """By temperature."""
    runs: tuple[Run, ...]
    """By temperature, proposer and draft length."""
    curve: Curve | None
    """None where nothing was timed."""
    oracles: tuple[Oracle, ...] = ()
    """Those of `auto` and of the proposers that were named, each over all prompts, then by task; empty unless asked."""
    skipped: tuple[str, ...] = ()
    """Prompts (task/id) that were left out: with `max_tokens` after them they are too long for the model."""
    failures: tuple[str, ...] = ()
    """Answers that ended with an error, one line each; they are in no figure."""
    regressions: tuple[str, ...] = ()
    """Against a recorded baseline, one line each."""
    interrupted: bool = False
    """Runs that are not `complete` have only what was measured by then; those that had not begun are missing."""
    format: int = FORMAT


def to_json(result: Result) -> dict[str, Any]:
    """Plain values for `json.dumps`: every field and every property that is a figure."""
    encoded = encode(result)
    assert isinstance(encoded, dict)
    return encoded


def from_json(value: object) -> Result:
    """The result that `to_json` wrote; ValueError says where the value is not one."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"not an evaluation's result of format {FORMAT}; got {found!r}")
    result = decode(Result, value, "result")
    assert isinstance(result, Result)
    return result
