"""`specdec train data`: read and check everything, load once, let the model answer, keep what is worth it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.bench_speed import telling
from specdec.cli.configure import build_config, stated_settings
from specdec.cli.errors import INTERRUPTED, bad_input, say
from specdec.cli.eval import command_line
from specdec.cli.generate import GroupedCommand
from specdec.cli.run import interruptible
from specdec.cli.start import import_engine
from specdec.cli.train_data_options import (
    DEFAULT_PROPOSER,
    USUAL_SEQUENCE,
    DataOptions,
    data_groups,
    parse_layers,
    parse_numbers,
    parse_size,
)
from specdec.cli.warned import proposer_warnings
from specdec.config import EngineConfig

if TYPE_CHECKING:
    from specdec.train.data.filters import Exclusion
    from specdec.train.data.make import Made, Maker
    from specdec.train.data.plan import Mix, Plan
    from specdec.train.data.prompts import Source
    from specdec.train.data.target import Target


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C and a request to terminate only be noted, so that what is finished is kept; a second one is not."""
    terminated = threading.Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        terminated.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, note) if ours else None
    try:
        with interruptible() as interrupted:
            yield lambda: terminated.is_set() or interrupted()
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


EPILOG = """\b
DIR holds data.json (what was run, and what came of it), shard-NNNNN.safetensors
and, with --cache-states, states-NNNNN.bin. The same command goes on where it
was stopped or killed. A job's tokens depend on the model, the prompt, the
sample's number and the seed alone, whatever drafts.

\b
Exit codes: 0 all well, a bound that was met included; 2 bad input; 130
stopped by Ctrl-C or told to terminate, what was finished being kept.
"""


def _command() -> GroupedCommand:
    groups = data_groups()
    command = GroupedCommand(
        "data",
        params=[option for options in groups.values() for option in options],
        callback=_callback,
        short_help="Let the model answer prompts, and keep that to train on.",
        help="Let the model answer prompts in one ever full batch, and keep its tokens in shards. Prompts come from "
        "files, from documents and from the model itself. Repeated prompts and answers, empty answers and loops are "
        "dropped and counted.",
        epilog=EPILOG,
    )
    command.groups = groups
    return command


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    ctx.exit(run_data(DataOptions(**values), given, command_line(ctx, given)))


def run_data(options: DataOptions, given: set[str], command: str) -> int:
    """The whole command; returns the exit code."""
    with bad_input(), proposer_warnings(hold=True), telling(options.quiet) as tell, stoppable() as stopped:
        config = _config(options, given)
        budget = parse_size("--cache-states", options.cache_states)
        sources, exclusion, mix = _sources(options), _exclusion(options), _mix(options)
        import_engine()
        from specdec.train.data.make import Watch
        from specdec.train.data.plan import make_plan
        from specdec.train.data.target import load_target

        plan = make_plan(sources, exclusion, mix, options.samples_per_prompt, options.seed, options.most_per_source)
        target = load_target(
            config,
            aux_layers=None if options.aux_layers is None else parse_layers(options.aux_layers),
            keeps_states=budget > 0,
            progress=tell,
        )
        maker = _maker(options, plan, target, sources, exclusion, budget, command)
        maker.watch = Watch(tell, stopped)
        made = maker.make()
    _report(made, options, plan)
    return INTERRUPTED if made.ended == "stopped" else 0


def _config(options: DataOptions, given: set[str]) -> EngineConfig:
    own = {field.name for field in fields(EngineConfig)}
    # What verifies is no option: only coupled verification gives the same tokens whatever drafts.
    settings = {name: getattr(options, name) for name in given & own - {"seed"}} | {"verifier": "coupled"}
    if options.config is None:
        settings |= {"dtype": options.dtype, "max_model_len": options.max_model_len}
    config = build_config(
        file=options.config,
        settings=settings,
        proposer=options.proposer if "proposer" in given else None,
        num_speculative_tokens=options.num_speculative_tokens if "num_speculative_tokens" in given else None,
        proposer_settings=stated_settings(options),
        speculative_json=options.speculative_config,
        default_proposer=DEFAULT_PROPOSER,
    )
    if config.max_model_len is None:
        config = replace(config, max_model_len=options.max_model_len)
    if config.kv_cache_tokens is None:
        longest = config.max_model_len or options.max_model_len
        config = replace(config, kv_cache_tokens=max(longest, USUAL_SEQUENCE * config.max_num_seqs))
    # A cached position is not computed, and so leaves no state.
    keeps = parse_size("--cache-states", options.cache_states) > 0
    caches = config.enable_prefix_caching and not options.no_prefix_caching
    return replace(config, enable_prefix_caching=caches and not keeps)


def _sources(options: DataOptions) -> list[Source]:
    from specdec.train.data.documents import read_documents
    from specdec.train.data.prompts import read_prompts, self_written

    if options.raw and (options.self_written or options.documents):
        raise ValueError("--raw is for --prompts alone: what the model writes, and documents, need the chat template")
    sources = [read_prompts(path, raw=options.raw) for path in options.prompts]
    sources += [read_documents(path, options.seed) for path in options.documents]
    if options.self_written:
        sources.append(self_written(options.self_written))
    if not sources:
        raise ValueError("there is nothing to answer: give --prompts FILE, --documents PATH or --self-written N")
    return sources


def _exclusion(options: DataOptions) -> Exclusion:
    from specdec.train.data.filters import Exclusion
    from specdec.train.data.prompts import texts_of

    return Exclusion((text for path in options.exclude for text in texts_of(path)), options.exclude_words)


def _mix(options: DataOptions) -> Mix:
    from specdec.train.data.plan import Mix

    temperatures = parse_numbers("--temperatures", options.temperatures)
    weights = parse_numbers("--weights", options.weights) if options.weights else (1.0,) * len(temperatures)
    return Mix(temperatures, weights)


def _maker(
    options: DataOptions,
    plan: Plan,
    target: Target,
    sources: list[Source],
    exclusion: Exclusion,
    budget: int,
    command: str,
) -> Maker:
    from specdec.train.data.conversation import Limits
    from specdec.train.data.make import Bounds, Maker

    return Maker(
        directory=options.output,
        plan=plan,
        target=target,
        limits=Limits(options.max_tokens, options.max_tokens, target.engine.max_model_len),
        exclusion=exclusion,
        shard_jobs=options.shard_jobs,
        identity=_identity(options, target, sources, exclusion, plan),
        run=_run_facts(target, command),
        bounds=Bounds(
            None if options.stop_after is None else 60 * options.stop_after, options.max_total_tokens, budget
        ),
    )


def _identity(
    options: DataOptions, target: Target, sources: list[Source], exclusion: Exclusion, plan: Plan
) -> dict[str, Any]:
    """All that decides over the samples."""
    config = target.engine.config
    return {
        "model": {"name": config.model, "sha256": target.sha256, "vocab_size": target.vocab_size},
        "precision": {name: getattr(config, name) for name in ("dtype", "quantization", "kv_cache_dtype", "kernels")},
        "max_model_len": target.engine.max_model_len,
        "sampling": {
            "temperatures": list(parse_numbers("--temperatures", options.temperatures)),
            "weights": list(_mix(options).weights),
            "samples_per_prompt": options.samples_per_prompt,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
            "verifier": "coupled",
        },
        "raw": options.raw,
        "sources": [
            {"name": Path(source.name).name, "sha256": source.sha256, "prompts": len(source.prompts)}
            for source in sources
        ],
        "excluded": {"files": [_file(path) for path in options.exclude], "words": options.exclude_words},
        "jobs": {"count": len(plan.jobs), "in_a_shard": options.shard_jobs},
    }


def _file(path: Path) -> dict[str, str]:
    from specdec.train.data.prompts import read_file, sha256

    return {"name": path.name, "sha256": sha256(read_file(path))}


def _run_facts(target: Target, command: str) -> dict[str, Any]:
    """What is told of a run and changes no sample."""
    from specdec.eval.origin import describe, load_average

    config = target.engine.config
    origin = asdict(describe(command, load_average(), target.engine.runner.kernels.num_threads()))
    engine = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "speculative"}
    return {**origin, "engine": engine, "proposers": [entry.method for entry in config.speculative] or ["none"]}


def _report(made: Made, options: DataOptions, plan: Plan) -> None:
    from specdec.step.memory import format_bytes
    from specdec.train.data.record import counts_of

    counts = counts_of(made.totals, plan.left_out)
    speed = made.answer_tokens / made.seconds if made.seconds else 0.0
    if options.json:
        told = {"ended": made.ended, "jobs_done": made.num_jobs_done, "jobs": len(plan.jobs), "seconds": made.seconds}
        click.echo(json.dumps({**told, "generated": made.answer_tokens, "tokens_per_s": speed, "counts": counts}))
        return
    ended = {
        "complete": "all prompts are answered",
        "stopped": "stopped; the same command goes on",
        "time": "the time is over; the same command goes on",
        "tokens": "there are as many tokens as were asked for",
    }[made.ended]
    reasons = {"too long": f"too long for --max-model-len {options.max_model_len}"}
    dropped = ", ".join(f"{n:,} {reasons.get(reason, reason)}" for reason, n in made.totals.dropped.items())
    left_out = ", ".join(f"{number:,} {reason}" for reason, number in plan.left_out.items())
    click.echo(
        f"{made.totals.samples:,} samples, {made.totals.answer_tokens:,} answer tokens in {options.output}; {ended}\n"
        f"this run: {made.answer_tokens:,} tokens in {made.seconds:.1f} s, {speed:,.0f} tokens/s\n"
        f"dropped: {dropped or 'nothing'}\nleft out before: {left_out}"
    )
    if parse_size("--cache-states", options.cache_states):
        click.echo(f"states kept: {format_bytes(made.totals.states_bytes)} of at most {options.cache_states}")
    if made.num_jobs_done > made.totals.samples and made.ended != "complete":
        say(f"{made.num_jobs_done:,} of {len(plan.jobs):,} jobs are done")


data = _command()
