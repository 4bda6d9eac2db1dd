"""`--explain-speculation`: what the proposer `auto` chose and why, as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from specdec.core.control.explanation import Explanation, ProposerAccount
from specdec.core.control.types import PLAIN


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """What was chosen how often, each proposer's figures, T(M), and tokens a second as expected and as measured."""
    total = explanation.num_choices
    yield f"speculation: {total:,} choices of who drafts, plain decoding {100 * explanation.plain_share:.0f} % of them"
    for account in explanation.proposers:
        yield from _proposer(explanation, account)
    if not total:
        return
    points = sorted(explanation.step_seconds.items())
    one = points[0][1]
    yield "  a step by its rows: " + ", ".join(f"{rows}: {1000 * t:.2f} ms (x{t / one:.2f})" for rows, t in points)
    plain, expected, measured = (
        explanation.plain_goodput,
        explanation.expected_goodput,
        explanation.measured_goodput,
    )
    if not plain or not measured:
        return
    yield (
        f"  tokens a second: {measured:.1f} measured, {expected:.1f} expected, {plain:.1f} plain by the figures above; "
        f"speed-up {measured / plain:.2f} measured, {expected / plain:.2f} expected"
    )
    yield (
        f"  probes lost {1000 * explanation.probe_loss_seconds:.1f} ms, hints took "
        f"{1000 * explanation.hint_seconds:.1f} ms and following {1000 * explanation.follow_seconds:.1f} ms of "
        f"{1000 * explanation.seconds:,.0f} ms"
    )


def _proposer(explanation: Explanation, account: ProposerAccount) -> Iterator[str]:
    lengths = {k: n for (name, k), n in sorted(explanation.chosen.items()) if name == account.name != PLAIN}
    chosen = ", ".join(f"k = {k}: {count}" for k, count in lengths.items()) or "never chosen"
    state = "; off for now: it cost more than it brought" if account.is_off else ""
    yield f"  {account.name}: {chosen}; {account.num_probes} of these to look again{state}"
    if account.tried:
        rates = ", ".join(f"{100 * rate:.0f}" for rate in account.conditional_acceptance)
        yield f"    accepted by position, given the one before, in %: {rates} (of {account.tried[0]} drafts)"
    if account.num_asked:
        mean = 1e6 * account.draft_seconds / account.num_asked
        yield f"    a draft took {mean:.0f} microseconds on average, {1e6 * account.next_draft_seconds:.0f} lately"
