"""A result as a few lines of text for a terminal. Oracles are written by `oracle_table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdec.eval.columns import POSITIONS_SHOWN, Rows, align, interval, percent
from specdec.eval.oracle_table import oracle_table
from specdec.eval.results import Curve, Group, Origin, Result, Run, Timing


def table(result: Result) -> str:
    """Acceptance by task, speed by batch size, the curve, and exactness."""
    parts = [_heading(result)]
    if result.runs:
        parts.append(_acceptance(result.runs))
    if result.oracles:
        parts.append(oracle_table(result))
    if speeds := _speeds(result.runs):
        parts.append(speeds)
    if group_speeds := _group_speeds(result.runs):
        parts.append(group_speeds)
    if result.curve is not None:
        parts.append(_curve(result.curve))
    if result.runs:
        parts.append(_exactness(result.runs))
    parts.append(_origin(result.origin))
    return "\n\n".join(parts)


def _heading(result: Result) -> str:
    settings = result.settings
    num_prompts = max((run.num_prompts for run in result.plain), default=0)
    asked = f"{num_prompts} prompts of {', '.join(settings.tasks)}, at most {settings.max_tokens} tokens each"
    lines = [f"{settings.model}, {settings.dtype}: {asked}"]
    for run in result.plain:
        distinct = ", ".join("-" if share is None else f"{share:.2f}" for share in run.distinct)
        lines.append(
            f"plain decoding at T={run.temperature:g}: {run.num_tokens} tokens, distinct-1, -2, -3: {distinct}"
        )
    if result.interrupted:
        lines.append("interrupted: what follows is what was measured by then")
    return "\n".join(lines)


def _acceptance(runs: Sequence[Run]) -> str:
    deepest = min(POSITIONS_SHOWN, max(len(run.overall.positions) for run in runs))
    header = (*_RUN, "task", "prompts", "drafted", "accepted", "length", "95 % interval", "per step")
    rows: Rows = [(*header, *(f"P({position})" for position in range(1, deepest + 1)))]
    for run in runs:
        groups = (run.overall, *(run.tasks if len(run.tasks) > 1 else ()))
        rows += [(*_name(run, group is run.overall), *_figures(group, deepest)) for group in groups]
    words = (
        "Acceptance. length: tokens per verified draft; per step: tokens per step, with a draft or without;\n"
        "P(j): share of the drafts with a position j whose token there was accepted\n"
    )
    return words + align(rows)


def _figures(group: Group, deepest: int) -> tuple[str, ...]:
    shares = [percent(position.unconditional) for position in group.positions[:deepest]]
    return (
        group.task or "all",
        str(group.num_prompts),
        str(group.num_draft_tokens),
        percent(group.acceptance_rate.value),
        f"{group.mean_acceptance_length.value:.2f}",
        interval(group.mean_acceptance_length),
        f"{group.tokens_per_step:.2f}",
        *shares,
        *["-"] * (deepest - len(shares)),
    )


_RUN = ("proposer", "k", "T")


def _name(run: Run, first: bool) -> tuple[str, str, str]:
    return (run.proposer, str(run.num_speculative_tokens), f"{run.temperature:g}") if first else ("", "", "")


def _speeds(runs: Iterable[Run]) -> str:
    header = (*_RUN, "batch", "plain tok/s", "tok/s", "plain ms/token", "ms/token")
    rows: Rows = [(*header, "speed-up", "95 % interval", "predicted", "gap", "c")]
    for run in runs:
        for number, speed in enumerate(run.speeds):
            predicted = run.prediction if speed.plain.batch_size == 1 else None
            rows.append(
                (
                    *_name(run, number == 0),
                    str(speed.plain.batch_size),
                    f"{speed.plain.tokens_per_second:.1f}",
                    f"{speed.proposer.tokens_per_second:.1f}",
                    _per_token(speed.plain),
                    _per_token(speed.proposer),
                    f"{speed.speedup.value:.2f}",
                    interval(speed.speedup),
                    "" if predicted is None else f"{predicted.predicted_speedup:.2f}",
                    "" if predicted is None else f"{100 * predicted.gap:+.0f} %",
                    "" if predicted is None else f"{predicted.draft_cost:.2g}",
                )
            )
    return "Speed. c: time of a draft / time of the target's forward pass\n" + align(rows) if len(rows) > 1 else ""


def _group_speeds(runs: Iterable[Run]) -> str:
    """By category where there are several, else by task; nothing where all prompts are of one kind."""
    header = (*_RUN, "task", "category", "prompts", "plain tok/s", "tok/s", "speed-up", "95 % interval")
    rows: Rows = [(*header, "predicted", "gap")]
    for run in runs:
        categories = [each for each in run.group_speeds if each.category is not None]
        for number, each in enumerate(categories if len(categories) > 1 else ()):
            predicted = each.prediction
            rows.append(
                (
                    *_name(run, number == 0),
                    each.task,
                    each.category or "",
                    str(each.speed.plain.num_answers),
                    f"{each.speed.plain.tokens_per_second:.1f}",
                    f"{each.speed.proposer.tokens_per_second:.1f}",
                    f"{each.speed.speedup.value:.2f}",
                    interval(each.speed.speedup),
                    "" if predicted is None else f"{predicted.predicted_speedup:.2f}",
                    "" if predicted is None else f"{100 * predicted.gap:+.0f} %",
                )
            )
    return "Speed at batch 1 by category\n" + align(rows) if len(rows) > 1 else ""


def _per_token(timing: Timing) -> str:
    return "-" if timing.time_per_output_token is None else f"{1e3 * timing.time_per_output_token:.1f}"


def _curve(curve: Curve) -> str:
    rows: Rows = [
        ("M", *(str(point.num_tokens) for point in curve.points)),
        ("T(M)/T(1)", *(f"{point.ratio:.2f}" for point in curve.points)),
    ]
    seconds = curve.points[0].seconds
    return f"A forward pass over M tokens at context {curve.context}; T(1) is {1e3 * seconds:.1f} ms\n" + align(rows)


def _exactness(runs: Iterable[Run]) -> str:
    return "\n".join(f"{' '.join(_label(run))}: {_promise(run)}" for run in runs)


def _label(run: Run) -> tuple[str, ...]:
    return run.proposer, f"k={run.num_speculative_tokens}", f"T={run.temperature:g}"


def _promise(run: Run) -> str:
    exactness = run.exactness
    promise = f"exactness {exactness.level} (verifier {exactness.verifier})"
    if not exactness.checked:
        return f"{promise}, not checked in this run"
    equal = f"{exactness.num_equal} of {exactness.num_prompts} outputs are plain decoding's tokens"
    if not run.overall.num_drafts:
        return f"{promise}, no draft was verified, so nothing was checked: {equal}"
    line = f"{promise}, checked: {equal}"
    if exactness.divergences:
        first = exactness.divergences[0]
        line += f"; the first that is not: {first.task}/{first.prompt_id}, from output token {first.index} on"
    return line


def _origin(origin: Origin) -> str:
    machine = origin.machine
    load = "unknown" if machine.load_average is None else f"{machine.load_average:.1f}"
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.threads or machine.torch_threads} threads, load {load}; torch "
        f"{origin.versions.torch}; commit {'unknown' if origin.commit is None else origin.commit[:12]}"
    )
