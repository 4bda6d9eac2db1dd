"""The values that cross layer borders: parameters and requests down, drafts, verdicts and outputs up.

Everything here is plain Python. It refuses to know torch, so that a program may build requests and read outputs
in a process that never loads a model. Names, fields and defaults follow vLLM (see DESIGN.md, "What a user sees").
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this choose the most likely token (vLLM's `_SAMPLING_EPS`)."""

MAX_SPECULATIVE_TOKENS = 32
"""The longest draft of one step: its depth, where it is a tree."""

MAX_DRAFT_NODES = 64
"""The most nodes of a draft tree: an ancestor mask has a bit for each."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    span = f"at least {low}" if high is None else f"between {low} and {high}"
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
    _check(ok, f"{name} must be an integer, {span}; got {value!r}")


def _check_number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    ok = False
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        ok = (low < value if open_low else low <= value) and value <= high
    border = "above" if open_low else "at least"
    span = f"{border} {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
    _check(ok, f"{name} must be a number {span}; got {value!r}")


def _check_ids(name: str, value: object) -> None:
    ok = False
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        ok = all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in value)
    _check(ok, f"{name} must be a list of token ids; got {value!r}")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen; vLLM's names and defaults.

    `temperature` below 1e-5 is greedy. `top_k` of 0 or -1 is off. `seed` None takes one from the engine's own seed
    and the request's number. `logprobs` counts the alternatives kept per generated token (0: the token itself only),
    `prompt_logprobs` the same for the prompt. `logit_bias` maps token id to an addend in [-100, 100].
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_int("n", self.n, 1, 1024)
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_number("repetition_penalty", self.repetition_penalty, 1e-6, 100)
        _check_number("temperature", self.temperature, 0, math.inf)
        _check_number("top_p", self.top_p, 0, 1, open_low=True)
        _check_int("top_k", self.top_k, -1)
        _check_number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens; got min_tokens={self.min_tokens}, max_tokens={self.max_tokens}"
            )
        if self.n > 1 and self.is_greedy:
            raise ValueError(f"n must be 1 when temperature is 0 (greedy samples are all the same); got n={self.n}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            value = getattr(self, name)
            _check(isinstance(value, bool), f"{name} must be true or false; got {value!r}")
        self._check_lists()

    def _check_lists(self) -> None:
        object.__setattr__(self, "stop", self._strings("stop", self.stop))
        object.__setattr__(self, "bad_words", self._strings("bad_words", self.bad_words))
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if value is not None:
                _check_ids(name, value)
                object.__setattr__(self, name, tuple(value))
        _check(
            self.allowed_token_ids != (),
            "allowed_token_ids must not be empty; leave it out to allow every token",
        )
        _check(self.detokenize or not self.stop, "stop strings need detokenize=True; use stop_token_ids instead")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", self._bias(self.logit_bias))

    @staticmethod
    def _strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
        if value is None:
            return ()
        strings = (value,) if isinstance(value, str) else value
        ok = isinstance(strings, Sequence) and all(isinstance(s, str) and s for s in strings)
        _check(ok, f"{name} must be a non-empty string or a list of them; got {value!r}")
        whole = not any("\ud800" <= char <= "\udfff" for text in strings for char in text)
        _check(whole, f"{name} must be valid Unicode, without halves of surrogate pairs; got {value!r}")
        return tuple(strings)

    @staticmethod
    def _bias(value: Mapping[int, float]) -> dict[int, float]:
        _check(isinstance(value, Mapping), f"logit_bias must map token ids to numbers; got {value!r}")
        bias = {}
        for key, addend in value.items():
            token = int(key) if isinstance(key, str) and key.isdecimal() else key  # JSON has no other keys
            _check_int("a token id of logit_bias", token, 0)
            _check_number(f"logit_bias[{token}]", addend, -100, 100)
            bias[token] = float(addend)
        return bias

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, always as a tuple."""
        return tuple(self.stop or ())

    @property
    def bad_word_strings(self) -> tuple[str, ...]:
        """`bad_words`, always as a tuple."""
        return tuple(self.bad_words or ())


@dataclass(frozen=True)
class SpeculationParams:
    """Speculation settings of one request; None means the engine's own.

    `proposer` is one of the methods loaded in the engine ("none" switches speculation off).
    """

    proposer: str | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.proposer is not None and not isinstance(self.proposer, str):
            raise ValueError(f"proposer must be a name; got {self.proposer!r}")
        if self.num_speculative_tokens is not None:
            _check_int("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)


@dataclass(frozen=True)
class Request:
    """One prompt and what is asked of it. `seed` is resolved: every sample of the request draws from it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    arrival: int
    prompt: str | None = None
    priority: int = 0
    adapter: str | None = None
    cache_salt: str | None = None
    proposer: str = "none"
    num_speculative_tokens: int = 0
    draft_kv: str | None = None
    """The proposer that keeps KV of its own for this request's tokens, if one does."""
    num_lookahead_tokens: int | None = None
    """Slots past its last token that such a proposer may write; None: as many as the draft may be long."""
    stop_token_ids: frozenset[int] = frozenset()
    """Every id that ends a sample with reason "stop", end-of-sequence included unless ignored."""
    eos_token_ids: frozenset[int] = frozenset()
    """The subset of `stop_token_ids` that is end-of-sequence (reported with `stop_reason` None)."""
    min_tokens_ban: frozenset[int] = frozenset()
    """The ids that must not appear before `min_tokens`."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()


class ProposerWarning(UserWarning):
    """A proposer failed, or can draft no further, which costs its drafts alone. Two of one `kind` tell of the same."""

    def __init__(self, message: str, kind: tuple[str, ...]) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Draft:
    """The guessed continuation of one sequence.

    `parents` is None for a chain; for a tree, `parents[i] < i` is the index of node i's parent in `token_ids`, or -1
    for a child of the last committed token. Siblings are tried in the order of their indices, and hold different
    tokens. `draft_probs` is None for a deterministic draft, else float [k, vocab] on the device: row i is exactly the
    law that `token_ids[i]` was drawn from. Siblings are drawn without replacement: row i is the law BEFORE the tokens
    of node i's earlier siblings are removed from it, and node i is drawn from what is left, renormalised. With `has_kv`
    the proposer's own KV holds every node that has children as it would be computed anew, node i in the i-th slot after
    the last committed token.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    draft_probs: Any = None
    proposer: str = "none"
    has_kv: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def depths(self) -> tuple[int, ...]:
        """For each node the length of the path to it, itself included."""
        if self.parents is None:
            return tuple(range(1, len(self.token_ids) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The longest path: the most tokens that can be accepted."""
        return max(self.depths, default=0)

    @property
    def num_kv_tokens(self) -> int:
        """Slots after the last committed token that the proposer's own KV fills for good."""
        if not self.has_kv or not self.token_ids:
            return 0
        return len(self.token_ids) - 1 if self.parents is None else max(self.parents) + 1

    def num_kept_tokens(self, path: Sequence[int]) -> int:
        """How many nodes of an accepted path, from the first on, the proposer's own KV holds for good."""
        if not self.has_kv or not path:
            return 0
        return len(path) if self.children(path[-1]) else len(path) - 1

    def children(self, node: int) -> list[int]:
        """The nodes that hang under `node`, or under the last committed token for -1, in order."""
        if self.parents is None:
            return [node + 1] if node + 1 < len(self.token_ids) else []
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def limited(self, depth: int) -> Draft:
        """The nodes before the first that lies deeper than `depth`."""
        return self.trimmed(next((node for node, own in enumerate(self.depths) if own > depth), len(self)))

    def trimmed(self, length: int) -> Draft:
        """The first `length` nodes; in a tree a parent always precedes its children, so a prefix is a tree."""
        if length >= len(self.token_ids):
            return self
        return Draft(
            self.token_ids[:length],
            None if self.parents is None else self.parents[:length],
            None if self.draft_probs is None else self.draft_probs[:length],
            self.proposer,
            self.has_kv,
        )


EMPTY_DRAFT = Draft()


class TextStream(Protocol):
    """Turns one sample's tokens into text as they come; never emits half a character."""

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; may be empty."""
        ...

    def finish(self) -> str:
        """What is still held back at the end, with a replacement character for an unfinished one."""
        ...


@dataclass(frozen=True)
class Logprob:
    """The model's own log probability of a token, before any sampling transform; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What verification decided for one scheduled sequence.

    `token_ids` are the accepted draft tokens and then exactly one more (recovered or bonus). `accepted_path` holds the
    accepted draft nodes' indices in order; for a chain, 0 .. num_accepted-1. `logprobs[i]` are the alternatives at
    `token_ids[i]`, where asked for. `prompt_logprobs` belongs to the prompt positions of this step's span: entry i
    speaks of the token after span position i. With an `error` the one more token could not be chosen: the accepted
    ones stand, as in plain decoding, and then the sample ends.
    """

    token_ids: tuple[int, ...] = ()
    accepted_path: tuple[int, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    prompt_logprobs: tuple[dict[int, Logprob], ...] | None = None
    error: str | None = None

    @property
    def num_accepted(self) -> int:
        return len(self.accepted_path)


RECOVERED = "recovered"
BONUS = "bonus"
"""Provenance of a token is the name of the proposer that drafted it, or one of these two."""


@dataclass
class SpeculationStats:
    """Counts of one sample (or, summed, of more). A draft counts once it is verified; an empty one is none."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """`accepted_per_position[j]`: drafts whose token at position j (depth j in a tree) was accepted."""

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens committed per verified draft: 1 + accepted / drafts."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def copy(self) -> SpeculationStats:
        """The same counts, which do not change with these."""
        counts = self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens
        return SpeculationStats(*counts, [*self.accepted_per_position])

    def record(self, num_draft_tokens: int, num_accepted: int) -> None:
        """Count one verified draft."""
        if not num_draft_tokens:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1

    def add(self, other: SpeculationStats) -> None:
        """Add another sample's counts to these."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        missing = len(other.accepted_per_position) - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count


@dataclass
class CompletionOutput:
    """One sample of a request. `finish_reason` is "stop", "length", "abort" or "error" (then `error` says why)."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    provenance: list[str] = field(default_factory=list)
    """For each token: the proposer that drafted it, "recovered" or "bonus"."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Times of one request on the engine's clock, in seconds."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass
class RequestOutput:
    """The state of a request after a step: vLLM's fields; every sample's text so far (cumulative)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    proposer: str = "none"
    verifier: str = "greedy"
    exactness: str = "bytes"
    """What the answer promises against plain decoding of the same engine: the same "bytes", the same "distribution",
    or neither ("lossy")."""
    num_speculative_tokens: int = 0
