"""The tensors of a step, cut for those who draft from it."""

from __future__ import annotations

import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.base import NOTHING, Wants
from specdec.proposers.states import target_states
from specdec.step.batch import Batch
from specdec.step.model import Computed
from specdec.types import Draft, Request, SamplingParams, Verdict

ALL = Wants(hidden=True, aux_layers=(2,), logits=True)


def row(name: str, count: int, start: int, draft: Draft, proposer: str = "x") -> ScheduledRow:
    request = Request(name, tuple(range(count)), SamplingParams(), 0, 0, proposer=proposer)
    sequence = Sequence(request, 0, list(range(count)), block_table=[0, 1, 2, 3])
    return ScheduledRow(sequence, start, count - start + len(draft), draft)


def test_what_was_rejected_is_left_out_of_states_but_not_of_logits() -> None:
    """Three rows: a tree of which the path 1, 2 is kept; a chain kept in part; one whose proposer wants nothing."""
    rows = (
        row("tree", 3, 1, Draft((7, 8, 9), (-1, -1, 1))),
        row("chain", 2, 1, Draft((5, 6))),
        row("other", 2, 0, Draft(), proposer="y"),
    )
    batch = Batch.build(Schedule(rows), 4, torch.device("cpu"))
    hidden = torch.arange(batch.num_tokens, dtype=torch.float64)[:, None]
    logits = torch.arange(len(batch.logits_indices), dtype=torch.float64)[:, None]
    verdicts = [Verdict((8, 9, 0), (1, 2)), Verdict((5, 0), (0,)), Verdict((0,))]
    states = target_states(batch, verdicts, {"x": ALL, "y": NOTHING}, Computed(hidden, {2: hidden + 100}, logits))
    tree, chain = (states.pop(each.sequence) for each in rows[:2])
    assert not states
    assert (tree.start, tree.end, tree.path) == (1, 5, (1, 2))
    assert tree.hidden is not None
    assert tree.hidden[:, 0].tolist() == [0, 1, 3, 4]
    assert tree.aux[2][:, 0].tolist() == [100, 101, 103, 104]
    assert tree.judged == (2, 7, 8, 9)
    assert tree.logits is not None
    assert tree.logits[:, 0].tolist() == [0, 1, 2, 3]
    assert (chain.start, chain.end, chain.judged) == (1, 3, (1, 5, 6))
    assert chain.hidden is not None
    assert chain.hidden[:, 0].tolist() == [5, 6]


def test_a_chunk_of_a_prompt_has_states_and_no_logits() -> None:
    chunk = row("chunk", 9, 2, Draft())
    cut = ScheduledRow(chunk.sequence, 2, 3)
    batch = Batch.build(Schedule((cut,)), 4, torch.device("cpu"))
    states = target_states(
        batch, [Verdict()], {"x": ALL}, Computed(torch.zeros(3, 1), {2: torch.zeros(3, 1)}, torch.empty(0, 1))
    )
    left = states[chunk.sequence]
    assert (left.start, left.end, left.judged, left.logits) == (2, 5, (), None)
