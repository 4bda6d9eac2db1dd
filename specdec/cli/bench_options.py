"""What the commands of `specdec bench` that load an engine share: options of `generate`, and lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from specdec.cli.configure import build_config, stated_settings
from specdec.cli.options import option_groups
from specdec.config import EngineConfig

Values = Mapping[str, Any]
"""What the command line said, by the option's name."""


def engine_groups(*headings: str) -> dict[str, tuple[click.Option, ...]]:
    """Groups of the options of `specdec generate`, the same here."""
    groups = option_groups()
    return {heading: groups[heading] for heading in headings}


def configure(values: Values, given: set[str]) -> EngineConfig:
    """The engine's configuration as `generate` would build it. `given` names the options that were stated.

    Options that a command leaves out are as if nobody had stated them; without those of speculation, nothing drafts.
    """
    own = {field.name for field in fields(EngineConfig)}
    settings = {name: values[name] for name in values if name in given and name in own}
    if values.get("no_prefix_caching"):
        settings["enable_prefix_caching"] = False
    if "proposer" not in values:
        return build_config(
            file=values["config"],
            settings=settings,
            proposer="none",
            num_speculative_tokens=None,
            proposer_settings={},
            speculative_json=None,
        )
    return build_config(
        file=values["config"],
        settings=settings,
        proposer=values["proposer"] if "proposer" in given else None,
        num_speculative_tokens=values["num_speculative_tokens"] if "num_speculative_tokens" in given else None,
        proposer_settings=stated_settings(SimpleNamespace(**values)),
        speculative_json=values["speculative_config"],
    )


class _Minutes(click.FloatRange):
    """A number that is none is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        minutes = super().convert(value, param, ctx)
        if not math.isfinite(minutes):
            self.fail(f"{value!r} is no number of minutes.", param, ctx)
        return minutes


def stop_after(help: str) -> click.Option:
    """--stop-after, in minutes."""
    return click.Option(["--stop-after"], type=_Minutes(min=0, min_open=True), metavar="MINUTES", help=help)


def counts(option: str, text: str, most: int | None = None) -> tuple[int, ...]:
    """Positive integers with commas between them, each once; ValueError in one line."""
    try:
        numbers = tuple(dict.fromkeys(int(entry) for entry in text.split(",")))
    except ValueError:
        raise ValueError(f"{option} must be integers with commas between them; got {text!r}") from None
    for number in numbers:
        if number < 1 or (most is not None and number > most):
            wanted = "at least 1" if most is None else f"between 1 and {most}"
            raise ValueError(f"{option} must be {wanted}; got {number}")
    return numbers


def task_options() -> tuple[click.Option, ...]:
    """Where the prompts' text comes from."""
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    return (
        number_list(
            "--task",
            "T[,T2]",
            "all",
            "The tasks whose prompts are the text: as for `specdec eval acceptance`.",
        ),
        click.Option(
            ["--tasks-dir"], type=folder, metavar="DIR", help="Another folder of tasks, a file NAME.jsonl each."
        ),
    )


def names(text: str) -> Sequence[str]:
    """The entries of a list with commas."""
    return [entry.strip() for entry in text.split(",")]


def number_list(name: str, metavar: str, default: str, help: str) -> click.Option:
    return click.Option([name], metavar=metavar, default=default, show_default=True, help=help)


def integer(name: str, default: int, help: str, low: int = 1, high: int | None = None) -> click.Option:
    kind = click.IntRange(min=low, max=high)
    return click.Option([name], type=kind, metavar="N", default=default, show_default=True, help=help)


def flag(name: str, help: str) -> click.Option:
    return click.Option([name], is_flag=True, help=help)


def output_options() -> tuple[click.Option, ...]:
    return (
        flag("--json", "One JSON object on one line instead of the table."),
        flag("--quiet", "No progress on standard error."),
    )
