"""Going on after an interrupt: nothing half done is repaired, all of it is derived anew from what is always whole.

An exception, or a signal's, may cut a step off between any two of its statements. What a step says for good is one
assignment, which drops the marks that were made before it: until then the sequences of the step are put back to them.
Queues, block tables, reference counts and drafts follow from the sequences and from the hashes of registered blocks,
which no interrupt leaves in between, so `Scheduler.restart` makes them anew. All of it may itself be interrupted, and
is then done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from specdec.core.committed import cut
from specdec.core.scheduler import Scheduler
from specdec.core.sequence import Sequence, Status
from specdec.core.stopping import begin_text
from specdec.types import SpeculationStats, TextStream

NewStream = Callable[[Sequence], TextStream | None]
"""Makes the text stream that a sample starts with, None if its tokens are not turned into text."""


class Mark(NamedTuple):
    """An unfinished sequence before a step: what the step's commit changes, so far as it is not made anew anyway."""

    sequence: Sequence
    num_tokens: int
    stats: SpeculationStats
    forks: list[Sequence]


def mark(sequence: Sequence) -> Mark:
    return Mark(sequence, sequence.num_tokens, sequence.stats.copy(), sequence.forks)


def recover(scheduler: Scheduler, samples: Iterable[Sequence], marks: Iterable[Mark], new_stream: NewStream) -> None:
    """Make everything whole, whatever was cut off where: `samples` are those of all unfinished requests, `marks` those
    of a step that has not been committed to its end. Doing it twice does no harm."""
    for each in marks:
        _undo(each, new_stream)
    listed = list(samples)
    for sequence in listed:
        if sequence.finish_reason is not None and not sequence.is_finished:
            begin_text(sequence, new_stream(sequence), sequence.num_output_tokens)
    scheduler.restart(listed)


def _undo(mark: Mark, new_stream: NewStream) -> None:
    """Put a sequence, and the samples that waited for its prompt, back to where they were. Log probabilities of the
    prompt stay: they are its own, however it goes on."""
    sequence, num_output_tokens = mark.sequence, mark.num_tokens - mark.sequence.num_prompt_tokens
    sequence.forks = mark.forks
    for fork in mark.forks:
        _reopen(fork, 0, Status.WAITING, new_stream)
    if sequence.num_tokens != mark.num_tokens or sequence.finish_reason is not None:
        _reopen(sequence, num_output_tokens, Status.RUNNING, new_stream)
    del sequence.provenance[num_output_tokens:]
    del sequence.logprobs[num_output_tokens:]
    sequence.stats = mark.stats
    # Last: as long as it is longer than its mark, it has to be put back.
    cut(sequence.token_ids, mark.num_tokens)


def _reopen(sequence: Sequence, num_output_tokens: int, status: Status, new_stream: NewStream) -> None:
    """Unfinished, with the text of its first output tokens."""
    begin_text(sequence, new_stream(sequence), num_output_tokens)
    sequence.status = status
    sequence.stop_reason = sequence.error = sequence.finish_reason = None
