"""The engine's configuration: one frozen object, built once, checked before any model work.

Environment variables are read here and nowhere else. This module knows names and ranges; what a method or a model
means is for the layers that own them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from specdec.types import GREEDY_TEMPERATURE, MAX_SPECULATIVE_TOKENS

DEFAULT_MODEL = "smollm2-135m"
AUTO = "auto"
"""The proposer that is a choice among the others."""
DEFAULT_DRAFT_LENGTH, AUTO_DRAFT_LENGTH = 4, 16
"""How long drafts are where nobody says: with `auto` at most."""
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "int8")
QUANTIZATIONS = ("none", "int8", "int4", "gguf")
KERNELS = ("auto", "native", "reference")
EXACTNESS = {
    "auto": "distribution",
    "greedy": "bytes",
    "rejection": "distribution",
    "block": "distribution",
    "coupled": "bytes",
    "typical": "lossy",
}
"""What each verifier promises of sampled answers against plain decoding with the same seed: the same "bytes", the same
"distribution", or neither ("lossy"). Greedy answers have the same bytes under all of them."""

VERIFIERS = tuple(EXACTNESS)
REJECTION_METHODS = {"standard": "rejection", "block": "block"}
"""vLLM's `rejection_sample_method` -> verifier."""


def cache_dir() -> Path:
    """Where fetched models are kept: SPECDEC_CACHE, else XDG_CACHE_HOME/specdec, else ~/.cache/specdec.

    ValueError where that is below the home directory of a user who has none.
    """
    explicit = os.environ.get("SPECDEC_CACHE")
    folder = Path(explicit or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "specdec"))
    try:
        return folder.expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home directory for {folder}; set SPECDEC_CACHE to a folder for models") from None


def check_verifier(verifier: str, temperature: float) -> None:
    """ValueError if `verifier` cannot serve requests of this temperature: greedy verification samples nothing."""
    if verifier == "greedy" and temperature >= GREEDY_TEMPERATURE:
        raise ValueError(
            f"the verifier 'greedy' needs temperature 0, got {temperature:g}; "
            "use 'rejection', 'block' or 'coupled' for sampling"
        )


def calm_threads() -> None:
    """Let OpenMP threads that wait spin briefly and then sleep; call it before torch is imported.

    On a machine that is busy with something else, spinning threads made a run ten times as long. A wait policy that
    the user has set is left alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """One line that refuses `name` and points at the nearest valid one."""
    known = sorted(set(known))
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}{hint} (valid: {', '.join(known)})"


def default_draft_length(method: object) -> int:
    """The longest draft of a proposer where nobody says how long."""
    return AUTO_DRAFT_LENGTH if method == AUTO else DEFAULT_DRAFT_LENGTH


@dataclass(frozen=True)
class SpeculativeConfig:
    """One proposer and its settings.

    `settings` are the proposer's own keys (vLLM's names, such as `prompt_lookup_max`); the proposer checks them.
    """

    method: str = "none"
    num_speculative_tokens: int = DEFAULT_DRAFT_LENGTH
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ValueError(f"speculative_config: method must be the name of a proposer; got {self.method!r}")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"speculative_config: settings must be a mapping; got {self.settings!r}")
        k = self.num_speculative_tokens
        if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"num_speculative_tokens must be an integer between 0 and {MAX_SPECULATIVE_TOKENS}; got {k!r}"
            )

    @staticmethod
    def from_mapping(options: Mapping[str, Any]) -> SpeculativeConfig:
        """From vLLM's `speculative_config`: `method`, `num_speculative_tokens`, and the method's own keys."""
        if not isinstance(options, Mapping):
            raise ValueError(f"speculative_config must be a mapping; got {options!r}")
        if "method" not in options:
            raise ValueError("speculative_config needs a method, for example {'method': 'ngram'}")
        own = ("method", "num_speculative_tokens")
        settings = {key: value for key, value in options.items() if key not in own}
        method = options["method"]
        length = options.get("num_speculative_tokens", default_draft_length(method))
        return SpeculativeConfig(method, length, settings)


MAX_THREADS = 512
"""More than one for each core are of no use, and no machine that this was made for has as many."""


@dataclass(frozen=True)
class EngineConfig:
    """Everything that shapes an engine. Names follow vLLM where it has one.

    `max_model_len` None takes the model's own limit. `kv_cache_tokens` None sizes the KV pool from
    `gpu_memory_utilization`, a share of the device's memory (of the machine's free memory on a CPU). `quantization`
    "gguf" keeps a GGUF file's own codes. `kernels` "native" insists on the compiled ones, "reference" on plain torch;
    "auto" takes the first where they can be had. `num_threads` None is a thread for each physical core; plain torch has
    one setting for the whole process, which a number changes and None leaves alone.
    `speculative` lists the proposers to load; the first is the default of requests that name none.
    """

    model: str = DEFAULT_MODEL
    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float = 0.5
    enable_prefix_caching: bool = True
    seed: int = 0
    verifier: str = "auto"
    kernels: str = "auto"
    num_threads: int | None = None
    speculative: tuple[SpeculativeConfig, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be an alias, a path or a hub name; got {self.model!r}")
        for name, known in (
            ("dtype", DTYPES),
            ("quantization", QUANTIZATIONS),
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("verifier", VERIFIERS),
            ("kernels", KERNELS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(unknown_name(name, getattr(self, name), known))
        self._check_integers()
        share = self.gpu_memory_utilization
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1; got {share!r}")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ValueError(f"enable_prefix_caching must be true or false; got {self.enable_prefix_caching!r}")
        listed = self.speculative
        if not isinstance(listed, tuple) or not all(isinstance(entry, SpeculativeConfig) for entry in listed):
            raise ValueError(f"speculative must be a tuple of SpeculativeConfig; got {listed!r}")
        methods = [entry.method for entry in listed]
        if repeated := [method for method in methods if methods.count(method) > 1]:
            raise ValueError(f"speculative_config names the proposer {repeated[0]!r} twice; give it one entry")
        self._check_budget()

    def _check_integers(self) -> None:
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "kv_cache_tokens",
            "num_threads",
        ):
            value = getattr(self, name)
            if value is None and name in ("max_model_len", "kv_cache_tokens", "num_threads"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer; got {value!r}")
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise ValueError(f"num_threads must be at most {MAX_THREADS}; got {self.num_threads}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed must be an integer; got {self.seed!r}")

    def _check_budget(self) -> None:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one token a step"
            )
        for proposer in self.speculative:
            if proposer.num_speculative_tokens + 1 > self.max_num_batched_tokens:
                raise ValueError(
                    f"num_speculative_tokens ({proposer.num_speculative_tokens}) and the token before them do not fit "
                    f"max_num_batched_tokens ({self.max_num_batched_tokens})"
                )
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < 2 * self.block_size:
            raise ValueError(
                f"kv_cache_tokens ({self.kv_cache_tokens}) must hold at least two blocks of {self.block_size} tokens"
            )

    @staticmethod
    def from_mapping(options: Mapping[str, Any]) -> EngineConfig:
        """From a YAML file's or a program's dictionary.

        `speculative_config` (or `speculative`) is one proposer's mapping or a list of them; `verifier` and vLLM's
        `rejection_sample_method` ("standard" or "block") may stand in it. `quantization` may be None, as in vLLM.
        """
        if not isinstance(options, Mapping):
            raise ValueError(f"an engine configuration must be a mapping; got {options!r}")
        names = {f.name for f in fields(EngineConfig)} | {"speculative_config"}
        for key in options:
            if key not in names:
                raise ValueError(unknown_name("config key", key, names - {"speculative"}))
        values = {key: value for key, value in options.items() if key not in ("speculative_config", "speculative")}
        if values.get("quantization", "none") is None:
            values["quantization"] = "none"
        if "speculative" in options and "speculative_config" in options:
            raise ValueError("give speculative_config or speculative, not both")
        given = options.get("speculative_config", options.get("speculative"))
        listed: list[Any] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        proposers = []
        for entry in listed:
            if isinstance(entry, SpeculativeConfig):
                proposers.append(entry)
                continue
            if not isinstance(entry, Mapping):
                raise ValueError(f"speculative_config must be a mapping or a list of them; got {entry!r}")
            entry = dict(entry)
            verifier = _take_verifier(entry)
            if verifier is not None:
                stated = values.get("verifier", "auto")
                if stated not in ("auto", verifier):
                    raise ValueError(f"the verifier is {stated!r} in one place and {verifier!r} in another; give one")
                values["verifier"] = verifier
            proposers.append(SpeculativeConfig.from_mapping(entry))
        return EngineConfig(**values, speculative=tuple(proposers))


def _take_verifier(entry: dict[str, Any]) -> str | None:
    """Remove the verifier's keys from a `speculative_config` entry and return its name."""
    method = entry.pop("rejection_sample_method", None)
    if method is not None and method not in REJECTION_METHODS:
        raise ValueError(unknown_name("rejection_sample_method", method, REJECTION_METHODS))
    verifier: str | None = entry.pop("verifier", None)
    return verifier if verifier is not None else REJECTION_METHODS.get(method)
