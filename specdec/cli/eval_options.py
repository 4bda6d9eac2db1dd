"""The options of `specdec eval acceptance`: their groups, defaults and help, and their values as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from specdec.cli.configure import DEFAULT_MEASURED, DEFAULT_NUM_SPECULATIVE_TOKENS
from specdec.cli.options import option_groups

DEFAULT_TASK = "all"
DEFAULT_LIMIT = 5
DEFAULT_MAX_TOKENS = 128
DEFAULT_TIMING_PROMPTS = 8
DEFAULT_BATCH_SIZES = "1,4,16"
DEFAULT_CONCURRENCY = 16


@dataclass(frozen=True)
class AcceptanceOptions:
    """What the command line said, defaults filled in; names as in the options. Lists are still texts with commas."""

    model: str
    config: Path | None
    dtype: str
    quantization: str
    kv_cache_dtype: str
    num_threads: int | None
    kernels: str
    proposer: str
    num_speculative_tokens: str
    draft_model: str | None
    draft_layers: int | None
    tree: str | None
    tree_nodes: int | None
    tree_width: int | None
    verifier: str
    speculative_config: str | None
    task: str
    tasks_dir: Path | None
    limit: int
    temperature: str
    max_tokens: int
    seed: int
    concurrency: int
    oracle: bool
    timing_prompts: int
    batch_sizes: str
    json: Path | None
    html: Path | None
    baseline: Path | None
    record_baseline: Path | None
    quiet: bool


def acceptance_groups() -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`. What `generate` has too is the same here."""
    shared = {option.name: option for options in option_groups().values() for option in options}
    return {
        "Model": tuple(option for option in option_groups()["Model"] if option.name != "max_model_len"),
        "Speculation": (
            _list(
                "--proposer",
                metavar="P[,P2]",
                default=DEFAULT_MEASURED,
                help="Proposers to measure; the default gives way to a configuration's own. Plain decoding is always "
                "measured.",
            ),
            _list(
                "--num-speculative-tokens",
                "-k",
                metavar="K[,K2]",
                default=str(DEFAULT_NUM_SPECULATIVE_TOKENS),
                help="Longest drafts to measure each proposer with; the default gives way to a configuration's own.",
            ),
            shared["draft_model"],
            shared["draft_layers"],
            shared["tree"],
            shared["tree_nodes"],
            shared["tree_width"],
            shared["verifier"],
            shared["speculative_config"],
        ),
        "Prompts": _prompt_options(),
        "Acceptance": _acceptance_options(),
        "Times": (
            _integer("--timing-prompts", default=DEFAULT_TIMING_PROMPTS, help="Prompts to take times on; 0: no times."),
            _list("--batch-sizes", metavar="B[,B2]", default=DEFAULT_BATCH_SIZES, help="Prompts decoded together."),
        ),
        "Output": _output_options(),
    }


def _prompt_options() -> tuple[click.Option, ...]:
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    return (
        _list(
            "--task",
            metavar="T[,T2]",
            default=DEFAULT_TASK,
            help="Built-in tasks by name, all of them, or prompts of your own: file:PATH, spec_bench:PATH, "
            "humaneval:PATH, gsm8k:PATH or sharegpt:PATH. HumanEval's prompts are completed as they are, without the "
            "chat template, to the function's end.",
        ),
        click.Option(
            ["--tasks-dir"], type=folder, metavar="DIR", help="Another folder of tasks, a file NAME.jsonl each."
        ),
        _integer("--limit", default=DEFAULT_LIMIT, help="Prompts of each task, evenly over its categories; 0: all."),
        _list("--temperature", metavar="X[,X2]", default="0", help="Temperatures to measure at; 0 is greedy."),
        _integer("--max-tokens", default=DEFAULT_MAX_TOKENS, help="Longest answer."),
        _integer("--seed", default=0, help="Seed of the samples and of the bootstrap."),
    )


def _acceptance_options() -> tuple[click.Option, ...]:
    return (
        _integer(
            "--concurrency",
            default=DEFAULT_CONCURRENCY,
            help="Prompts answered at once where no times are taken; the default gives way to what a step holds. "
            "Acceptance depends on it where the proposer is auto, which drafts less the fuller a step is, and where "
            "one learns from past answers, as suffix does; 1 answers one prompt after the other.",
        ),
        click.Option(
            ["--oracle"],
            is_flag=True,
            help="At temperature 0, also record what each proposer would have drafted at every output token, in passes "
            "of their own, and say how few steps the best choice among them takes: auto is compared with its members. "
            "Proposers that learn from past answers have learned from those of that pass, as in the acceptance pass "
            "(exactly so with --concurrency 1); recycling also learns from rejected drafts, which a recording has not, "
            "so that its figures are a little low.",
        ),
    )


def _output_options() -> tuple[click.Option, ...]:
    return (
        _file("--json", help="Write the whole result as JSON; - writes it to standard output in place of the table."),
        _file("--html", help="Write a report as one HTML file."),
        _file(
            "--baseline",
            help="Compare with a recorded baseline: acceptance below it, by more than the interval over prompts "
            "explains, is an error. Better is never one.",
            exists=True,
        ),
        _file("--record-baseline", help="Write the acceptance, with command, commit, versions and machine."),
        click.Option(["--quiet"], is_flag=True, help="Nothing but the result: no progress, no notes."),
    )


def _list(*names: str, metavar: str, default: str, help: str) -> click.Option:
    return click.Option(names, metavar=metavar, default=default, show_default=True, help=help)


def _integer(*names: str, default: int, help: str) -> click.Option:
    return click.Option(names, type=click.INT, metavar="N", default=default, show_default=True, help=help)


def _file(*names: str, help: str, exists: bool = False) -> click.Option:
    kind = click.Path(exists=exists, dir_okay=False, path_type=Path)
    return click.Option(names, type=kind, metavar="FILE", help=help)
