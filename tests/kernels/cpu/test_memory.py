"""Memory for weights: pieces of chunks."""

from __future__ import annotations

import gc
import itertools
import weakref

from hypothesis import given
from hypothesis import strategies as st

from specdec.kernels.cpu.memory import CHUNK, HUGE_PAGE, WeightMemory, huge_pages


def test_huge_pages_start_at_one_and_are_as_many_as_asked_for() -> None:
    memory = huge_pages(3 * HUGE_PAGE + 5)
    assert memory.data_ptr() % HUGE_PAGE == 0
    assert len(memory) == 3 * HUGE_PAGE + 5
    memory.fill_(7)
    assert memory[-1] == 7


@given(st.lists(st.one_of(st.integers(1, 300), st.integers(CHUNK // 3, 2 * CHUNK)), max_size=8))
def test_pieces_are_aligned_and_apart(sizes: list[int]) -> None:
    memory = WeightMemory()
    pieces = [memory.take(size) for size in sizes]
    spans = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in pieces)
    assert [len(piece) for piece in pieces] == sizes
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_small_pieces_share_a_chunk() -> None:
    memory = WeightMemory()
    first, second = memory.take(100), memory.take(100)
    assert second.data_ptr() - first.data_ptr() == 128


def test_a_chunk_lives_as_long_as_its_pieces_and_no_longer() -> None:
    memory = WeightMemory()
    piece, large = memory.take(100), memory.take(2 * CHUNK)
    piece.fill_(3)
    storage = weakref.ref(large.untyped_storage())
    del memory, large
    gc.collect()
    assert storage() is None
    assert (piece == 3).all()
