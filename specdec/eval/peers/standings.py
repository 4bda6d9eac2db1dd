"""From what each engine took to figures beside specdec's own, and to a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.eval.columns import Rows, align
from specdec.eval.peers.compare import Entry, Taken, Task


@dataclass(frozen=True)
class Standing:
    """One engine at one batch size."""

    label: str
    library: str
    precision: str
    batch_size: int
    num_groups: int
    decode_tokens_per_s: float
    """Once every answer has its first token."""
    total_tokens_per_s: float
    """Prompts included."""
    first_token_s: float | None
    """The median; None where a library does not tell."""
    start_s: float
    """From starting the process to the end of a first short answer."""
    peak_memory_bytes: int | None
    equal_answers: float | None
    """The share of answers that are the first engine's, token by token."""
    ratios: dict[str, float]
    """By label of each engine of specdec: its decoding rate over this one's, on the groups that both have answered."""
    first_token_ratios: dict[str, float]
    """The same for the first token: this one's median time over specdec's."""


@dataclass(frozen=True)
class Standings:
    model: str
    num_prompts: int
    max_tokens: int
    num_rounds: int
    num_threads: int
    standings: tuple[Standing, ...]
    faults: tuple[str, ...]
    """What went wrong with whom, a line each."""


def standings(model: str, task: Task, entries: Sequence[Entry], num_own: int) -> Standings:
    """The first `num_own` entries are specdec's."""
    found = [
        _standing(entry, size, entries[:num_own])
        for size in task.batch_sizes
        for entry in entries
        if _groups(entry, size)
    ]
    faults = [f"{entry.contestant.label} {fault}" for entry in entries for fault in entry.faults]
    return Standings(
        model, len(task.prompts), task.max_tokens, task.num_rounds, task.num_threads, tuple(found), tuple(faults)
    )


def _groups(entry: Entry, size: int) -> dict[tuple[int, int], Taken]:
    """What was taken at a batch size, by round and group."""
    return {(number, index): taken for (own, number, index), taken in entry.taken.items() if own == size}


def _standing(entry: Entry, size: int, own: Sequence[Entry]) -> Standing:
    groups = _groups(entry, size)
    taken = list(groups.values())
    assert entry.start_s is not None
    return Standing(
        label=entry.contestant.label,
        library=entry.library,
        precision=entry.precision,
        batch_size=size,
        num_groups=len(taken),
        decode_tokens_per_s=_decode_rate(taken),
        total_tokens_per_s=sum(sum(map(len, each.token_ids)) for each in taken) / sum(each.total_s for each in taken),
        first_token_s=_first_token(taken),
        start_s=entry.start_s,
        peak_memory_bytes=entry.peak_memory_bytes,
        equal_answers=_equal(groups, _groups(own[0], size)),
        ratios={
            each.contestant.label: _decode_rate(theirs) / _decode_rate(ours)
            for each in own
            for ours, theirs in [_both(groups, _groups(each, size))]
            if ours
        },
        first_token_ratios={
            each.contestant.label: above / below
            for each in own
            for ours, theirs in [_both(groups, _groups(each, size))]
            if ours and (above := _first_token(ours)) and (below := _first_token(theirs))
        },
    )


def _both(
    groups: dict[tuple[int, int], Taken], others: dict[tuple[int, int], Taken]
) -> tuple[list[Taken], list[Taken]]:
    common = [key for key in groups if key in others]
    return [groups[key] for key in common], [others[key] for key in common]


def _decode_rate(taken: Sequence[Taken]) -> float:
    return sum(each.decode_tokens for each in taken) / sum(each.decode_s for each in taken)


def _first_token(taken: Sequence[Taken]) -> float | None:
    times = [each.first_token_s for each in taken if each.first_token_s is not None]
    return statistics.median(times) if times else None


def _equal(groups: dict[tuple[int, int], Taken], others: dict[tuple[int, int], Taken]) -> float | None:
    ours, theirs = _both(groups, others)
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a.token_ids, b.token_ids, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def standings_table(result: Standings) -> str:
    """A row for each engine and batch size, and a line for whatever went wrong."""
    own = list(dict.fromkeys(label for each in result.standings for label in each.ratios))
    head = ("engine", "precision", "batch", "decode tok/s", "total tok/s", "first token ms", "start s", "peak MB")
    rows: Rows = [(*head, "same answers", *(f"{label} is" for label in own))]
    for each in result.standings:
        rows.append(
            (
                each.label,
                each.precision,
                str(each.batch_size),
                f"{each.decode_tokens_per_s:.1f}",
                f"{each.total_tokens_per_s:.1f}",
                "-" if each.first_token_s is None else f"{1e3 * each.first_token_s:.0f}",
                f"{each.start_s:.1f}",
                "-" if each.peak_memory_bytes is None else f"{each.peak_memory_bytes / 1e6:.0f}",
                "-" if each.equal_answers is None else f"{100 * each.equal_answers:.0f} %",
                *(f"{each.ratios[label]:.2f} x" if label in each.ratios else "-" for label in own),
            )
        )
    heading = (
        f"{result.model}: {result.num_prompts} prompts, greedy, {result.max_tokens} tokens each, {result.num_threads} "
        f"threads, {result.num_rounds} rounds, in turns"
    )
    libraries = dict.fromkeys(each.library for each in result.standings)
    faults = [f"{fault}" for fault in result.faults]
    return "\n".join((heading, align(rows), "; ".join(libraries), *faults))
