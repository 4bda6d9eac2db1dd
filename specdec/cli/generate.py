"""`specdec generate`: read and check everything, load once, run every prompt in one batch, write the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specdec.cli.configure import build_config, cover, speculation_of, stated_settings
from specdec.cli.errors import INTERRUPTED, REQUEST_FAILED, BadInput, bad_input, led_by, say, tell
from specdec.cli.explain import explanation_lines
from specdec.cli.options import GenerateOptions, option_groups
from specdec.cli.output import LEGEND, AnswerWriter, JsonWriter, StreamWriter, Writer, statistics
from specdec.cli.parsing import check_unicode
from specdec.cli.progress import progress_line
from specdec.cli.prompts import Prompt, from_argument, from_file, without_template
from specdec.cli.run import Outcome, run, submit
from specdec.cli.start import describe, load_engine
from specdec.cli.warned import proposer_warnings
from specdec.config import EngineConfig, check_verifier
from specdec.core.alarm import ProposerWatch
from specdec.types import SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from specdec.engine import Engine

Progress = Callable[[str], None]
BuildEngine = Callable[[EngineConfig, Progress | None], "Engine"]
"""From a checked configuration to a loaded engine; ValueError for what is wrong with the model."""

ENGINE_OPTIONS = (
    "model",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "num_threads",
    "kernels",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "kv_cache_tokens",
    "verifier",
)
"""Options that are fields of `EngineConfig`."""

EXAMPLES = """\b
Examples:
  specdec generate "Why is the sky blue?"
  specdec generate --proposer none --temperature 0.7 --seed 1 "Write a haiku."
  specdec generate --color -k 8 "Count from 1 to 50."
  specdec generate --json --prompts-file prompts.jsonl > answers.jsonl
  echo '{"prompt": "1, 2, 3,", "raw": true}' | specdec generate --prompts-file -

\b
--json prints for each prompt:
  {"index", "prompt_token_ids",
   "outputs": [{"text", "token_ids", "finish_reason", "stop_reason",
                "logprobs"}],
   "num_cached_tokens",
   "speculation": {"proposer", "num_speculative_tokens", "verifier",
                   "exactness", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
                   "accepted_per_position", "mean_acceptance_length",
                   "provenance"},
   "timing": {"load_s", "ttft_s", "decode_s", "decode_tokens_per_s"}}
provenance has one list for each output: for each token the proposer that
drafted it, "recovered" or "bonus". The counts are those of all outputs
together. logprobs is null, and prompt_logprobs is left out, unless the
prompt's line asks for them. An output that failed also has "error".

\b
Exit codes: 0 all well; 1 a request failed while running, or the output could
not be written; 2 bad input; 130 stopped by Ctrl-C; 141 the reader of the
output went away.
"""


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options under headings."""

    groups: dict[str, tuple[click.Option, ...]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {option for options in self.groups.values() for option in options}
        rest = tuple(p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in grouped)
        for heading, options in (*self.groups.items(), ("Help", rest)):
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(heading):
                formatter.write_dl(records)


def _command() -> GroupedCommand:
    groups = option_groups()
    argument = click.Argument(["prompt"], nargs=-1, metavar="[PROMPT]...")
    command = GroupedCommand(
        "generate",
        params=[argument, *(option for options in groups.values() for option in options)],
        callback=_callback,
        short_help="Generate text, verifying a draft in every step.",
        help="Generate an answer to each PROMPT, all in one batch; the answers come in input order. A lone answer is "
        "shown as it comes. One line of statistics on standard error ends the run, after a warning about any "
        "proposer that never drafted or whose drafts were hardly ever right.",
        epilog=EXAMPLES,
    )
    command.groups = groups
    return command


@click.pass_context
def _callback(ctx: click.Context, /, **values: Any) -> None:
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    code = run_generate(GenerateOptions(**values), given, ctx.obj or load_engine)
    ctx.exit(code)


def run_generate(options: GenerateOptions, given: set[str], build_engine: BuildEngine) -> int:
    """The whole command; returns the exit code. `given` names the options that were stated, not defaulted."""
    _refuse_contradictions(options)
    with bad_input():
        base = _config(options, given)
        prompts = _prompts(options)
        config, speculation = _serve(prompts, base, options.num_speculative_tokens)
        if options.verbose:
            _describe_config(config)
        engine = build_with_progress(config, build_engine, quiet=options.quiet)
    if options.verbose:
        say(describe(engine.start_up))
        say(f"sequences of up to {engine.max_model_len:,} tokens")
        tell(f"{engine.memory.describe()}\n")
    prompts = _fit_to_template(prompts, options, engine)
    writer = _writer(prompts, options, engine)
    start = time.perf_counter()
    submit(engine, prompts, speculation, options.system)
    # Text that is shown as it comes is at no line's end when a proposer fails.
    with proposer_warnings(hold=isinstance(writer, StreamWriter)):
        outcome = run(engine, len(prompts), writer)
    code = _conclude(outcome, prompts, options, time.perf_counter() - start)
    if options.explain_speculation:
        _explain(engine)
    return code


def build_with_progress(config: EngineConfig, build_engine: BuildEngine, *, quiet: bool) -> Engine:
    """The engine, with a line about a slow preparation unless `quiet`."""
    if quiet:
        return build_engine(config, None)
    with progress_line() as tell:
        return build_engine(config, tell)


def _refuse_contradictions(options: GenerateOptions) -> None:
    for one, other in (("raw", "system"), ("json", "color"), ("quiet", "verbose")):
        if getattr(options, one) and getattr(options, other):
            names = [{"verbose": "-v"}.get(name, f"--{name}") for name in (one, other)]
            raise BadInput(f"{names[0]} and {names[1]} contradict each other; give one of them")
    if not options.prompt and options.prompts_file is None:
        raise BadInput(
            'there is nothing to generate from: give a PROMPT, as in `specdec generate "Why is the sky blue?"`, '
            "or --prompts-file FILE (- for standard input)"
        )


def _config(options: GenerateOptions, given: set[str]) -> EngineConfig:
    settings = {name: getattr(options, name) for name in ENGINE_OPTIONS if name in given}
    if options.no_prefix_caching:
        settings["enable_prefix_caching"] = False
    return build_config(
        file=options.config,
        settings=settings,
        proposer=options.proposer if "proposer" in given else None,
        num_speculative_tokens=options.num_speculative_tokens if "num_speculative_tokens" in given else None,
        proposer_settings=stated_settings(options),
        speculative_json=options.speculative_config,
    )


def _prompts(options: GenerateOptions) -> list[Prompt]:
    if options.system is not None:
        check_unicode("--system", options.system)
    names = {field.name for field in fields(SamplingParams)} & {field.name for field in fields(GenerateOptions)}
    defaults = {name: getattr(options, name) for name in names}
    prompts = _from_arguments(options, SamplingParams(**defaults)) if options.prompt else []
    if options.prompts_file is not None:
        for name, value in defaults.items():
            # Each option must be right; whether they go together, each line decides with what it sets itself.
            SamplingParams(**{name: value})
        prompts += from_file(options.prompts_file, defaults, raw=options.raw)
    return prompts


def _from_arguments(options: GenerateOptions, params: SamplingParams) -> list[Prompt]:
    alone = len(options.prompt) == 1 and options.prompts_file is None
    prompts = []
    for number, text in enumerate(options.prompt, start=1):
        origin = "" if alone else f"prompt {number}"
        with bad_input(origin):
            prompts.append(from_argument(text, params, origin=origin, raw=options.raw))
    return prompts


def _serve(
    prompts: Sequence[Prompt], base: EngineConfig, default_k: int
) -> tuple[EngineConfig, list[SpeculationParams]]:
    """The configuration of an engine that can serve every prompt, and how each is to be drafted."""
    config, speculation = base, []
    for prompt in prompts:
        with bad_input(prompt.origin):
            check_verifier(base.verifier, prompt.params.temperature)
            speculation.append(speculation_of(prompt, base, default_k))
            config = cover(config, speculation[-1])
    return config, speculation


def _describe_config(config: EngineConfig) -> None:
    say("configuration")
    for field in fields(config):
        tell(f"  {field.name}: {getattr(config, field.name)}\n")


def _fit_to_template(prompts: list[Prompt], options: GenerateOptions, engine: Engine) -> list[Prompt]:
    """For a model without a chat template, texts are raw; a system turn or messages have no place then."""
    if engine.tokenizer is None or engine.tokenizer.chat_template is not None:
        return prompts
    if options.system is not None:
        raise BadInput("this model has no chat template, so --system has no place; put the text into the prompt")
    fitted = without_template(prompts)
    if fitted != prompts and not options.quiet:
        say("note: this model has no chat template; prompts are given to it as they are")
    return fitted


def _writer(prompts: list[Prompt], options: GenerateOptions, engine: Engine) -> Writer:
    if options.json:
        return JsonWriter(engine.load_seconds)
    tokenizer = engine.tokenizer if options.color else None
    if tokenizer is not None and not options.quiet:
        say(LEGEND)
    if len(prompts) == 1 and prompts[0].params.n == 1:
        return StreamWriter(prompts[0], tokenizer)
    return AnswerWriter(prompts, tokenizer, headers=not options.quiet)


def _explain(engine: Engine) -> None:
    explanation = engine.explain_speculation()
    if explanation is None:
        say("nothing to explain: auto is not among this engine's proposers, and the others draft what they are asked")
    else:
        for line in explanation_lines(explanation):
            tell(f"{line}\n")


def _conclude(outcome: Outcome, prompts: Sequence[Prompt], options: GenerateOptions, seconds: float) -> int:
    """Say what went wrong and how it went; the exit code."""
    failed = False
    for index, output in outcome.finished.items():
        for sample in output.outputs:
            if sample.finish_reason == "error":
                failed = True
                say(f"error: {led_by(prompts[index].origin, str(sample.error))}")
    if outcome.interrupted and not options.quiet:
        say(f"interrupted; {len(outcome.finished)} of {len(prompts)} prompts finished")
    if not options.quiet:
        for message in ProposerWatch().judge(outcome.outputs):
            say(f"warning: {message}")
        say(statistics(outcome.outputs, seconds))
    if outcome.interrupted:
        return INTERRUPTED
    return REQUEST_FAILED if failed else 0


generate = _command()
