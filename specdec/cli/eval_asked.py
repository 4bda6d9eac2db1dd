"""From the options of `specdec eval acceptance` to what is to be measured, checked before any model work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from specdec.cli.configure import DEFAULT_MEASURED, PROPOSER_OPTIONS, build_config, stated_settings, takes
from specdec.cli.eval_options import DEFAULT_CONCURRENCY, AcceptanceOptions
from specdec.cli.generate import ENGINE_OPTIONS
from specdec.config import AUTO, EngineConfig, SpeculativeConfig, check_verifier
from specdec.eval.baseline import Baseline, read
from specdec.eval.prompts import EvalPrompt
from specdec.eval.tasks import load_tasks
from specdec.proposers.registry import num_nodes
from specdec.types import SamplingParams, SpeculationParams

T = TypeVar("T")

TO_STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True)
class Asked:
    """What the options ask for. `variants` are proposers with their draft lengths, plain decoding not among them."""

    config: EngineConfig
    variants: tuple[tuple[str, int], ...]
    temperatures: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    concurrency: int
    """Prompts to answer at once where no times are taken."""
    oracle: bool
    prompts: tuple[EvalPrompt, ...]
    limit: int | None
    baseline: Baseline | None


def what_is_asked(options: AcceptanceOptions, given: set[str]) -> Asked:
    """ValueError in one line for whatever is wrong. `given` names the options that were stated, not defaulted."""
    _check_numbers(options)
    for name in ("json", "html", "record_baseline"):
        check_writable(name, getattr(options, name))
    _check_distinct(options)
    temperatures = _numbers("--temperature", options.temperature, float)
    batch_sizes = _numbers("--batch-sizes", options.batch_sizes, int) if options.timing_prompts else ()
    config, variants = _configure(options, given)
    for temperature in temperatures:
        SamplingParams(temperature=temperature, max_tokens=options.max_tokens)
        check_verifier(config.verifier, temperature)
    if options.oracle and 0 not in temperatures:
        raise ValueError(f"--oracle needs temperature 0 among those of --temperature; got {options.temperature}")
    nodes = max(num_nodes(entry) for entry in config.speculative)
    check_room(config, batch_sizes, nodes)
    return Asked(
        config=config,
        variants=variants,
        temperatures=temperatures,
        batch_sizes=batch_sizes,
        concurrency=_concurrency(options.concurrency, "concurrency" in given, config, nodes),
        oracle=options.oracle,
        prompts=tuple(load_tasks(_names("--task", options.task), options.tasks_dir)),
        limit=options.limit or None,
        baseline=None if options.baseline is None else read(options.baseline),
    )


def _check_numbers(options: AcceptanceOptions) -> None:
    for name, low in (("limit", 0), ("timing_prompts", 0), ("max_tokens", 3), ("concurrency", 1)):
        value = getattr(options, name)
        if value < low:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {low}; got {value}")


def check_writable(name: str, path: Path | None) -> None:
    """A file that cannot be written is better known before the model runs."""
    if path is None or (name == "json" and path == TO_STANDARD_OUTPUT):
        return
    option = f"--{name.replace('_', '-')}"
    if path == TO_STANDARD_OUTPUT:
        raise ValueError(f"{option} needs a file; only --json can be - for standard output")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option}: {path} cannot be written")


def _check_distinct(options: AcceptanceOptions) -> None:
    """No file may be written over another, least of all the baseline that a run is compared with."""
    taken: dict[Path, str] = {}
    for name in ("baseline", "json", "html", "record_baseline"):
        path = getattr(options, name)
        if path is None or path == TO_STANDARD_OUTPUT:
            continue
        option, own = f"--{name.replace('_', '-')}", path.resolve()
        if own in taken:
            raise ValueError(f"{taken[own]} and {option} name the same file, {path}; give each its own")
        taken[own] = option


def _concurrency(asked: int, is_stated: bool, config: EngineConfig, nodes: int) -> int:
    """What was stated, which must fit; else as many of the default as fit a step whole."""
    if is_stated:
        check_room(config, [asked], nodes, "--concurrency")
        return asked
    return max(1, min(DEFAULT_CONCURRENCY, config.max_num_seqs, config.max_num_batched_tokens // (1 + nodes)))


def check_room(config: EngineConfig, batch_sizes: Sequence[int], nodes: int, option: str = "--batch-sizes") -> None:
    """Every batch size must fit a step whole, with drafts of `nodes` tokens."""
    for size in batch_sizes:
        if size < 1:
            raise ValueError(f"{option} must be at least 1; got {size}")
        if size > config.max_num_seqs:
            raise ValueError(f"{option} {size} is more than the engine's max_num_seqs ({config.max_num_seqs})")
        if size * (nodes + 1) > config.max_num_batched_tokens:
            raise ValueError(
                f"{option} {size} with drafts of {nodes} tokens is more than the engine's max_num_batched_tokens "
                f"({config.max_num_batched_tokens})"
            )


def _names(option: str, text: str) -> list[str]:
    """The entries of a list with commas, each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{option} has an empty entry; got {text!r}")
    return list(dict.fromkeys(names))


def _numbers(option: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(dict.fromkeys(kind(name) for name in _names(option, text)))
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between them; got {text!r}") from None


def _configure(options: AcceptanceOptions, given: set[str]) -> tuple[EngineConfig, tuple[tuple[str, int], ...]]:
    """An engine with every proposer, each allowed its longest draft, and the variants to measure.

    `build_config` is asked for each proposer and length by itself, so that what it refuses is refused here too.
    """
    named = _names("--proposer", options.proposer) if "proposer" in given else [None]
    lengths: Sequence[int | None] = [None]
    if "num_speculative_tokens" in given:
        lengths = _numbers("--num-speculative-tokens", options.num_speculative_tokens, int)
        _check_lengths(lengths)
    own = _proposer_settings(options, named)
    configs = [_config(options, given, name, length, own) for name in named for length in lengths]
    entries: dict[str, SpeculativeConfig] = {}
    variants: dict[tuple[str, int], None] = {}
    for name, config in zip((name for name in named for _ in lengths), configs, strict=True):
        for entry in config.speculative if name is None else config.speculative[:1]:
            if entry.method == "none":
                continue
            variants[entry.method, entry.num_speculative_tokens] = None
            known = entries.get(entry.method, entry)
            longest = max(known.num_speculative_tokens, entry.num_speculative_tokens)
            entries[entry.method] = replace(entry, num_speculative_tokens=longest)
    if AUTO in entries:
        # It chooses from all that the configuration lists, measured for themselves or not.
        for entry in (entry for config in configs for entry in config.speculative if entry.method != "none"):
            entries.setdefault(entry.method, entry)
    if not variants:
        raise ValueError("there is no proposer to measure; name some with --proposer, as in --proposer ngram,suffix")
    return replace(configs[0], speculative=tuple(entries.values())), tuple(variants)


def _check_lengths(lengths: Sequence[int | None]) -> None:
    for length in lengths:
        SpeculationParams(num_speculative_tokens=length)
        if length == 0:
            raise ValueError("--num-speculative-tokens 0 is plain decoding, which is always measured; leave it out")


def _proposer_settings(options: AcceptanceOptions, named: Sequence[str | None]) -> dict[str, Any]:
    """Keys of proposers' settings that options give. Where proposers are named, one of them must have each."""
    settings = stated_settings(options)
    for key in settings:
        option = PROPOSER_OPTIONS[key]
        if named != [None] and not any(name in option.proposers for name in named):
            raise ValueError(f"{option.flag} is of {' and '.join(option.proposers)}, which --proposer does not name")
    return settings


def _config(
    options: AcceptanceOptions, given: set[str], proposer: str | None, length: int | None, own: dict[str, Any]
) -> EngineConfig:
    """A configuration with one of the named proposers first, or with all that nobody had to name."""
    return build_config(
        file=options.config,
        settings={name: getattr(options, name) for name in ENGINE_OPTIONS if name in given},
        proposer=proposer,
        num_speculative_tokens=length,
        proposer_settings={key: value for key, value in own.items() if proposer is None or takes(proposer, [key])},
        speculative_json=options.speculative_config,
        default_proposer=DEFAULT_MEASURED,
    )
