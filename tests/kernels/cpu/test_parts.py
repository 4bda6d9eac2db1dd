"""Steps of many tokens in parts: nothing that a token is computed from gets lost."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.kernels import StepInputs
from specdec.kernels.cpu.parts import MOST_TOKENS, split_step

Token = tuple[int, ...]


def step(counts: list[int], *, has_masks: bool) -> StepInputs:
    """Rows of so many tokens, every number of it different, and two more of each token."""
    total, rows = sum(counts), len(counts)
    long = torch.arange(4 * total).view(4, total)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    short = torch.arange(2 * rows, dtype=torch.int32).view(2, rows)
    tables = torch.arange(3 * rows, dtype=torch.int32).view(rows, 3)
    more = torch.arange(2 * total, dtype=torch.float32).view(total, 2)
    return (*long[:3], starts, *short, tables, long[3] if has_masks else None, more)


def by_token(inputs: StepInputs) -> list[Token]:
    """What each token is computed from, and which of its row's it is, counted from the row's end."""
    tokens, positions, slots, starts, seq_lens, committed, tables, masks, more = inputs
    found = []
    assert starts is not None
    assert more is not None
    for row, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        for t in range(first, last):
            own = [tensor[t].item() for tensor in (tokens, positions, slots, masks) if tensor is not None]
            shared = [tensor[row].tolist() for tensor in (seq_lens, committed, tables) if tensor is not None]
            found.append((*own, *more[t].tolist(), str(shared)))
    return found


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 70), st.booleans())
def test_parts_are_the_step(counts: list[int], most: int, has_masks: bool) -> None:
    whole = step(counts, has_masks=has_masks)
    parts = list(split_step(whole, most))
    assert [t for part, _ in parts for t in range(part.start, part.stop)] == list(range(sum(counts)))
    assert all(part.stop - part.start <= most for part, _ in parts)
    assert len(parts) == 1 or min(part.stop - part.start for part, _ in parts[:-1]) > most / 3
    assert [token for _, own in parts for token in by_token(own)] == by_token(whole)
    for part, own in parts:
        starts = own[3]
        assert starts is not None
        assert (starts[0], starts[-1]) == (0, part.stop - part.start)
        assert (starts.diff() > 0).all(), "a row without a token"


def test_a_step_of_few_tokens_stays_as_it_is() -> None:
    whole = step([MOST_TOKENS - 1, 1], has_masks=False)
    ((part, own),) = split_step(whole)
    assert part == slice(0, MOST_TOKENS)
    assert own is whole
