"""The options of `specdec train data`: their groups, defaults and help, and their values as one frozen object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import click

from specdec.cli.bench_options import flag, integer, number_list, stop_after
from specdec.cli.options import option_groups, speculation_options
from specdec.config import DTYPES

DEFAULT_DTYPE = "bfloat16"
DEFAULT_MAX_MODEL_LEN = 2048
DEFAULT_PROPOSER = "none"
USUAL_SEQUENCE = 768
"""Tokens of the KV cache for each sequence that runs at once, unless said otherwise: few are longer."""

NEVER = ("verifier",)
"""Options of speculation that have no place: only coupled verification makes the same data whatever drafts."""


@dataclass(frozen=True)
class DataOptions:
    """What the command line said, defaults filled in; names as in the options. Lists are still texts with commas."""

    output: Path
    prompts: tuple[Path, ...]
    self_written: int
    documents: tuple[Path, ...]
    raw: bool
    exclude: tuple[Path, ...]
    exclude_words: int
    temperatures: str
    weights: str | None
    samples_per_prompt: int
    most_per_source: int | None
    max_tokens: int
    seed: int
    cache_states: str
    aux_layers: str | None
    stop_after: float | None
    max_total_tokens: int | None
    shard_jobs: int
    model: str
    config: Path | None
    dtype: str
    quantization: str
    kv_cache_dtype: str
    num_threads: int | None
    kernels: str
    max_model_len: int
    proposer: str
    num_speculative_tokens: int
    draft_model: str | None
    draft_layers: int | None
    tree: str | None
    tree_nodes: int | None
    tree_width: int | None
    speculative_config: str | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_tokens: int | None
    no_prefix_caching: bool
    json: bool
    quiet: bool


def data_groups() -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`."""
    return {
        "Prompts": _prompt_options(),
        "Answers": _answer_options(),
        "States": _state_options(),
        "How far": _bound_options(),
        "Model": _model_options(),
        "Speculation": tuple(o for o in speculation_options(DEFAULT_PROPOSER) if o.name not in NEVER),
        "Engine": _engine_options(),
        "Output": (
            flag("--json", "One JSON object on one line at the end."),
            flag("--quiet", "No progress on standard error."),
        ),
    }


def _files(name: str, help: str) -> click.Option:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.Option([name], type=kind, metavar="FILE", multiple=True, help=help)


def _prompt_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ["--output", "-o"],
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            required=True,
            help="Where the data goes. A directory that has some already is gone on with, if it was made alike.",
        ),
        _files(
            "--prompts",
            "Prompts to answer: .txt has one a line; others are JSON lines, each with one of prompt, messages and "
            "turns (what the user says, in turn), and a source, if it has one. May be repeated.",
        ),
        integer(
            "--self-written",
            0,
            "Prompts that the model writes itself, in the user's place, at temperature 1.",
            0,
        ),
        click.Option(
            ["--documents"],
            type=click.Path(exists=True, path_type=Path),
            metavar="PATH",
            multiple=True,
            help="A text, Markdown or HTML file, or a folder of such: each passage is given a task (summarize, "
            "extract, rewrite, translate, continue, ...), so that answers copy from it. May be repeated.",
        ),
        flag("--raw", "Give prompts to the model as they are, without its chat template."),
        _files("--exclude", "Prompts of an evaluation: whatever shares its words is left out. May be repeated."),
        integer(
            "--exclude-words", 13, "So many shared words in a row are too many; of a shorter evaluation prompt, all."
        ),
    )


def _answer_options() -> tuple[click.Option, ...]:
    return (
        number_list("--temperatures", "T[,T2]", "0,0.7,1", "Temperatures that answers are sampled at."),
        click.Option(
            ["--weights"], metavar="W[,W2]", show_default="all alike", help="How often each temperature is used."
        ),
        integer("--samples-per-prompt", 1, "Answers to each prompt, one at temperature 0 at most."),
        click.Option(
            ["--most-per-source"],
            type=click.IntRange(min=1),
            metavar="N",
            show_default="all",
            help="Prompts of one source that are answered, so that a large one does not drown the others.",
        ),
        integer("--max-tokens", 256, "Longest answer."),
        integer("--seed", 0, "Chooses the order, the temperatures and every sampled token.", 0),
    )


def _state_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ["--cache-states"],
            metavar="SIZE",
            default="0",
            show_default=True,
            help="Keep the model's states beside the tokens, in bfloat16, until they take so many bytes, such as "
            "20GB. Training computes anew what is not kept.",
        ),
        click.Option(
            ["--aux-layers"],
            metavar="L[,L2]",
            show_default="a low, a middle and a high one",
            help="Layers whose inputs are kept, beside the state after the final norm.",
        ),
    )


def _bound_options() -> tuple[click.Option, ...]:
    return (
        stop_after("Stop then; the same command goes on."),
        click.Option(
            ["--max-total-tokens"],
            type=click.IntRange(min=1),
            metavar="N",
            help="Stop when the answers have so many tokens in all.",
        ),
        integer(
            "--shard-jobs",
            128,
            "Answers, or conversations, of a shard. A run that is killed goes on behind the last whole one; states are "
            "in memory until theirs is whole.",
        ),
    )


def _model_options() -> tuple[click.Option, ...]:
    ours = {
        "dtype": click.Option(
            ["--dtype"],
            metavar="NAME",
            default=DEFAULT_DTYPE,
            show_default=True,
            help=f"{', '.join(DTYPES[:-1])} or {DTYPES[-1]}. auto is the checkpoint's own type.",
        ),
        "max_model_len": integer(
            "--max-model-len",
            DEFAULT_MAX_MODEL_LEN,
            "Longest sequence, the prompt included; longer prompts are dropped.",
        ),
    }
    return tuple(ours.get(str(option.name), option) for option in option_groups()["Model"])


def _engine_options() -> tuple[click.Option, ...]:
    room = click.Option(
        ["--kv-cache-tokens"],
        type=click.INT,
        metavar="N",
        show_default=f"{USUAL_SEQUENCE} a sequence",
        help="Size of the KV cache, in tokens.",
    )
    return tuple(room if option.name == "kv_cache_tokens" else option for option in option_groups()["Engine"])


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(option: str, text: str) -> int:
    """Bytes, as in 20GB, 512MiB or 0; ValueError in one line."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in UNITS:
        raise ValueError(f"{option} must be a number of bytes such as 20GB, 512MiB or 0; got {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between them; ValueError in one line."""
    try:
        return tuple(float(entry) for entry in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between them; got {text!r}") from None


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers with commas between them; ValueError in one line."""
    try:
        return tuple(int(entry) for entry in text.split(","))
    except ValueError:
        raise ValueError(f"--aux-layers must be layers with commas between them; got {text!r}") from None
