"""`specdec eval quality`: read the texts, load one precision after another, and print how far each is from float32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.bench_options import configure, engine_groups, integer, names, number_list, task_options
from specdec.cli.bench_speed import telling
from specdec.cli.errors import INTERRUPTED, REQUEST_FAILED, bad_input, say
from specdec.cli.eval_asked import TO_STANDARD_OUTPUT, check_writable
from specdec.cli.generate import BuildEngine, GroupedCommand, Progress
from specdec.cli.run import interruptible
from specdec.cli.start import load_engine
from specdec.config import EngineConfig, calm_threads
from specdec.eval.pieces import cut, read_text
from specdec.eval.precisions import CODES, DEFAULT, Precision, parse_precisions
from specdec.eval.prompts import choose
from specdec.eval.tasks import load_tasks
from specdec.models.hub import resolve

if TYPE_CHECKING:
    from specdec.eval.quality import QualityResult

DEFAULT_CONTEXT = 512
DEFAULT_POSITIONS = 4096
DEFAULT_LIMIT = 2
OF_THE_PRECISION = ("dtype", "quantization", "kv_cache_dtype")

EPILOG = """\b
Examples:
  specdec eval quality
  specdec eval quality --precision bfloat16,int4,int4/int8 --text book.txt
  specdec eval quality --model my-model --threads 1 --json -

\b
One model is in memory at a time; beside it there are the float32 model's
output matrix and its last hidden states, --max-positions times the hidden
size times 4 bytes.

\b
Exit codes: 0 all well; 1 a precision could not be measured, or the output
could not be written; 2 bad input; 130 stopped by Ctrl-C (what was measured by
then is printed).
"""


@dataclass(frozen=True)
class Asked:
    """What the options ask for."""

    config: EngineConfig
    precisions: tuple[Precision, ...]
    texts: tuple[str, ...]
    context: int
    max_positions: int


def _command() -> GroupedCommand:
    groups = quality_groups()
    command = GroupedCommand(
        "quality",
        params=[option for options in groups.values() for option in options],
        callback=_callback,
        short_help="What weights and a KV cache of fewer bits cost.",
        help="Read texts with the model in float32 and in each precision, through this engine's own kernels and cache: "
        "bytes of the weights, perplexity, and how far the laws of the next token are from float32's. A configuration "
        "file's dtype, quantization and kv_cache_dtype give way to --precision.",
        epilog=EPILOG,
    )
    command.groups = groups
    return command


def quality_groups() -> dict[str, tuple[click.Option, ...]]:
    """Heading -> options, in the order of `--help`."""
    model = engine_groups("Model")["Model"]
    text = click.Path(exists=True, dir_okay=False, path_type=Path)
    output = click.Path(dir_okay=False, path_type=Path)
    return {
        "Model": tuple(option for option in model if option.name not in OF_THE_PRECISION),
        "Measuring": (
            number_list(
                "--precision",
                "P[,P2]",
                ",".join(precision.name for precision in DEFAULT),
                "What to measure: float32, bfloat16, float16, int8, int4 or gguf (a .gguf file's own codes; by default "
                "only of such a file), and after a slash the KV cache's type, if not the usual one.",
            ),
            click.Option(
                ["--text"],
                type=text,
                metavar="FILE",
                multiple=True,
                help="A text to read, plain UTF-8; may be repeated. Without one, the prompts of the tasks.",
            ),
            *task_options(),
            integer("--limit", DEFAULT_LIMIT, "Prompts of each task, evenly over its categories; 0: all.", low=0),
            integer("--context", DEFAULT_CONTEXT, "Longest piece, in tokens; each is read by itself.", low=2),
            integer("--max-positions", DEFAULT_POSITIONS, "Most tokens to predict, evenly over the texts."),
        ),
        "Output": (
            click.Option(
                ["--json"],
                type=output,
                metavar="FILE",
                help="Write all figures as JSON; - writes them to standard output in place of the table.",
            ),
            click.Option(["--quiet"], is_flag=True, help="Nothing but the result: no progress, no notes."),
        ),
    }


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    ctx.exit(run_quality(values, given, ctx.obj or load_engine))


def run_quality(values: dict[str, Any], given: set[str], build: BuildEngine) -> int:
    """The whole command; returns the exit code."""
    calm_threads()
    with bad_input():
        check_writable("json", values["json"])
        with telling(values["quiet"]) as tell, interruptible() as stopped:
            asked = _what_is_asked(values, given, tell)

            from specdec.eval.driving import Watch
            from specdec.eval.quality import measure_quality

            result = measure_quality(
                lambda config: build(config, tell),
                asked.config,
                lambda tokenizer: cut(asked.texts, tokenizer, asked.context, asked.max_positions),
                asked.precisions,
                asked.context,
                Watch(tell, stopped),
            )
    _write(result, values["json"])
    for failure in result.failures:
        say(f"error: {failure}")
    if result.interrupted:
        say("interrupted; what was measured by then is above")
        return INTERRUPTED
    return REQUEST_FAILED if result.failures else 0


def _what_is_asked(values: dict[str, Any], given: set[str], tell: Progress) -> Asked:
    """ValueError in one line for whatever is wrong."""
    config = configure(values, given)
    precisions: Sequence[Precision] = parse_precisions(values["precision"])
    texts = [read_text(path) for path in values["text"]]
    if not texts:
        prompts = choose(load_tasks(names(values["task"]), values["tasks_dir"]), values["limit"] or None)
        texts = [prompt.text for prompt in prompts]
    elif other := given & {"task", "tasks_dir", "limit"}:
        raise ValueError(f"--text and --{min(other).replace('_', '-')} contradict each other; give one of them")
    if resolve(config.model, tell).suffix.lower() != ".gguf":
        if "precision" in given and any(precision.weights == CODES for precision in precisions):
            raise ValueError(f"the precision {CODES!r} keeps the codes of a .gguf file; this model is not one")
        precisions = [precision for precision in precisions if precision.weights != CODES]
    return Asked(config, tuple(precisions), tuple(texts), values["context"], values["max_positions"])


def _write(result: QualityResult, path: Path | None) -> None:
    """The table or the JSON on standard output, and the file that was asked for."""
    from specdec.eval.quality_table import quality_table

    as_json = json.dumps(asdict(result), indent=1)
    click.echo(as_json if path == TO_STANDARD_OUTPUT else quality_table(result))
    if path is not None and path != TO_STANDARD_OUTPUT:
        path.write_text(as_json + "\n", "utf-8")


quality = _command()
