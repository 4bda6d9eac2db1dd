"""Where a head finds the feature that its next entry needs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.proposers.base import TargetStates
from specdec.proposers.features import FeatureStore
from specdec.types import Request, SamplingParams

SIZE = 3


def make_store() -> FeatureStore:
    store = FeatureStore(32, SIZE, 1, torch.float64, torch.device("cpu"))
    store.boundaries.fill_(float("nan"))
    return store


def make_sequence(count: int, blocks: list[int], index: int = 0, num_prompt: int | None = None) -> Sequence:
    token_ids = list(range(count))
    request = Request("r", tuple(token_ids[: num_prompt or count]), SamplingParams(), 0, 0)
    return Sequence(request, index, token_ids, block_table=blocks)


def compute(store: FeatureStore, sequence: Sequence, start: int, end: int) -> tuple[TargetStates, torch.Tensor]:
    """A step over [start, end): the feature of a position is its number."""
    states = TargetStates(start, end - start)
    features = torch.arange(start, end, dtype=torch.float64)[:, None]
    store.keep(sequence, states, features)
    return states, features


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_every_chunk_finds_the_features_before_its_positions(sizes: list[int]) -> None:
    store = make_store()
    total = sum(sizes) + 1
    sequence = make_sequence(total, list(range(10, 10 + total // SIZE + 1)))
    start = 0
    for size in sizes:
        states = TargetStates(start, size)
        features = torch.arange(start, start + size, dtype=torch.float64)[:, None]
        row = ScheduledRow(sequence, max(1, start), start + size - max(1, start)) if start + size > 1 else None
        if row is not None and row.num_scheduled_tokens:
            found = store.of_row(row, states, features)
            assert found is not None
            assert found[:, 0].tolist() == list(range(row.start - 1, row.end - 1))
        store.keep(sequence, states, features)
        start += size
    for block in range(start // SIZE):
        assert store.boundaries[10 + block].item() == (block + 1) * SIZE - 1


def test_after_a_hit_it_is_that_of_the_last_shared_block() -> None:
    store = make_store()
    compute(store, make_sequence(7, [4, 5, 6]), 0, 7)
    other = make_sequence(9, [4, 5, 9], index=1)
    assert store.before(other, 6) is None, "the block may be anyone's"
    other.num_hashed_blocks = 2
    states = TargetStates(6, 2)
    found = store.of_row(ScheduledRow(other, 6, 3), states, torch.tensor([[60.0], [70.0]], dtype=torch.float64))
    assert found is not None
    assert found[:, 0].tolist() == [5, 60, 70]


def test_waiting_samples_go_on_at_the_prompts_end() -> None:
    store = make_store()
    sequence, fork = make_sequence(5, [0, 1]), make_sequence(5, [0, 1], index=1)
    sequence.forks = [fork]
    compute(store, sequence, 0, 5)
    assert store.before(fork, 4) == torch.tensor([3.0])
    late = make_store()
    compute(late, sequence, 0, 4)
    late.forget(fork)
    compute(late, sequence, 4, 5)
    assert late.before(fork, 4) == torch.tensor([3.0])


def test_what_is_lost_is_not_made_up() -> None:
    store = make_store()
    sequence = make_sequence(12, [0, 1, 2, 3])
    compute(store, sequence, 0, 4)
    states = TargetStates(8, 2)
    assert store.of_row(ScheduledRow(sequence, 5, 5), states, torch.zeros(2, 1)) is None
    assert store.before(sequence, 8) is None
    store.forget(sequence)
    assert store.before(sequence, 4) is None
