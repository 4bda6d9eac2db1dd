"""The options of `specdec verify`: their groups, defaults and help, and their values as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from specdec.cli.configure import DEFAULT_MEASURED
from specdec.cli.options import option_groups, speculation_options
from specdec.eval.verify_settings import Settings


@dataclass(frozen=True)
class VerifyOptions:
    """What the command line said, defaults filled in; names as in the options."""

    prompt: tuple[str, ...]
    prompts_file: str | None
    raw: bool
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
    seed: int
    max_tokens: int
    draws: int
    json: bool
    quiet: bool

    @property
    def settings(self) -> Settings:
        return Settings(self.temperature, self.seed, self.max_tokens, self.draws)


def verify_groups() -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`. What `generate` has too is the same here."""
    shared = option_groups()
    by_name = {option.name: option for options in shared.values() for option in options}
    return {
        "Prompts": (_prompts_file(), by_name["raw"]),
        "Model": shared["Model"],
        "Speculation": speculation_options(DEFAULT_MEASURED),
        "Checks": (by_name["temperature"], *_check_options()),
        "Output": _output_options(),
    }


def _prompts_file() -> click.Option:
    return click.Option(
        ["--prompts-file"],
        metavar="FILE",
        help="JSON lines, taken after any PROMPT; - is standard input. A line is an object with one of prompt, "
        "messages and prompt_token_ids, and perhaps raw.",
    )


def _check_options() -> tuple[click.Option, ...]:
    defaults = Settings()
    return (
        _integer("--seed", defaults.seed, "Of the samples: a run with the same seed draws the same."),
        _integer("--max-tokens", defaults.max_tokens, "Longest answer that is compared with plain decoding's."),
        _integer(
            "--draws",
            defaults.draws,
            "Samples of the test of the law. More show smaller deviations, as the square root of their number.",
        ),
    )


def _integer(name: str, default: int, help: str) -> click.Option:
    return click.Option([name], type=click.INT, metavar="N", default=default, show_default=True, help=help)


def _output_options() -> tuple[click.Option, ...]:
    return (
        click.Option(["--json"], is_flag=True, help="One JSON object instead of the lines for a person."),
        click.Option(["--quiet"], is_flag=True, help="No progress on standard error."),
    )
