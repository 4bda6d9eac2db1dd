"""The options of `specdec generate`: their groups, defaults and help, and their values as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from specdec.cli.configure import DEFAULT_NUM_SPECULATIVE_TOKENS, DEFAULT_PROPOSER, TREES
from specdec.config import (
    AUTO_DRAFT_LENGTH,
    DTYPES,
    KERNELS,
    KV_CACHE_DTYPES,
    QUANTIZATIONS,
    VERIFIERS,
    EngineConfig,
)
from specdec.proposers.registry import METHODS
from specdec.types import SamplingParams

DEFAULT_TEMPERATURE = 0.0
DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class GenerateOptions:
    """What the command line said, defaults filled in; names as in the options."""

    prompt: tuple[str, ...]
    prompts_file: str | None
    raw: bool
    system: str | None
    model: str
    config: Path | None
    dtype: str
    quantization: str
    kv_cache_dtype: str
    num_threads: int | None
    kernels: str
    max_model_len: int | None
    proposer: str
    num_speculative_tokens: int
    draft_model: str | None
    draft_layers: int | None
    tree: str | None
    tree_nodes: int | None
    tree_width: int | None
    verifier: str
    speculative_config: str | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    n: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_tokens: int | None
    no_prefix_caching: bool
    color: bool
    explain_speculation: bool
    json: bool
    quiet: bool
    verbose: bool


def _text(*names: str, metavar: str, help: str, default: str | None = None, multiple: bool = False) -> click.Option:
    shown = default is not None
    return click.Option(names, metavar=metavar, default=default, show_default=shown, multiple=multiple, help=help)


def _integer(*names: str, help: str, default: int | None = None, unset: str = "") -> click.Option:
    """`unset` says what happens where there is no default."""
    return click.Option(names, type=click.INT, metavar="N", default=default, show_default=unset or True, help=help)


def _number(*names: str, help: str, default: float) -> click.Option:
    return click.Option(names, type=click.FLOAT, metavar="X", default=default, show_default=True, help=help)


def _flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help)


def _file(*names: str, help: str) -> click.Option:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.Option(names, type=kind, metavar="FILE", help=help)


def option_groups() -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`."""
    return {
        "Prompts": _prompt_options(),
        "Model": _model_options(),
        "Speculation": speculation_options(DEFAULT_PROPOSER),
        "Sampling": _sampling_options(),
        "Engine": _engine_options(),
        "Output": _output_options(),
    }


def _prompt_options() -> tuple[click.Option, ...]:
    return (
        _text(
            "--prompts-file",
            metavar="FILE",
            help="JSON lines, taken after any PROMPT; - is standard input. A line is an object with one of prompt, "
            "messages and prompt_token_ids; it may set raw, any sampling parameter, proposer (one from outside only "
            "if options or the config load it) and num_speculative_tokens for itself.",
        ),
        _flag("--raw", help="Give prompts to the model as they are, without its chat template."),
        _text(
            "--system", metavar="TEXT", help="A system turn before every prompt that the chat template is applied to."
        ),
    )


def _model_options() -> tuple[click.Option, ...]:
    defaults = EngineConfig()
    return (
        _text(
            "--model",
            metavar="MODEL",
            default=defaults.model,
            help="An alias (see `specdec models`), a Hugging Face directory, a .gguf file, or a hub name.",
        ),
        _file(
            "--config",
            help="YAML with a whole engine configuration, such as those in configs/. Options given on the command "
            "line win over it. A file that lists no proposer decodes plainly.",
        ),
        _text(
            "--dtype", metavar="NAME", default=defaults.dtype, help=f"{_or(DTYPES)}. auto is the checkpoint's own type."
        ),
        _text(
            "--quantization",
            metavar="NAME",
            default=defaults.quantization,
            help=f"{_or(QUANTIZATIONS)}. Weights in 8 or 4 bits, in groups of 32; gguf: in a .gguf file's own codes. "
            "Of a draft model too, unless --speculative-config says otherwise.",
        ),
        _text(
            "--kv-cache-dtype",
            metavar="NAME",
            default=defaults.kv_cache_dtype,
            help=f"{_or(KV_CACHE_DTYPES)}. auto is the type of the weights, bfloat16 if they are quantised. Of a draft "
            "model too.",
        ),
        _integer(
            "--threads", "num_threads", unset="one a core", help="Threads that the model runs on, torch's own too."
        ),
        _text(
            "--kernels",
            metavar="NAME",
            default=defaults.kernels,
            help=f"{_or(KERNELS)}. native are compiled for this machine, once, and the same bits come out however many "
            "rows share a step; reference is plain torch; auto is the first that can be had.",
        ),
        _integer("--max-model-len", unset="the model's own limit", help="Longest sequence, the prompt included."),
    )


def speculation_options(default_proposer: str) -> tuple[click.Option, ...]:
    """What drafts, and how its drafts are verified."""
    return (
        _text(
            "--proposer",
            metavar="NAME",
            default=default_proposer,
            help=f"What guesses the draft: {_or(sorted(METHODS))}. auto chooses at every step who drafts and how much, "
            "or that nobody does, by what is fastest here. none is plain decoding. One from outside has the name that "
            "its package gives it, or is a class, package.module:Class.",
        ),
        click.Option(
            ["--num-speculative-tokens", "-k"],
            type=click.INT,
            metavar="N",
            default=DEFAULT_NUM_SPECULATIVE_TOKENS,
            show_default=f"{DEFAULT_NUM_SPECULATIVE_TOKENS}; auto: {AUTO_DRAFT_LENGTH}",
            help="Longest draft of a step.",
        ),
        _text(
            "--draft-model",
            metavar="MODEL",
            help="What drafts. For the proposer draft, which it chooses by itself, a model, named as for --model, with "
            "the model's own tokenizer; for eagle, eagle3 and medusa the directory or file of a trained head, if it is "
            "not to be the one that is built in for the model (see `specdec models`). With auto it is one more to "
            "choose from.",
        ),
        _integer("--draft-layers", unset="none", help="Let the model's own first N layers draft: the proposer draft."),
        _text(
            "--tree",
            metavar="SHAPE",
            help=f"The shape of a draft of {_or(TREES)}: chain, breadth, ranked, confidence, or a JSON file with a "
            "list of paths of ranks. A proposer has its own default.",
        ),
        _integer("--tree-nodes", unset="the proposer's", help="Most nodes of a draft tree; a file has its own."),
        _integer("--tree-width", unset="the proposer's", help="Most children of a node of a draft tree."),
        _text(
            "--verifier",
            metavar="NAME",
            default=EngineConfig().verifier,
            help=f"{_or(VERIFIERS)}. auto is greedy at temperature 0 and rejection above it; block accepts more of "
            "a sampled draft; with coupled a seed gives the tokens of plain decoding, whatever drafts; typical is "
            "lossy, and the statistics say so.",
        ),
        _text(
            "--speculative-config",
            metavar="JSON",
            help="Proposers with their settings: vLLM's dictionary, or a list of them, the first being the default. "
            "Options that contradict it are refused.",
        ),
    )


def _sampling_options() -> tuple[click.Option, ...]:
    defaults = SamplingParams()
    return (
        _number("--temperature", default=DEFAULT_TEMPERATURE, help="0 takes the likeliest token."),
        _number("--top-p", default=defaults.top_p, help="Keep the likeliest tokens up to this total probability."),
        _integer("--top-k", default=defaults.top_k, help="Keep this many of the likeliest tokens; 0 keeps all."),
        _number("--min-p", default=defaults.min_p, help="Keep tokens at least this likely, relative to the likeliest."),
        _integer("--seed", unset="from the engine's seed", help="Seed of every prompt that sets none of its own."),
        _integer("--max-tokens", default=DEFAULT_MAX_TOKENS, help="Longest answer."),
        _text("--stop", metavar="TEXT", multiple=True, help="End the answer before this text; may be repeated."),
        _flag("--ignore-eos", help="Go on after the end-of-sequence token."),
        _integer("--n", default=defaults.n, help="Answers to each prompt."),
    )


def _engine_options() -> tuple[click.Option, ...]:
    defaults = EngineConfig()
    return (
        _integer("--max-num-seqs", default=defaults.max_num_seqs, help="Most sequences that run at once."),
        _integer("--max-num-batched-tokens", default=defaults.max_num_batched_tokens, help="Most tokens of a step."),
        _integer("--block-size", default=defaults.block_size, help="Tokens of a block of the KV cache."),
        _integer("--kv-cache-tokens", unset="from the free memory", help="Size of the KV cache, in tokens."),
        _flag("--no-prefix-caching", help="Compute every prompt in full, even where a cached one begins alike."),
    )


def _output_options() -> tuple[click.Option, ...]:
    return (
        _flag("--color", help="Colour tokens by provenance: drafted green, recovered yellow, bonus plain."),
        _flag(
            "--explain-speculation",
            help="At the end, say what auto chose how often, and from which figures. On standard error.",
        ),
        _flag("--json", help="One JSON object a prompt, one a line, in input order."),
        _flag("--quiet", help="Nothing but the answers: no headers, notes, progress or statistics."),
        click.Option(["verbose", "-v"], is_flag=True, help="Also print the configuration and the memory plan."),
    )


def _or(names: tuple[str, ...] | list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
