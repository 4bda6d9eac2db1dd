"""An evaluation as one HTML file that needs nothing else: no script, no font, no image, no network.

The page is a template. It escapes whatever it prints, and the page's own policy forbids a browser to load anything.
What it prints is made by `report_tables`, `report_oracle`, `report_speed`, `report_charts` and `report_samples`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jinja2

from specdec.charts.text import printable
from specdec.eval import report_oracle, report_speed, report_tables
from specdec.eval.oracle_table import chooser
from specdec.eval.report_charts import charts
from specdec.eval.report_samples import sampled, sources
from specdec.eval.report_tables import Table
from specdec.eval.report_text import DASH, number, temperature, variant
from specdec.eval.results import FORMULAS, Result, Run

TITLES = {
    "unconditional": "acceptance at a position, of all drafts that had it",
    "conditional": "acceptance at a position, given the one before",
    "by_output_position": "acceptance by position in the output",
    "distinct_n": "distinct-n",
    "curve": "T(M) / T(1)",
    "draft_cost": "draft cost c",
    "draft_cost_per_token": "draft cost per draft token",
    "predicted_speedup": "predicted speed-up",
    "measured_speedup": "measured speed-up",
    "num_equal": "equal outputs",
    "share": "share of the oracle",
    "oracle_tokens_per_step": "tokens per step of the oracle",
    "longest_tokens_per_step": "tokens per step with the longest right draft",
    "first_tokens_per_step": "tokens per step with the first that drafts",
    "perfect_tokens_per_step": "tokens per step with perfect drafts",
    "alone_tokens_per_step": "tokens per step of a member alone",
    "measured_tokens_per_step": "measured tokens per step",
    "mean_agreed": "right draft tokens",
    "agreed": "how many draft tokens are right",
}
"""Names of figures that are more than their key with spaces."""

EXACTNESS = (
    "bytes: the tokens of plain decoding with the same seed, which this run compared. distribution: the law of plain "
    "decoding, which single outputs cannot show. lossy: neither."
)


@dataclass(frozen=True)
class Section:
    ident: str
    title: str
    note: str
    tables: tuple[Table, ...]


def render(result: Result) -> str:
    """The page, to be written in UTF-8."""
    return (
        _environment()
        .get_template("report.html")
        .render(
            result=result,
            lead=lead(result),
            facts=facts(result),
            warnings=list(warnings(result)),
            summary=report_tables.summary(result),
            charts=charts(result),
            sections=sections(result),
            sources=list(sources(result.runs).values()),
            samples=sampled(result.runs),
        )
    )


def _environment() -> jinja2.Environment:
    """Templates that escape what they print, and in which None is a dash and an unknown name an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("specdec.eval"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["figure"] = figure
    environment.globals["formulas"] = FORMULAS
    return environment


def _finalize(value: object) -> object:
    if value is None:
        return DASH
    return value if hasattr(value, "__html__") or not isinstance(value, str) else printable(value)


def figure(name: str) -> str:
    """What a reader is told that an entry of `FORMULAS` is."""
    return TITLES.get(name, name.replace("_", " "))


def lead(result: Result) -> str:
    """One sentence on what was asked."""
    settings = result.settings
    asked = max((run.num_prompts for run in result.plain), default=0)
    prompts = "1 prompt" if asked == 1 else f"{number(asked)} prompts"
    return (
        f"{prompts} of {', '.join(settings.tasks)}, at most {number(settings.max_tokens)} tokens each, against plain "
        "decoding of the same engine on the same prompts."
    )


def facts(result: Result) -> list[tuple[str, str]]:
    """Where the figures come from, and what was asked for."""
    origin, settings = result.origin, result.settings
    versions, machine = origin.versions, origin.machine
    limit = "" if settings.limit is None else f", at most {number(settings.limit)} of each"
    sizes = ", ".join(map(number, settings.batch_sizes)) or DASH
    return [
        ("commit", origin.commit or "unknown"),
        ("date", origin.date),
        (
            "versions",
            f"specdec {versions.specdec}, torch {versions.torch}, transformers {versions.transformers}, "
            f"Python {versions.python}",
        ),
        (
            "machine",
            f"{machine.cpu}; {number(machine.cores)} cores, {number(machine.threads or machine.torch_threads)} threads "
            f"({number(machine.torch_threads)} of torch), load before the start {number(machine.load_average)}",
        ),
        (
            "model",
            f"{settings.model}, {settings.dtype}, quantization {settings.quantization}, KV cache in "
            f"{settings.kv_cache_dtype}",
        ),
        ("verifier", settings.verifier),
        (
            "tasks",
            f"{', '.join(settings.tasks)}{limit}; acceptance with {number(settings.concurrency)} prompts at once",
        ),
        ("answers", f"at most {number(settings.max_tokens)} tokens, seed {settings.seed}"),
        ("timing", f"prompts: {number(settings.timing_prompts)}, batch sizes: {sizes}"),
        ("intervals", f"{number(settings.resamples)} resamples, confidence {100 * settings.confidence:g} %"),
    ]


def warnings(result: Result) -> Iterator[str]:
    """What a reader has to know before any figure."""
    if result.interrupted:
        yield (
            "The evaluation was interrupted. Runs marked “interrupted” hold what was measured by then; those that had "
            "not begun are missing."
        )
    for run in result.runs:
        yield from _run_warnings(run)
    yield from _oracle_warnings(result)
    yield from (f"Regression: {line}" for line in result.regressions)
    yield from (f"Failed, and in no figure: {line}" for line in result.failures)
    if result.skipped:
        yield f"Too long for the model, and left out: {', '.join(result.skipped)}"


def _run_warnings(run: Run) -> Iterator[str]:
    name = f"{variant(run)}, {temperature(run.temperature)}"
    if run.alarm is not None:
        yield f"{name}: {run.alarm}"
    if not run.complete:
        yield f"{name}: interrupted"
    exactness = run.exactness
    if exactness.level == "lossy":
        yield f"{name}: lossy; the verifier {exactness.verifier} does not keep the model’s distribution"
    if exactness.checked and exactness.num_equal < exactness.num_prompts:
        yield (
            f"{name}: {number(exactness.num_prompts - exactness.num_equal)} of {number(exactness.num_prompts)} outputs "
            "are not plain decoding’s, though they are to be"
        )


def _oracle_warnings(result: Result) -> Iterator[str]:
    """Prompts that only an oracle lacks."""
    asked = max((run.num_prompts for run in result.plain if run.temperature == 0), default=0)
    for oracle in result.oracles:
        if oracle.task is None and oracle.num_prompts < asked:
            yield (
                f"Oracle of {chooser(oracle)}, k = {oracle.num_speculative_tokens}: "
                f"{number(asked - oracle.num_prompts)} of {number(asked)} prompts are not in it, for not every pass "
                "gave plain decoding’s tokens"
            )


def sections(result: Result) -> list[Section]:
    """The tables after the summary and the charts; without those that have no row."""
    tables, speed = report_tables, report_speed
    made = [
        Section(
            "acceptance",
            "Acceptance by task and category",
            "The larger figure under a position is of all drafts that had it; the smaller one of those whose token "
            "before it was accepted.",
            (tables.acceptance(result), tables.counts(result)),
        ),
        Section(
            "output",
            "Acceptance by position in the output",
            "Acceptance of a whole task can hide that it falls as outputs grow.",
            (tables.output_ranges(result),),
        ),
        *([_oracle_section(result)] if result.oracles else []),
        Section(
            "speed",
            "Speed",
            "Plain decoding and every proposer take turns on the same prompts. A prediction within 10 % says that the "
            "parts explain the whole.",
            (
                speed.speed(result),
                speed.group_speed(result),
                speed.prediction(result),
                speed.draft_lengths(result),
                *([] if result.curve is None else [speed.curve(result.curve)]),
            ),
        ),
        Section("exactness", "Exactness", EXACTNESS, (tables.exactness(result), tables.divergences(result))),
        Section(
            "repetition",
            "Repetition",
            "A model that loops flatters proposers that copy: a low share of different n-grams is a warning.",
            (tables.repetition(result),),
        ),
    ]
    return [
        Section(each.ident, each.title, each.note, tuple(table for table in each.tables if not table.is_empty))
        for each in made
    ]


def _oracle_section(result: Result) -> Section:
    note = (
        "What the best choice among proposers would reach at temperature 0, known because each of them also drafted at "
        "every output token, unverified. A proposer alone takes the steps that were measured, unless it learns from "
        "what was verified or from answers that ended in another order."
    )
    made = report_oracle
    return Section("oracle", "Oracle", note, (made.choices(result), made.members(result), made.agreed(result)))
