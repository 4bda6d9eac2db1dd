"""`specdec bench latency`, `throughput` and `curve`: load an engine, measure, print a table or one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.bench_options import (
    Values,
    configure,
    counts,
    engine_groups,
    integer,
    names,
    number_list,
    output_options,
    task_options,
)
from specdec.cli.errors import bad_input
from specdec.cli.eval_asked import check_room
from specdec.cli.generate import BuildEngine, GroupedCommand
from specdec.cli.progress import progress_line
from specdec.cli.start import load_engine
from specdec.config import EngineConfig, calm_threads
from specdec.proposers.registry import num_nodes
from specdec.types import MAX_SPECULATIVE_TOKENS

if TYPE_CHECKING:
    from specdec.engine import Engine
    from specdec.eval.bench.texts import Text

DEFAULT_LENGTHS = "16,128,512,1024"
DEFAULT_BATCH_SIZES = "1,2,4,8,16,32,64"
DEFAULT_ROWS = "1,2,3,4,5,6,8,12,16"
SHORTEST_CONTEXT = 2
MOST_ROWS = 1 + MAX_SPECULATIVE_TOKENS

Tell = Callable[[str], None]
Measure = Callable[[Values, EngineConfig, BuildEngine, Tell], str]
"""From the options to what is printed."""


def speed_command(
    name: str, short_help: str, help: str, measure: Measure, groups: dict[str, tuple[click.Option, ...]]
) -> GroupedCommand:
    """A command that builds an engine's configuration from its options, and prints what `measure` makes of it."""

    @click.pass_context
    def callback(ctx: click.Context, /, **values: Any) -> None:
        given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        calm_threads()
        with bad_input(), telling(values["quiet"]) as tell:
            text = measure(values, configure(values, given), ctx.obj or load_engine, tell)
        click.echo(text)

    params: list[click.Parameter] = [option for options in groups.values() for option in options]
    command = GroupedCommand(name, params=params, callback=callback, short_help=short_help, help=help)
    command.groups = groups
    return command


@contextmanager
def telling(quiet: bool) -> Iterator[Tell]:
    """Where progress goes."""
    if quiet:
        yield lambda line: None
        return
    with progress_line() as tell:
        yield tell


def engine_and_text(values: Values, config: EngineConfig, build: BuildEngine, tell: Tell) -> tuple[Engine, Text]:
    """The tasks are read first: what is wrong with them is known before weights are."""
    from specdec.eval.tasks import load_tasks

    prompts = load_tasks(names(values["task"]), values["tasks_dir"])
    engine = build(config, tell)

    from specdec.eval.bench.texts import text_of

    return engine, text_of(prompts, engine.tokenizer)


def latency_text(values: Values, config: EngineConfig, build: BuildEngine, tell: Tell) -> str:
    lengths = counts("--prompt-lengths", values["prompt_lengths"])
    engine, text = engine_and_text(values, config, build, tell)

    from specdec.eval.bench.latency import measure_latency
    from specdec.eval.bench.tables import latency_table

    result = measure_latency(engine, text, lengths, values["max_tokens"], values["rounds"], tell)
    return json.dumps(asdict(result)) if values["json"] else latency_table(result)


def throughput_text(values: Values, config: EngineConfig, build: BuildEngine, tell: Tell) -> str:
    sizes = counts("--batch-sizes", values["batch_sizes"])
    check_room(config, sizes, max((num_nodes(entry) for entry in config.speculative), default=0))
    engine, text = engine_and_text(values, config, build, tell)

    from specdec.eval.bench.tables import throughput_table
    from specdec.eval.bench.throughput import measure_throughput

    result = measure_throughput(
        engine, text, sizes, values["prompt_length"], values["max_tokens"], values["rounds"], tell
    )
    return json.dumps(asdict(result)) if values["json"] else throughput_table(result)


def curve_text(values: Values, config: EngineConfig, build: BuildEngine, tell: Tell) -> str:
    rows = counts("--rows", values["rows"], MOST_ROWS)
    context = tuple((31 * i + 7) % 200 + 10 for i in range(values["context"]))

    from specdec.eval.bench.bandwidth import BandwidthProbe, memory_reader
    from specdec.eval.bench.steps import config_for_steps, measure_steps
    from specdec.eval.bench.tables import curve_table

    engine = build(config_for_steps(replace(config, max_num_seqs=1), context, max(rows)), tell)
    probe = BandwidthProbe(memory_reader(engine.runner.kernels, values["read_mib"]))
    result = measure_steps(engine, context, rows, values["rounds"], probe, tell)
    if not values["json"]:
        return curve_table(result)
    curve = [{"rows": point.num_rows, "ms": point.step_ms.median} for point in result.points]
    return json.dumps({**asdict(result), "curve": curve})


latency = speed_command(
    "latency",
    "Time to the first token and for each after it, at batch 1.",
    "Measure one greedy request at a time, by the length of its prompt: the time to its first token, and the time for "
    "each token after that, decoding plainly and with each proposer in turns. Prompts are cut out of the tasks' texts, "
    "another piece each round; answers go on after the end-of-sequence token, and so may come to repeat themselves, "
    "which proposers that copy profit from. Figures are medians, with quartiles.",
    latency_text,
    {
        **engine_groups("Model", "Speculation", "Engine"),
        "Measuring": (
            number_list("--prompt-lengths", "N[,N2]", DEFAULT_LENGTHS, "Tokens of a prompt."),
            *task_options(),
            integer("--max-tokens", 64, "Tokens of an answer.", low=2),
            integer("--rounds", 5, "Times to measure each."),
        ),
        "Output": output_options(),
    },
)

throughput = speed_command(
    "throughput",
    "Tokens a second at batch 1 to 64.",
    "Measure greedy requests that are answered together: tokens a second by batch size, decoding plainly and with each "
    "proposer in turns. decode is the rate once every prompt has its first token, total has the prompts' time in it. "
    "Prompts are cut out of the tasks' texts; answers go on after the end-of-sequence token.",
    throughput_text,
    {
        **engine_groups("Model", "Speculation", "Engine"),
        "Measuring": (
            number_list("--batch-sizes", "B[,B2]", DEFAULT_BATCH_SIZES, "Requests that are answered together."),
            integer("--prompt-length", 128, "Tokens of a prompt."),
            *task_options(),
            integer("--max-tokens", 64, "Tokens of an answer.", low=2),
            integer("--rounds", 3, "Times to measure each."),
        ),
        "Output": output_options(),
    },
)

curve = speed_command(
    "curve",
    "The time of a step over M rows, and the memory it reads a second.",
    "Measure whole steps over M rows of one sequence, that is M - 1 drafted tokens and the one before them, after a "
    "context: T(M)/T(1), the model's forward pass alone, the time outside of it, and the bytes of weights and KV that "
    "a step must read, as GB/s and as a share of what this machine reads when it does nothing else. That is measured "
    "between the rounds, with the same number of threads. The last line of --json holds "
    '"curve": [{"rows": M, "ms": t}, ...].',
    curve_text,
    {
        **engine_groups("Model", "Engine"),
        "Measuring": (
            number_list(
                "--rows", "M[,M2]", DEFAULT_ROWS, f"Rows of a step, at most {MOST_ROWS}; 1 is always measured."
            ),
            integer("--context", 256, "Tokens before the drafted ones.", low=SHORTEST_CONTEXT),
            integer("--rounds", 20, "Times to measure each."),
            integer(
                "--read-mib", 512, "Mebibytes read to measure the bandwidth: far more than caches hold.", high=65_536
            ),
        ),
        "Output": output_options(),
    },
)
