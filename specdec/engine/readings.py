"""What the controller of `auto` did, as metrics."""

from __future__ import annotations

from collections.abc import Mapping

from specdec.core.control.explanation import Explanation
from specdec.metrics import Reading

AUTO_PREFIX = "spec_decode_auto_"

Values = dict[tuple[str, ...], float]


def readings(explanation: Explanation) -> list[Reading]:
    """The families of an explanation."""
    chosen: Values = {(name, str(length)): count for (name, length), count in explanation.chosen.items()}
    proposers = explanation.proposers
    tried: Values = {(each.name, str(j)): count for each in proposers for j, count in enumerate(each.tried)}
    kept: Values = {(each.name, str(j)): count for each in proposers for j, count in enumerate(each.kept)}
    drafting: Values = {(each.name,): each.draft_seconds for each in proposers}
    probes: Values = {(each.name,): each.num_probes for each in proposers}
    curve: Values = {(str(rows),): seconds for rows, seconds in explanation.step_seconds.items()}
    position = ("proposer", "position")
    return [
        _counter("choices", "Drafts chosen, by proposer and length; none is plain decoding.", chosen, "proposer", "k"),
        _counter("probes", "Of these, those that went against the estimates.", probes, "proposer"),
        _counter("positions", "Drafted positions that verification reached, from 0.", tried, *position),
        _counter("accepted_positions", "Of these, those that were accepted.", kept, *position),
        _counter("draft_seconds", "Seconds that proposers took to draft.", drafting, "proposer"),
        _counter("hint_seconds", "Seconds that hints took.", {(): explanation.hint_seconds}),
        _counter("follow_seconds", "Seconds of following without drafting.", {(): explanation.follow_seconds}),
        _counter(
            "probe_loss_seconds",
            "Seconds that probes and plain steps for comparison lost.",
            {(): explanation.probe_loss_seconds},
        ),
        _counter("decode_tokens", "Tokens of steps that only decoded.", {(): explanation.num_tokens}),
        _counter("decode_seconds", "Seconds of these steps.", {(): explanation.seconds}),
        _counter("expected_tokens", "Tokens that the choices promised.", {(): explanation.expected_tokens}),
        _counter("expected_seconds", "Seconds that the choices promised.", {(): explanation.expected_seconds}),
        _counter("plain_seconds", "Seconds that the steps would have taken plainly.", {(): explanation.plain_seconds}),
        Reading(AUTO_PREFIX + "step_seconds", "Seconds of a step, by its rows.", ("rows",), curve, is_counter=False),
    ]


def _counter(name: str, help_text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Reading:
    return Reading(AUTO_PREFIX + name, help_text, labels, values)
