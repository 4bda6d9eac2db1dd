"""From recorded drafts and measured answers to the oracles of a `Result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specdec.eval.acceptance import Answered, count_positions
from specdec.eval.measure import PLAIN, Choice, Plan, Variant
from specdec.eval.oracle import (
    Track,
    fewest_steps,
    first_to_draft,
    gains,
    histogram,
    in_a_row,
    longest,
    num_steps,
    perfect_steps,
)
from specdec.eval.results import Ceiling, Oracle, Shadowed
from specdec.eval.shadow import Recording
from specdec.eval.stats import Bootstrap, ratio

Recorded = Mapping[Variant, Mapping[int, Recording]]


def oracles(
    plan: Plan, answers: Mapping[tuple[float, Variant], Answered], recordings: Recorded, bootstrap: Bootstrap
) -> tuple[Oracle, ...]:
    """Of each choice over all prompts, then of each task's where there are several; of `answers` that did not fail."""
    made = []
    for choice in plan.choices:
        if any(member not in recordings for member in choice.members):
            continue  # interrupted before
        table = _table(choice, answers, recordings)
        tasks = list(dict.fromkeys(plan.prompts[index].task for index in table.indices))
        for task in (None, *(tasks if len(tasks) > 1 else ())):
            indices = [index for index in table.indices if task in (None, plan.prompts[index].task)]
            if indices:
                made.append(_oracle(table, task, indices, bootstrap))
    return tuple(made)


@dataclass(frozen=True)
class _Table:
    """What is known of one choice, by prompt."""

    choice: Choice
    indices: tuple[int, ...]
    """Prompts to which every pass gave the same answer."""
    tracks: Mapping[int, tuple[Track, ...]]
    """One for each member."""
    sayable: Mapping[int, tuple[list[bool], ...]]
    """For each member, whether it could say the answer's token at each place."""
    measured: Mapping[Variant, Answered]
    """Of the acceptance pass: the members, and the choice's proposer, as far as they are variants of the run."""

    @property
    def own(self) -> Variant | None:
        """The variant that does choose among the members."""
        choice = self.choice
        return None if choice.proposer is None else Variant(choice.proposer, choice.num_speculative_tokens)


def _table(choice: Choice, answers: Mapping[tuple[float, Variant], Answered], recordings: Recorded) -> _Table:
    plain = answers[0.0, PLAIN]
    compared = [
        *choice.members,
        *([Variant(choice.proposer, choice.num_speculative_tokens)] if choice.proposer else []),
    ]
    measured = {each: answers[0.0, each] for each in compared if (0.0, each) in answers}
    recorded = [{i: own.answer for i, own in recordings[member].items()} for member in choice.members]
    passes = [*measured.values(), *recorded]
    indices = tuple(i for i in sorted(plain) if all(_agrees(each, i, plain[i].token_ids) for each in passes))
    tracks = {i: tuple(recordings[member][i].track() for member in choice.members) for i in indices}
    sayable = {i: tuple(recordings[member][i].sayable() for member in choice.members) for i in indices}
    return _Table(choice, indices, tracks, sayable, measured)


def _agrees(answers: Answered, index: int, token_ids: tuple[int, ...]) -> bool:
    answer = answers.get(index)
    return answer is not None and answer.error is None and answer.token_ids == token_ids


def _oracle(table: _Table, task: str | None, indices: Sequence[int], bootstrap: Bootstrap) -> Oracle:
    choice = table.choice
    fewest = [fewest_steps(longest(table.tracks[index])) for index in indices]
    measured = _measured(table, table.own, indices)
    num_places = [len(table.tracks[index][0]) for index in indices]
    deepest = max(member.num_speculative_tokens for member in choice.members)
    return Oracle(
        proposer=choice.proposer,
        num_speculative_tokens=choice.num_speculative_tokens,
        task=task,
        members=tuple(_member(table, number, indices) for number in range(len(choice.members))),
        num_prompts=len(indices),
        num_tokens=sum(num_places),
        num_steps=sum(fewest),
        longest_steps=_steps(table, indices, longest),
        first_steps=_steps(table, indices, first_to_draft),
        perfect_steps=sum(perfect_steps(count, deepest) for count in num_places),
        measured_steps=None if measured is None else sum(measured),
        share=None if measured is None else bootstrap.estimate(ratio, fewest, measured),
    )


def _steps(table: _Table, indices: Sequence[int], policy: Callable[[Sequence[Track]], list[int]]) -> int:
    return sum(num_steps(policy(table.tracks[index])) for index in indices)


def _measured(table: _Table, variant: Variant | None, indices: Sequence[int]) -> list[int] | None:
    """Steps of the acceptance pass, by prompt."""
    if variant is None or variant not in table.measured:
        return None
    return [len(table.measured[variant][index].steps) for index in indices]


def _member(table: _Table, number: int, indices: Sequence[int]) -> Shadowed:
    variant = table.choice.members[number]
    length = variant.num_speculative_tokens
    tracks = [table.tracks[index][number] for index in indices]
    measured = _measured(table, variant, indices)
    alone = sum(num_steps(gains(track)) for track in tracks)
    # A token may be right in a draft and wrong as the first one of another.
    fresh = min(alone, sum(num_steps(in_a_row([each.agreed > 0 for each in track], length)) for track in tracks))
    return Shadowed(
        proposer=variant.proposer,
        num_speculative_tokens=variant.num_speculative_tokens,
        num_steps=alone,
        measured_steps=None if measured is None else sum(measured),
        agreed=histogram(tracks),
        positions=count_positions([(each.depth, each.agreed) for track in tracks for each in track if each.depth]),
        ceiling=Ceiling(
            num_tokens=sum(map(len, tracks)),
            perfect_steps=sum(perfect_steps(len(track), length) for track in tracks),
            sayable_steps=sum(num_steps(in_a_row(table.sayable[index][number], length)) for index in indices),
            fresh_steps=fresh,
        ),
    )
