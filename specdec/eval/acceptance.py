"""From answers to acceptance: by group, by position of the draft, by position in the output, and against plain tokens.

Pure functions over what was recorded; the formulas are those of `specdec.eval.results`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specdec.eval.prompts import EvalPrompt
from specdec.eval.results import Divergence, Exactness, Group, OutputRange, Position
from specdec.eval.session import Answer, Step
from specdec.eval.stats import Bootstrap, acceptance_length, ratio
from specdec.types import SpeculationStats

NARROWEST_RANGE = 32
MOST_RANGES = 16
DIVERGENCES_KEPT = 10

Answered = Mapping[int, Answer]
"""Answers by the prompt's index."""


def groups(prompts: Sequence[EvalPrompt], answers: Answered, bootstrap: Bootstrap) -> tuple[Group, ...]:
    """All prompts that have an answer; then each task's; then each category's."""
    everything = sorted(answers)
    tasks: dict[str, list[int]] = {}
    categories: dict[tuple[str, str], list[int]] = {}
    for index in everything:
        prompt = prompts[index]
        tasks.setdefault(prompt.task, []).append(index)
        categories.setdefault((prompt.task, prompt.category), []).append(index)
    found = [_group(None, None, [answers[index] for index in everything], bootstrap)]
    found += [_group(task, None, [answers[index] for index in own], bootstrap) for task, own in tasks.items()]
    found += [_group(*name, [answers[index] for index in own], bootstrap) for name, own in categories.items()]
    return tuple(found)


def _group(task: str | None, category: str | None, answers: Sequence[Answer], bootstrap: Bootstrap) -> Group:
    drafts = [answer.stats.num_drafts for answer in answers]
    drafted = [answer.stats.num_draft_tokens for answer in answers]
    accepted = [answer.stats.num_accepted_tokens for answer in answers]
    return Group(
        task=task,
        category=category,
        num_prompts=len(answers),
        num_tokens=sum(len(answer.token_ids) for answer in answers),
        num_steps=sum(len(answer.steps) for answer in answers),
        num_drafts=sum(drafts),
        num_draft_tokens=sum(drafted),
        num_accepted_tokens=sum(accepted),
        acceptance_rate=bootstrap.estimate(ratio, accepted, drafted),
        mean_acceptance_length=bootstrap.estimate(acceptance_length, accepted, drafts),
        positions=positions(steps_of(answers)),
    )


def steps_of(answers: Iterable[Answer]) -> list[Step]:
    return [step for answer in answers for step in answer.steps]


def positions(steps: Iterable[Step]) -> tuple[Position, ...]:
    """Counts of the drafts' positions, from 1 to the deepest."""
    return count_positions([(step.depth, step.num_accepted) for step in steps if step.num_drafted])


def count_positions(drafts: Sequence[tuple[int, int]]) -> tuple[Position, ...]:
    """The same of drafts that are given by their depth and the tokens that were accepted."""
    deepest = max((depth for depth, _ in drafts), default=0)
    return tuple(
        Position(
            position,
            num_drafts=sum(depth >= position for depth, _ in drafts),
            num_reached=sum(depth >= position and accepted >= position - 1 for depth, accepted in drafts),
            num_accepted=sum(accepted >= position for _, accepted in drafts),
        )
        for position in range(1, deepest + 1)
    )


def output_ranges(steps: Iterable[Step], max_tokens: int) -> tuple[OutputRange, ...]:
    """Drafts by the output token at which they began, in ranges of 32 tokens, or wider for very long outputs."""
    width = NARROWEST_RANGE
    while width * MOST_RANGES < max_tokens:
        width *= 2
    by_range: dict[int, list[Step]] = {}
    for step in steps:
        if step.num_drafted:
            by_range.setdefault(step.index // width, []).append(step)
    return tuple(
        OutputRange(
            start=number * width,
            end=(number + 1) * width,
            num_drafts=len(own),
            num_draft_tokens=sum(step.num_drafted for step in own),
            num_accepted_tokens=sum(step.num_accepted for step in own),
        )
        for number, own in sorted(by_range.items())
    )


def total(answers: Iterable[Answer]) -> SpeculationStats:
    """The counts of all answers, summed."""
    stats = SpeculationStats()
    for answer in answers:
        stats.add(answer.stats)
    return stats


def exactness(
    prompts: Sequence[EvalPrompt], answers: Answered, plain: Answered, verifier: str, level: str
) -> Exactness:
    """Outputs against plain decoding's, where they must be the same tokens."""
    if level != "bytes":
        return Exactness(verifier, level, checked=False)
    compared = sorted(answers.keys() & plain.keys())
    found = [_divergence(prompts[i], plain[i].token_ids, answers[i].token_ids) for i in compared]
    divergences = tuple(each for each in found if each is not None)
    num_equal = len(compared) - len(divergences)
    return Exactness(verifier, level, True, len(compared), num_equal, divergences[:DIVERGENCES_KEPT])


def _divergence(prompt: EvalPrompt, plain: Sequence[int], own: Sequence[int]) -> Divergence | None:
    if plain == own:
        return None
    shorter = min(len(plain), len(own))
    index = next((i for i in range(shorter) if plain[i] != own[i]), shorter)
    ends = [tokens[index] if index < len(tokens) else None for tokens in (plain, own)]
    return Divergence(prompt.task, prompt.prompt_id, index, *ends)
