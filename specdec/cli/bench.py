"""`specdec bench`: measurements of this machine, printed beside what they should be."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from specdec.config import calm_threads


@click.group(help="Measure the engine on this machine.", no_args_is_help=True)
def bench() -> None:
    pass


@bench.command(
    short_help="The time of a step outside the model.",
    help="Measure a step outside the model (schedule, batch, sampling pipeline, verification, commit, proposing and "
    "outputs), greedy with k = 4 and a vocabulary of 49,152, around a model that does no work; and each "
    "proposer without a model alone, by rows and the length of the context. Times are medians.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def overhead(as_json: bool) -> None:
    calm_threads()
    from specdec.cli.overhead import measure_overhead, report

    result = measure_overhead()
    click.echo(json.dumps(asdict(result)) if as_json else report(result))
