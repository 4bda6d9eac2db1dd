"""What the engine keeps of a request: its samples, and what was last reported of them."""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import replace

from specdec.core.sequence import Sequence
from specdec.core.stopping import visible_text
from specdec.metrics import EngineMetrics, SampleClock
from specdec.types import CompletionOutput, Request, RequestMetrics


class RequestState:
    """What the engine keeps of a request until its last sample ends."""

    def __init__(self, request: Request, sequences: list[Sequence]) -> None:
        self.request = request
        self.sequences = sequences
        self.metrics = RequestMetrics(arrival_time=time.monotonic())
        self.prompt_token_ids = list(request.prompt_token_ids)
        self.completions = [_completion(sequence) for sequence in sequences]
        self.clocks = [SampleClock(self.metrics, len(self.prompt_token_ids)) for _ in sequences]

    @property
    def num_unfinished(self) -> int:
        """Samples whose end is still to be reported."""
        return sum(not completion.finished for completion in self.completions)

    def unreported(self, known: Container[Sequence]) -> list[Sequence]:
        """Samples that are `known` to have changed since their last report, or can be seen to; all, where the report of
        the request's end may have been cut off."""
        if not self.num_unfinished:
            return self.sequences
        return [s for s in self.sequences if s in known or self._has_changed(s)]

    def _has_changed(self, sequence: Sequence) -> bool:
        reported = self.completions[sequence.index]
        return len(reported.token_ids) != sequence.num_output_tokens or reported.finished != sequence.is_finished

    def refresh(self, sequence: Sequence, counts: EngineMetrics, now: float) -> None:
        """Take over a sample's new state, and count what it gained."""
        before = self.completions[sequence.index]
        after = self.completions[sequence.index] = _completion(sequence, before)
        counts.record_sample(before, after, self.clocks[sequence.index], now)


def _completion(sequence: Sequence, before: CompletionOutput | None = None) -> CompletionOutput:
    """A copy of a sample's state: what a caller keeps must not change under its hands. It goes on from `before`."""
    tokens = sequence.output_token_ids
    logprobs, cumulative = None, None
    if sequence.request.params.logprobs is not None:
        logprobs = sequence.logprobs[: len(tokens)]
        old, cumulative = (0, 0.0) if before is None else (len(before.token_ids), before.cumulative_logprob or 0.0)
        cumulative += sum(entry[t].logprob for entry, t in zip(logprobs[old:], tokens[old:], strict=True))
    return CompletionOutput(
        index=sequence.index,
        text=visible_text(sequence),
        token_ids=tokens,
        cumulative_logprob=cumulative,
        logprobs=logprobs,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        error=sequence.error,
        speculation=replace(sequence.stats, accepted_per_position=list(sequence.stats.accepted_per_position)),
        provenance=list(sequence.provenance),
    )
