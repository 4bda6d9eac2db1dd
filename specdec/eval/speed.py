"""From timed groups to speed: tokens a second, the measured speed-up, and the one that the parts predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from specdec.eval.curve import at
from specdec.eval.results import Curve, Prediction, Speed, Timing
from specdec.eval.session import Answer, GroupTimes, StepTimes
from specdec.eval.stats import Bootstrap, rate_ratio

Groups = Sequence[GroupTimes]


def timing(batch_size: int, groups: Groups) -> Timing:
    """What some groups took together."""
    answers = [answer for group in groups for answer in group.answers]
    return Timing(
        batch_size=batch_size,
        num_answers=len(answers),
        num_tokens=sum(group.num_tokens for group in groups),
        seconds=step_times(groups).total,
        time_per_output_token=_time_per_output_token(answers),
    )


def _time_per_output_token(answers: Iterable[Answer]) -> float | None:
    times = [(a.last_token - a.first_token) / (len(a.token_ids) - 1) for a in answers if len(a.token_ids) > 1]
    return sum(times) / len(times) if times else None


def step_times(groups: Groups) -> StepTimes:
    """All steps of the groups, summed."""
    return reduce(StepTimes.plus, (group.times for group in groups), StepTimes())


def speed(batch_size: int, plain: Groups, proposer: Groups, bootstrap: Bootstrap) -> Speed:
    """Both sides over the same groups of prompts, in the same order."""
    columns = [
        column
        for groups in (proposer, plain)
        for column in ([group.num_tokens for group in groups], [group.times.total for group in groups])
    ]
    return Speed(timing(batch_size, plain), timing(batch_size, proposer), bootstrap.estimate(rate_ratio, *columns))


def draft_lengths(answers: Iterable[Answer]) -> tuple[float, ...]:
    """`[m]`: the share of the answers' steps that verified m draft tokens."""
    nodes = [step.num_nodes for answer in answers for step in answer.steps]
    return tuple(nodes.count(m) / len(nodes) for m in range(max(nodes) + 1)) if nodes else ()


def predict(curve: Curve, plain: Groups, proposer: Groups) -> Prediction | None:
    """The speed-up at batch 1, from groups of one prompt each. None where no step could be timed."""
    own, base = step_times(proposer), step_times(plain)
    answers = [answer for group in proposer for answer in group.answers]
    lengths = draft_lengths(answers)
    num_plain, num_own = (sum(group.num_tokens for group in groups) for groups in (plain, proposer))
    if not lengths or not num_plain or not num_own:
        return None
    num_steps = sum(len(answer.steps) for answer in answers)
    return Prediction(
        tokens_per_step=sum(len(answer.token_ids) - 1 for answer in answers) / num_steps,
        draft_lengths=lengths,
        forward_1=at(curve, 1),
        verify=sum(share * at(curve, m + 1) for m, share in enumerate(lengths)),
        draft=own.propose / own.num_steps,
        overhead=own.rest / own.num_steps,
        plain_overhead=(base.rest + base.propose) / base.num_steps,
        plain_forward=base.forward / base.num_steps,
        measured_speedup=(num_own / own.total) / (num_plain / base.total),
    )
