"""The tables of a report that speak of oracles."""

from __future__ import annotations

from specdec.eval.oracle_table import chooser
from specdec.eval.report_tables import EMPTY, Cell, Column, Row, Table
from specdec.eval.report_text import interval, number, percent
from specdec.eval.results import Ceiling, Oracle, Position, Result, Shadowed

OF = (Column("chosen from"), Column("k"), Column("task"))
MEMBER = (*OF, Column("proposer"), Column("its k"))


def choices(result: Result) -> Table:
    """What choosing reaches: tokens per step and, under them, steps."""
    columns = (
        *(*OF, Column("prompts"), Column("tokens")),
        Column("measured", "measured_tokens_per_step"),
        Column("oracle", "oracle_tokens_per_step"),
        Column("share", "share"),
        Column("longest", "longest_tokens_per_step"),
        Column("first to draft", "first_tokens_per_step"),
        Column("perfect", "perfect_tokens_per_step"),
    )
    rows = tuple(
        (
            *_which(oracle),
            Cell(number(oracle.num_prompts)),
            Cell(number(oracle.num_tokens)),
            _per_step(oracle.measured_tokens_per_step, oracle.measured_steps),
            _per_step(oracle.oracle_tokens_per_step, oracle.num_steps),
            EMPTY if oracle.share is None else Cell(number(oracle.share.value), interval(oracle.share)),
            _per_step(oracle.longest_tokens_per_step, oracle.longest_steps),
            _per_step(oracle.first_tokens_per_step, oracle.first_steps),
            _per_step(oracle.perfect_tokens_per_step, oracle.perfect_steps),
        )
        for oracle in result.oracles
    )
    return Table("Tokens per step by the choice at each step; small under them: steps", columns, (rows,))


def _which(oracle: Oracle) -> Row:
    return Cell(chooser(oracle)), Cell(number(oracle.num_speculative_tokens)), Cell(oracle.task or "all prompts")


def _per_step(value: float | None, num_steps: int | None) -> Cell:
    return Cell(number(value), number(num_steps) if num_steps is not None else "")


def members(result: Result) -> Table:
    """A line for each member of each oracle, with the drafts' positions."""
    deepest = max((len(member.positions) for oracle in result.oracles for member in oracle.members), default=0)
    columns = (
        *MEMBER,
        Column("alone", "alone_tokens_per_step"),
        Column("measured", "measured_tokens_per_step"),
        Column("right", "mean_agreed"),
        Column("perfect", "perfect_tokens_per_step"),
        Column("sayable", "sayable_tokens_per_step"),
        Column("fresh", "fresh_tokens_per_step"),
        *(Column(f"position {place}", "conditional") for place in range(1, deepest + 1)),
    )

    def row(oracle: Oracle, member: Shadowed) -> Row:
        cells = [_position(position) for position in member.positions]
        return (
            *_member(oracle, member),
            _per_step(member.alone_tokens_per_step, member.num_steps),
            _per_step(member.measured_tokens_per_step, member.measured_steps),
            Cell(number(member.mean_agreed)),
            *_ceiling(member.ceiling),
            *cells,
            *[EMPTY] * (deepest - len(cells)),
        )

    bodies = tuple(tuple(row(oracle, member) for member in oracle.members) for oracle in result.oracles)
    caption = "Drafts at every output token; at a position: given the one before, of all, and right / reached / drafts"
    return Table(caption, columns, bodies)


def _member(oracle: Oracle, member: Shadowed) -> Row:
    return (*_which(oracle), Cell(member.proposer), Cell(number(member.num_speculative_tokens)))


def _ceiling(best: Ceiling | None) -> Row:
    if best is None:
        return (EMPTY, EMPTY, EMPTY)
    return (
        _per_step(best.perfect_tokens_per_step, best.perfect_steps),
        _per_step(best.sayable_tokens_per_step, best.sayable_steps),
        _per_step(best.fresh_tokens_per_step, best.fresh_steps),
    )


def _position(position: Position) -> Cell:
    counts = " / ".join(map(number, (position.num_accepted, position.num_reached, position.num_drafts)))
    return Cell(percent(position.conditional), f"{percent(position.unconditional)}; {counts}")


def agreed(result: Result) -> Table:
    """At which share of the output tokens how many draft tokens are right."""
    most = max((len(member.agreed) for oracle in result.oracles for member in oracle.members), default=0)
    columns = (*MEMBER, *(Column(f"{count} right", "agreed") for count in range(most)))

    def row(oracle: Oracle, member: Shadowed) -> Row:
        total = max(1, sum(member.agreed))
        cells = [Cell(percent(count / total), number(count)) for count in member.agreed]
        return (*_member(oracle, member), *cells, *[EMPTY] * (most - len(cells)))

    bodies = tuple(tuple(row(oracle, member) for member in oracle.members) for oracle in result.oracles)
    return Table("Output tokens by how many leading tokens of the draft there are right", columns, bodies)
