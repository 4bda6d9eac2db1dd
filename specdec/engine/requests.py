"""From what a user asks to a checked `Request`: whatever is wrong with it is said before any model work."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from specdec.config import AUTO, EngineConfig, check_verifier, unknown_name
from specdec.proposers.auto import member_names, with_members
from specdec.tokenizer import Tokenizer
from specdec.types import Request, SamplingParams, SpeculationParams

Prompt = str | Mapping[str, object] | Many[int]
"""Text, token ids, or a mapping with "prompt" or "prompt_token_ids"."""


@dataclass(frozen=True)
class TargetFacts:
    """What the engine must know of a target beside running it."""

    vocab_size: int
    max_model_len: int
    """The longest sequence, prompt and output together: the model's limit and the configuration's."""
    eos_token_ids: frozenset[int] = frozenset()
    weight_bytes: int = 0
    activation_bytes: int = 0
    """An upper bound for one step of `max_num_batched_tokens`."""


def draft_lengths(config: EngineConfig) -> dict[str, int]:
    """The loaded proposers' names with their own `num_speculative_tokens`; "none" is always among them."""
    entries = with_members(config).speculative
    return {entry.method: entry.num_speculative_tokens for entry in entries} | {"none": 0}


class RequestBuilder:
    """Turns prompts and parameters into requests for one engine."""

    def __init__(
        self,
        config: EngineConfig,
        facts: TargetFacts,
        tokenizer: Tokenizer | None,
        *,
        pool_tokens: int,
        kv_owners: Mapping[str, int | None] | None = None,
    ) -> None:
        self.config = config
        self.facts = facts
        self.tokenizer = tokenizer
        self.pool_tokens = pool_tokens
        self.kv_owners = dict(kv_owners or {})
        """Proposers with KV of their own, and how many slots their drafts take there; None: a chain's."""
        self.proposers = draft_lengths(config)
        self.portfolio = member_names(config)
        """What `auto` chooses from."""
        self.default_proposer = config.speculative[0].method if config.speculative else "none"

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the model and the pool can hold."""
        return min(self.facts.max_model_len, self.pool_tokens)

    def build(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        arrival: int,
        priority: int,
        cache_salt: str | None,
        speculation: SpeculationParams,
    ) -> Request:
        """A checked request; ValueError in one line for whatever cannot be served."""
        self._check_settings(priority, cache_salt, speculation)
        text, token_ids = self._tokenize(prompt)
        self._check_prompt(token_ids)
        self._check_params(params)
        proposer, length = self._speculation(speculation)
        kv_owner = self._kv_owner(proposer) if self._may_draft(params, length) else None
        stops = frozenset(params.stop_token_ids or ())
        eos = frozenset() if params.ignore_eos else self.facts.eos_token_ids
        return Request(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            params=params,
            seed=self._seed(params, arrival),
            arrival=arrival,
            prompt=text,
            priority=priority,
            cache_salt=cache_salt,
            proposer=proposer,
            num_speculative_tokens=length,
            draft_kv=kv_owner,
            num_lookahead_tokens=self._num_lookahead_tokens(kv_owner, length),
            stop_token_ids=stops | eos,
            eos_token_ids=eos,
            min_tokens_ban=(stops | eos) if params.min_tokens else frozenset(),
            bad_word_ids=self._bad_words(params.bad_word_strings),
        )

    @staticmethod
    def _check_settings(priority: object, cache_salt: object, speculation: object) -> None:
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ValueError(f"priority must be an integer (lower is served first); got {priority!r}")
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise ValueError(f"cache_salt must be a non-empty string; got {cache_salt!r}")
        if not isinstance(speculation, SpeculationParams):
            raise ValueError(f"speculation must be SpeculationParams; got {type(speculation).__name__}")

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            known = ("prompt", "prompt_token_ids")
            for key in prompt:
                if key not in known:
                    raise ValueError(unknown_name("prompt key", key, known))
            if len(prompt) != 1:
                raise ValueError("a prompt mapping needs exactly one of 'prompt' and 'prompt_token_ids'")
            value = next(iter(prompt.values()))
            if isinstance(value, str) != ("prompt" in prompt):
                raise ValueError("'prompt' must be text, and 'prompt_token_ids' a list of token ids")
            return self._tokenize(value)  # type: ignore[arg-type]
        if isinstance(prompt, str):
            if not prompt:
                raise ValueError("the prompt is empty")
            if self.tokenizer is None:
                raise ValueError("this engine has no tokenizer; give prompt_token_ids")
            return prompt, self.tokenizer.encode(prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Many):
            raise ValueError(f"a prompt must be text, a list of token ids or a mapping; got {type(prompt).__name__}")
        return None, [*prompt]

    def _check_prompt(self, token_ids: Many[int]) -> None:
        if not token_ids:
            raise ValueError("the prompt is empty")
        self._check_ids("prompt_token_ids", token_ids)
        if len(token_ids) >= self.facts.max_model_len:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens; with at least one new token the model takes at most "
                f"{self.facts.max_model_len}"
            )
        if len(token_ids) >= self.pool_tokens:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens; with at least one new token the KV pool holds at most "
                f"{self.pool_tokens}"
            )

    def _check_ids(self, name: str, token_ids: Iterable[object]) -> None:
        for token_id in token_ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise ValueError(f"{name} must hold integers; got {token_id!r}")
            if not 0 <= token_id < self.facts.vocab_size:
                raise ValueError(f"{name}: {token_id} is outside the vocabulary (0 to {self.facts.vocab_size - 1})")

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling parameters must be SamplingParams; got {type(params).__name__}")
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logit_bias", params.logit_bias or ())
        for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if value is not None and value > self.facts.vocab_size:
                raise ValueError(f"{name} must be at most the vocabulary's size, {self.facts.vocab_size}; got {value}")
        if (params.stop_strings or params.bad_word_strings) and self.tokenizer is None:
            raise ValueError("stop strings and bad_words need a tokenizer; use stop_token_ids and logit_bias instead")
        check_verifier(self.config.verifier, params.temperature)

    def _speculation(self, speculation: SpeculationParams) -> tuple[str, int]:
        """The proposer's name and the longest draft of a request."""
        name = speculation.proposer if speculation.proposer is not None else self.default_proposer
        if name not in self.proposers:
            raise ValueError(unknown_name("proposer of this engine", name, self.proposers))
        longest, length = self.proposers[name], speculation.num_speculative_tokens
        if name == "none" or length is None:
            return name, longest
        if length > longest:
            raise ValueError(
                f"num_speculative_tokens ({length}) is more than this engine has memory for ({longest}); "
                "give the proposer more in speculative_config"
            )
        return name, length

    def _kv_owner(self, proposer: str) -> str | None:
        """The proposer with KV of its own that may draft where this one is asked for; `auto` has at most one."""
        names = self.portfolio if proposer == AUTO else (proposer,)
        return next((name for name in names if name in self.kv_owners), None)

    def _num_lookahead_tokens(self, kv_owner: str | None, length: int) -> int:
        """Slots for the last committed token and what is computed of a draft behind it: of a chain, all but the end."""
        if kv_owner is None:
            return length
        length, slots = min(length, self.proposers[kv_owner]), self.kv_owners[kv_owner]
        return length if slots is None else min(length, 1) * (1 + slots)

    @staticmethod
    def _may_draft(params: SamplingParams, length: int) -> bool:
        """Whether there can be a draft at all: one token is emitted beside it."""
        return length > 0 and (params.max_tokens is None or params.max_tokens > 1)

    def _seed(self, params: SamplingParams, arrival: int) -> int:
        """The request's own seed; without one, a function of the engine's seed and the request's number."""
        if params.seed is not None:
            return params.seed % 2**64
        digest = hashlib.sha256(f"{self.config.seed}/{arrival}".encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def _bad_words(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Each word's tokens, at the start of a text and, where that differs, after a space (as vLLM does)."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            assert self.tokenizer is not None
            for text in (word.lstrip(), " " + word.lstrip()):
                if token_ids := tuple(self.tokenizer.encode(text, add_special_tokens=False)):
                    found[token_ids] = None
        return tuple(found)
