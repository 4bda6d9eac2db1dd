"""`specdec bench`: measurements of this machine, printed beside what they should be."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from specdec.cli.bench_peers import peers
from specdec.cli.bench_speed import curve, latency, throughput
from specdec.cli.errors import bad_input
from specdec.cli.progress import progress_line
from specdec.cli.start import import_engine
from specdec.config import DEFAULT_MODEL
from specdec.types import MAX_DRAFT_NODES


@click.group(help="Measure the engine on this machine.", no_args_is_help=True)
def bench() -> None:
    pass


@bench.command(
    short_help="The time of a step outside the model.",
    help="Measure a step outside the model (schedule, batch, sampling pipeline, verification, commit, proposing and "
    "outputs), greedy with k = 4 and a vocabulary of 49,152, around a model that does no work; and each "
    "proposer without a model alone, by rows and the length of the context; and what a draft head costs outside "
    "itself. Times are medians.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def overhead(as_json: bool) -> None:
    import_engine()
    from specdec.cli.overhead import measure_overhead, report

    result = measure_overhead()
    click.echo(json.dumps(asdict(result)) if as_json else report(result))


@bench.command(
    short_help="The time of verifying a tree beside that of a chain.",
    help="Measure a verification step of a model, with a draft tree and with a chain of as many nodes, at batch 1 and "
    "4, greedy and sampled (rejection). Times are medians; chains and trees take turns.",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="As for specdec generate.")
@click.option(
    "--tree-nodes", type=click.IntRange(1, MAX_DRAFT_NODES), default=16, show_default=True, help="Nodes of a draft."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def tree(model: str, tree_nodes: int, as_json: bool) -> None:
    import_engine()
    from specdec.cli.tree_overhead import measure_trees, report

    with bad_input(), progress_line() as tell:
        result = measure_trees(model, tree_nodes, tell)
    click.echo(json.dumps(asdict(result)) if as_json else report(result))


for command in (latency, throughput, curve, peers):
    bench.add_command(command)
