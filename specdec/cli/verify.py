"""`specdec verify`: check everything, load once, run the checks, and print one verdict."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.configure import DEFAULT_MEASURED, build_config, stated_settings
from specdec.cli.errors import INTERRUPTED, REQUEST_FAILED, bad_input, say
from specdec.cli.generate import ENGINE_OPTIONS, BuildEngine, GroupedCommand
from specdec.cli.progress import progress_line
from specdec.cli.prompts import Prompt, engine_prompt, from_argument, from_file, without_template
from specdec.cli.run import interruptible
from specdec.cli.start import import_engine
from specdec.cli.verify_options import VerifyOptions, verify_groups
from specdec.cli.warned import proposer_warnings
from specdec.config import EngineConfig
from specdec.eval.checks import Check, Report
from specdec.eval.verify_settings import check_settings
from specdec.proposers.auto import auto_entry, member_names
from specdec.types import SamplingParams

if TYPE_CHECKING:
    from specdec.engine import Engine

DEFAULT_PROMPTS = (
    "Repeat this sentence three times: the small grey cat sleeps on the warm red roof.",
    "Count from one to twenty in words.",
    "Write a Python function that returns the larger of two numbers.",
    "Why is the sky blue?",
)
"""Some that copying proposers draft for, and some that they do not."""

EPILOG = """\b
Examples:
  specdec verify --proposer ngram
  specdec verify --draft-layers 10 --temperature 1
  specdec verify --proposer suffix --temperature 0.7 --verifier coupled
  specdec verify --model my-model --prompts-file prompts.jsonl --draws 10000

\b
What is checked:
  temperature 0, or verifier coupled: every token is plain decoding's, all
    prompts in one batch, each alone, and where memory is too small. A first
    difference is a tie where the two tokens' scores are nearer to the best
    one than 4 times the measured drift, the largest difference between the
    scores of a position as verified and as plainly decoded.
  verifiers rejection and block: the law of the tokens after the first, by
    chi-square tests against the model's own probabilities. A lossless engine
    fails at most once in 1,000 runs. What the draws can show is printed, as a
    distance between the laws of the test's cells: these pool tokens and
    prompts, so that the laws of the tokens themselves may be further apart. Also
    that drafted tokens have the law that is reported for them, that they are kept
    as often as they should be, and the laws of recovered and bonus tokens.
  proposer auto: chooses by chance here, from --seed, and not by what pays on
    this machine, so that all its members draft at all lengths. The check
    choices tells how often each did.
  always: cached state after rejections, preemptions and prefix hits is that
    of a fresh computation, the model's and the proposer's own; every draft
    was verified where it was proposed for.
  The last line names what was too rare to judge or never happened.

\b
Exit codes: 0 verified; 1 not lossless, or nothing was drafted that could have
been verified, or the output could not be written; 2 bad input; 130 stopped by
Ctrl-C (what was found by then is printed).
"""

Progress = Callable[[str], None]


def _command() -> GroupedCommand:
    groups = verify_groups()
    argument = click.Argument(["prompt"], nargs=-1, metavar="[PROMPT]...")
    command = GroupedCommand(
        "verify",
        params=[argument, *(option for options in groups.values() for option in options)],
        callback=_callback,
        short_help="Show that drafts change nothing, on your model and prompts.",
        help="Check on this model and these PROMPTs that speculation loses nothing against plain decoding of the same "
        "engine. Without a prompt a few built-in ones are taken. The last line is the verdict.",
        epilog=EPILOG,
    )
    command.groups = groups
    return command


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    ctx.exit(run_verify(VerifyOptions(**values), given, ctx.obj))


def run_verify(options: VerifyOptions, given: set[str], build_engine: BuildEngine | None) -> int:
    """The whole command; returns the exit code. `given` names the options that were stated, not defaulted."""
    start = time.perf_counter()
    with bad_input():
        config = _config(options, given)
        check_settings(config, options.settings)
        prompts = _prompts(options)
    progress = nullcontext(_silent) if options.quiet else progress_line()
    with proposer_warnings(hold=True), progress as tell, interruptible() as stopped:
        report = _verify(options, config, prompts, build_engine, tell, stopped)
    _write(report, options, time.perf_counter() - start)
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.is_verified else REQUEST_FAILED


def _silent(line: str) -> None:
    pass


def _config(options: VerifyOptions, given: set[str]) -> EngineConfig:
    """Of the first proposer alone, and of those that it chooses from: it is the one that is verified."""
    config = build_config(
        file=options.config,
        settings={name: getattr(options, name) for name in ENGINE_OPTIONS if name in given},
        proposer=options.proposer if "proposer" in given else None,
        num_speculative_tokens=options.num_speculative_tokens if "num_speculative_tokens" in given else None,
        proposer_settings=stated_settings(options),
        speculative_json=options.speculative_config,
        default_proposer=DEFAULT_MEASURED,
    )
    members = member_names(config) if config.speculative[:1] == (auto_entry(config),) else ()
    others = (entry for entry in config.speculative[1:] if entry.method in members)
    return replace(config, speculative=(*config.speculative[:1], *others))


def _prompts(options: VerifyOptions) -> list[Prompt]:
    plain = SamplingParams()
    texts = options.prompt if options.prompt or options.prompts_file is not None else DEFAULT_PROMPTS
    prompts = []
    for number, text in enumerate(texts, start=1):
        origin = f"prompt {number}" if len(texts) > 1 or options.prompts_file is not None else ""
        with bad_input(origin):
            prompts.append(from_argument(text, plain, origin=origin, raw=options.raw))
    if options.prompts_file is not None:
        for prompt in from_file(options.prompts_file, {}, raw=options.raw):
            with bad_input(prompt.origin):
                if prompt.own_keys:
                    raise ValueError(
                        "verify samples every prompt alike, as the options say; a line may have a prompt, messages or "
                        f"prompt_token_ids, and raw, but not {' or '.join(prompt.own_keys)}"
                    )
            prompts.append(prompt)
    return prompts


def _verify(
    options: VerifyOptions,
    config: EngineConfig,
    prompts: Sequence[Prompt],
    build_engine: BuildEngine | None,
    tell: Progress,
    stopped: Callable[[], bool],
) -> Report:
    import_engine()
    from specdec.eval.driving import Watch
    from specdec.eval.losslessness import verify_losslessness

    with bad_input():
        build = _builder(config, build_engine, tell)
        engine = build(config)
        texts = _token_ids(prompts, engine, options.settings.params)
        return verify_losslessness(build, engine, texts, options.settings, Watch(tell, stopped))


def _builder(
    config: EngineConfig, build_engine: BuildEngine | None, tell: Progress
) -> Callable[[EngineConfig], Engine]:
    """Makes engines that share their models."""
    if build_engine is not None:
        return lambda own: build_engine(own, None)
    from specdec.engine.build import load_models

    return load_models(config, tell).engine


def _token_ids(prompts: Sequence[Prompt], engine: Engine, params: SamplingParams) -> list[tuple[int, ...]]:
    """Every prompt as the engine takes it; `BadInput` names the one that it refuses."""
    tokenizer = engine.tokenizer
    if tokenizer is not None and tokenizer.chat_template is None:
        prompts = without_template(prompts)
    texts = []
    for prompt in prompts:
        with bad_input(prompt.origin):
            content = engine_prompt(prompt, tokenizer, None)
            if isinstance(content, str):
                assert tokenizer is not None
                content = tokenizer.encode(content)
            engine.add_request("refuses what is wrong", content, params)
            engine.abort("refuses what is wrong")
            texts.append(tuple(content))
    return texts


def _write(report: Report, options: VerifyOptions, seconds: float) -> None:
    if options.json:
        click.echo(json.dumps(as_json(report, seconds)))
        say(report.verdict)
        return
    click.echo(_setup(report) + f"; {seconds:.1f} s")
    for check in report.checks:
        click.echo(_line(check))
        for line in (*check.faults, *check.notes):
            click.echo(f"    {line}")
    for reason in report.not_run:
        click.echo(f"  not run: {reason}")
    click.echo(f"specdec: {report.verdict}")


def _setup(report: Report) -> str:
    setup = report.setup
    return (
        f"{setup['model']}, proposer {setup['proposer']}, k = {setup['num_speculative_tokens']}, temperature "
        f"{setup['temperature']:g}, verifier {setup['verifier']}, prompts: {setup['num_prompts']}"
    )


def _line(check: Check) -> str:
    return f"  {check.name:<18} {check.status:<7} {check.summary}"


def as_json(report: Report, seconds: float) -> dict[str, Any]:
    """The object that `--json` prints."""
    fields: dict[str, Any] = {
        "verified": report.is_verified,
        "verdict": report.verdict,
        "interrupted": report.interrupted,
        **report.setup,
        "checks": [asdict(check) for check in report.checks],
        "not_run": list(report.not_run),
        "seconds": seconds,
    }
    finite: dict[str, Any] = _finite(fields)
    return finite


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinities; null stands for them."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


verify = _command()
