"""`specdec eval acceptance`: check everything, load once, measure, write; an evaluation that found a fault exits 1."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.errors import INTERRUPTED, REQUEST_FAILED, bad_input, say
from specdec.cli.eval_asked import TO_STANDARD_OUTPUT, Asked, what_is_asked
from specdec.cli.eval_options import AcceptanceOptions, acceptance_groups
from specdec.cli.eval_quality import quality
from specdec.cli.generate import BuildEngine, GroupedCommand, build_with_progress
from specdec.cli.progress import bar, progress_line
from specdec.cli.run import interruptible
from specdec.cli.start import load_engine
from specdec.cli.warned import proposer_warnings
from specdec.eval.baseline import Conditions, check_comparable, compare, record, write
from specdec.eval.results import FORMULAS, Result, to_json

if TYPE_CHECKING:
    from specdec.engine import Engine
    from specdec.eval.measure import Plan
    from specdec.eval.progress import Status


@click.group("eval", help="Measure how well proposers fit prompts, and what fewer bits cost.", no_args_is_help=True)
def evaluate_group() -> None:
    pass


EPILOG = """\b
Examples:
  specdec eval acceptance --proposer ngram,suffix --task chat,code
  specdec eval acceptance --draft-layers 10 -k 2,4 --temperature 0,0.7,1
  specdec eval acceptance --task spec_bench:question.jsonl --limit 0 \\
      --json result.json --html report.html
  specdec eval acceptance --baseline evals/baselines/ngram.json

\b
Exit codes: 0 all well; 1 a proposer never drafts or less than 2 % of its
first tokens are accepted, acceptance is below the baseline, an answer failed,
or the output could not be written; 2 bad input; 130 stopped by Ctrl-C (what
was measured by then is reported and written).

\b
Figures, as the table, the JSON and the report name them:
"""


def _formulas() -> str:
    lines = []
    for name, formula in FORMULAS.items():
        lines += [f"  {name}", *textwrap.wrap(formula, width=74, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(lines)


def _command() -> GroupedCommand:
    groups = acceptance_groups()
    command = GroupedCommand(
        "acceptance",
        params=[option for options in groups.values() for option in options],
        callback=_callback,
        short_help="Acceptance and speed of proposers against plain decoding.",
        help="Run each proposer at each draft length and temperature against plain decoding of the same engine, in one "
        "process and on the same prompts: acceptance on all of them, several at once, and times on a few, proposers "
        "and plain decoding in turns. Greedy and coupled answers are compared with plain decoding's token by token.",
        epilog=EPILOG + _formulas(),
    )
    command.groups = groups
    return command


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    ctx.exit(run_acceptance(AcceptanceOptions(**values), given, ctx.obj or load_engine, command_line(ctx, given)))


def command_line(ctx: click.Context, given: set[str]) -> str:
    """The command as it would be typed, its options in the order of the help, without those of where to write."""
    assert isinstance(ctx.command, GroupedCommand)
    words = ctx.command_path.split()
    for option in ctx.command.params:
        if option.name in given and option not in ctx.command.groups["Output"]:
            value = ctx.params[option.name]
            name = max(option.opts, key=len)
            values = value if isinstance(value, tuple) else (value,)
            words += [name] if value is True else [word for each in values for word in (name, str(each))]
    return shlex.join(words)


def run_acceptance(options: AcceptanceOptions, given: set[str], build_engine: BuildEngine, command: str) -> int:
    """The whole command; returns the exit code."""
    from specdec.eval.origin import load_average
    from specdec.eval.summary import evaluate

    load = load_average()
    with bad_input():
        asked = what_is_asked(options, given)
        engine = build_with_progress(asked.config, build_engine, quiet=options.quiet)
        plan = _plan(engine, asked, options)
    if plan.skipped and not options.quiet:
        say(f"note: {len(plan.skipped)} prompts are too long for {options.max_tokens} tokens after them; left out")
    with proposer_warnings(hold=True), _progress(options.quiet) as show, interruptible() as stopped:
        result = evaluate(engine, plan, command, load=load, show=show, stopped=stopped)
    if asked.baseline is not None and not result.interrupted:
        result = replace(result, regressions=compare(asked.baseline, result))
    return _conclude(result, _write(result, options))


def _plan(engine: Engine, asked: Asked, options: AcceptanceOptions) -> Plan:
    from specdec.eval.measure import Plan, Variant, prepare

    prompts, ids, skipped = prepare(engine, asked.prompts, asked.limit, options.max_tokens)
    if asked.baseline is not None:
        counts = Counter(prompt.task for prompt in prompts)
        config = engine.config
        conditions = Conditions(config.model, config.verifier, options.max_tokens, asked.limit, options.seed)
        check_comparable(asked.baseline, conditions, counts, _keys(asked))
    return Plan(
        prompts=tuple(prompts),
        token_ids=tuple(ids),
        variants=tuple(Variant(*variant) for variant in asked.variants),
        temperatures=asked.temperatures,
        max_tokens=options.max_tokens,
        seed=options.seed,
        timing_prompts=options.timing_prompts,
        batch_sizes=asked.batch_sizes,
        concurrency=asked.concurrency,
        limit=asked.limit,
        skipped=tuple(skipped),
    )


def _keys(asked: Asked) -> list[tuple[str, int, float]]:
    return [(*variant, temperature) for variant in asked.variants for temperature in asked.temperatures]


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Status], None]]:
    if quiet:
        yield lambda status: None
        return
    with progress_line() as tell:
        yield lambda status: tell(_status_text(status))


def _status_text(status: Status) -> str:
    left = "" if status.seconds_left is None else f", about {_minutes(status.seconds_left)} left"
    return (
        f"{bar(status.fraction)} {status.label}: {status.num_done} of {status.num_answers} answers, "
        f"{status.tokens_per_second:.0f} tok/s{left}"
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _write(result: Result, options: AcceptanceOptions) -> list[str]:
    """The table or the JSON on standard output, and the files that were asked for; what could not be written."""
    from specdec.eval.table import table

    as_json = json.dumps(to_json(result), indent=1)
    click.echo(as_json if options.json == TO_STANDARD_OUTPUT else table(result))
    files: dict[Path, Callable[[Path], object]] = {}
    if options.json is not None and options.json != TO_STANDARD_OUTPUT:
        files[options.json] = lambda path: path.write_text(as_json + "\n", "utf-8")
    if options.html is not None:
        from specdec.eval.report import render

        files[options.html] = lambda path: path.write_text(render(result), "utf-8")
    if options.record_baseline is not None and not result.interrupted and not result.failures:
        files[options.record_baseline] = lambda path: write(record(result), path)
    return [fault for path, save in files.items() if (fault := _fault_of(path, save)) is not None]


def _fault_of(path: Path, save: Callable[[Path], object]) -> str | None:
    """Save a file; why that did not succeed."""
    try:
        save(path)
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}"
    return None


def _conclude(result: Result, unwritten: Sequence[str]) -> int:
    """Say what is wrong; the exit code."""
    faults = [
        *(f"error: {failure}" for failure in result.failures),
        *(f"error: {run.alarm}" for run in result.runs if run.alarm is not None),
        *(f"error: below the baseline: {regression}" for regression in result.regressions),
        *(f"error: {fault}" for fault in unwritten),
    ]
    for fault in faults:
        say(fault)
    if result.interrupted:
        say("interrupted; what was measured by then is above, and no baseline was compared or recorded")
        return INTERRUPTED
    return REQUEST_FAILED if faults else 0


acceptance = _command()
evaluate_group.add_command(acceptance)
evaluate_group.add_command(quality)
