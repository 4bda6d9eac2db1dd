"""Oracles as a few lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from specdec.eval.columns import POSITIONS_SHOWN, Rows, align, interval, percent
from specdec.eval.results import Oracle, Position, Result, Shadowed

CHOICE_WORDS = (
    "Oracle, at temperature 0: tokens per step with the best choice among the proposers' drafts and their beginnings\n"
    "at each step (oracle), the draft of which most is right (longest), that of the first who drafts (first), and\n"
    "right drafts of the longest length (perfect); measured: by the acceptance pass, {concurrency}\n"
)
MEMBER_WORDS = (
    "Drafts at every output token. alone: tokens per step by these; measured: by the acceptance pass; right: leading\n"
    "draft tokens that are right, the mean; none: share of the tokens where none is; C(j): share that is right at\n"
    "position j, of the drafts that have it and are right before it\n"
)
CEILING_WORDS = (
    "What lies between these drafts and right ones of the same length, in tokens per step: if all were right\n"
    "(perfect), up to the first token that the proposer cannot say (sayable), if each token were guessed as the first\n"
    "of a draft is, after committed tokens alone (fresh), and as they are (alone). Of what is lost the shares that go\n"
    "to the vocabulary, to guesses that are wrong wherever they stand, and to those after guesses or drafts' ends\n"
)


def oracle_table(result: Result) -> str:
    """What choosing reaches, by task; what each proposer would have drafted; and how near `auto` comes."""
    asked = result.settings.concurrency
    concurrency = "" if asked is None else f"{asked} prompt{'' if asked == 1 else 's'} at once"
    whole = [oracle for oracle in result.oracles if oracle.task is None]
    parts = [
        CHOICE_WORDS.format(concurrency=concurrency or "prompts at once not recorded") + _choices(result.oracles),
        MEMBER_WORDS + _members(whole),
        *_ceilings(whole),
        *(_reached(oracle, concurrency) for oracle in whole if oracle.share is not None),
    ]
    return "\n\n".join(parts)


def chooser(oracle: Oracle) -> str:
    """`auto`, or the names of those chosen from."""
    return oracle.proposer or "+".join(member.proposer for member in oracle.members)


def _choices(oracles: Sequence[Oracle]) -> str:
    header = ("of", "k", "task", "prompts", "measured", "oracle", "share", "95 % interval")
    rows: Rows = [(*header, "longest", "first", "perfect")]
    for oracle in oracles:
        first, share = oracle.task is None, oracle.share
        rows.append(
            (
                chooser(oracle) if first else "",
                str(oracle.num_speculative_tokens) if first else "",
                oracle.task or "all",
                str(oracle.num_prompts),
                _number(oracle.measured_tokens_per_step),
                _number(oracle.oracle_tokens_per_step),
                "-" if share is None else f"{share.value:.2f}",
                "-" if share is None else interval(share),
                _number(oracle.longest_tokens_per_step),
                _number(oracle.first_tokens_per_step),
                _number(oracle.perfect_tokens_per_step),
            )
        )
    return align(rows)


def _each_member(oracles: Sequence[Oracle]) -> list[Shadowed]:
    """Each proposer and length once."""
    members = {(each.proposer, each.num_speculative_tokens): each for oracle in oracles for each in oracle.members}
    return [*members.values()]


def _members(oracles: Sequence[Oracle]) -> str:
    members = _each_member(oracles)
    deepest = min(POSITIONS_SHOWN, max(len(member.positions) for member in members))
    header = ("proposer", "k", "alone", "measured", "right", "none")
    rows: Rows = [(*header, *(f"C({position})" for position in range(1, deepest + 1)))]
    return align(rows + [_member(member, deepest) for member in members])


def _member(member: Shadowed, deepest: int) -> tuple[str, ...]:
    shares = [_conditional(position) for position in member.positions[:deepest]]
    return (
        member.proposer,
        str(member.num_speculative_tokens),
        _number(member.alone_tokens_per_step),
        _number(member.measured_tokens_per_step),
        _number(member.mean_agreed),
        percent(member.agreed[0] / sum(member.agreed)) if sum(member.agreed) else "-",
        *shares,
        *["-"] * (deepest - len(shares)),
    )


def _ceilings(oracles: Sequence[Oracle]) -> list[str]:
    """One table, or none where nobody has a ceiling."""
    header = ("proposer", "k", "perfect", "sayable", "fresh", "alone")
    rows: Rows = [(*header, "vocabulary", "wrong", "after guesses")]
    for member in _each_member(oracles):
        if (best := member.ceiling) is not None:
            alone = member.alone_tokens_per_step
            steps = (best.perfect_tokens_per_step, best.sayable_tokens_per_step, best.fresh_tokens_per_step, alone)
            lost = max(steps[0] - alone, 1e-9)
            shares = [percent((before - after) / lost) for before, after in pairwise(steps)]
            rows.append((member.proposer, str(member.num_speculative_tokens), *map(_number, steps), *shares))
    return [CEILING_WORDS + align(rows)] if len(rows) > 1 else []


def _conditional(position: Position) -> str:
    return "-" if position.conditional is None else percent(position.conditional)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _reached(oracle: Oracle, concurrency: str) -> str:
    assert oracle.share is not None
    bounds = "" if oracle.share.low is None else f" ({interval(oracle.share)})"
    at_once = f", {concurrency}" if concurrency else ""
    return (
        f"{chooser(oracle)} k={oracle.num_speculative_tokens} reaches {oracle.share.value:.2f}{bounds} of the per-step "
        f"oracle of its members{at_once}"
    )
