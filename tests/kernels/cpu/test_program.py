"""Recording: what may be a result, and how memory between calls is shared."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from specdec.kernels import StepInputs
from specdec.kernels.cpu.calls import _Buffer, _share_memory
from specdec.kernels.cpu.library import KIND_F32, LINEAR, Library, Op, Step
from tests.native import NativeKernels, runnable_levels


def inputs(num_tokens: int) -> StepInputs:
    ids = torch.arange(num_tokens)
    one = torch.tensor([num_tokens], dtype=torch.int32)
    starts = torch.tensor([0, num_tokens], dtype=torch.int32)
    return (ids, ids.clone(), ids.clone(), starts, one, one.clone(), one.view(1, 1).clone(), None)


def test_a_program_does_what_its_calls_do(native: NativeKernels) -> None:
    kernels = native.backend(num_threads=3)
    table = kernels.pack(torch.randn(50, 24))
    first, second = (kernels.pack(torch.randn(*shape)) for shape in ((64, 24), (24, 32)))
    step = inputs(2)

    def compute(ids: torch.Tensor) -> list[torch.Tensor]:
        hidden = kernels.embedding(ids, table)
        inner = kernels.silu_and_mul(kernels.linear(hidden, first))
        hidden = kernels.add(hidden, kernels.linear(inner, second))
        return [kernels.scale(hidden, 2.0), hidden]

    assert step[0] is not None
    ids = step[0]
    program = kernels.record(lambda: compute(ids), step)
    assert program is not None
    for count in (1, 37, 2, 50):
        found = program(inputs(count))
        for result, expected in zip(found, compute(torch.arange(count)), strict=True):
            assert torch.equal(result, expected)


def test_a_program_takes_more_of_each_token_than_a_step_has(native: NativeKernels) -> None:
    kernels = native.backend(num_threads=3)
    table, matrix = kernels.pack(torch.randn(2000, 24)), kernels.pack(torch.randn(40, 56))
    step, more = inputs(2), torch.randn(2, 32)

    def compute(ids: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
        both = kernels.concat(kernels.embedding(ids, table), given)
        hidden = kernels.linear(both, matrix)
        return [hidden, both, *kernels.largest(hidden)]

    assert step[0] is not None
    ids = step[0]
    program = kernels.record(lambda: compute(ids, more), (*step, more))
    assert program is not None
    for count in (1, 37, 2, 700):
        given = torch.randn(count, 32)
        for result, expected in zip(program((*inputs(count), given)), compute(torch.arange(count), given), strict=True):
            assert torch.equal(result, expected)


def test_any_number_of_threads_gives_the_same_bits(native: NativeKernels) -> None:
    """More threads than cores, panels and rows, and contexts that work at the same time."""
    table, matrix = torch.randn(50, 24), torch.randn(200, 24)

    def results(threads: int) -> list[torch.Tensor]:
        kernels, step = native.backend(num_threads=threads), inputs(2)
        packed = kernels.pack(table), kernels.pack(matrix)

        def compute() -> list[torch.Tensor]:
            assert step[0] is not None
            hidden = kernels.embedding(step[0], packed[0])
            for _ in range(20):
                hidden = kernels.add(hidden, kernels.linear(hidden, packed[1])[:, :24])
                hidden = kernels.rms_norm(hidden, torch.ones(24), 1e-5)
            return [kernels.linear(hidden, packed[1])]

        program = kernels.record(compute, step)
        assert program is not None
        return [program(inputs(count))[0] for count in (1, 5, 16, 17, 50)]

    expected = results(1)
    with ThreadPoolExecutor() as callers:
        for found in callers.map(results, (2, 3, 8)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_op_that_fails_is_reported_and_over(threads: int, native: NativeKernels) -> None:
    kernels = native.backend(num_threads=threads)
    with pytest.raises(MemoryError, match="ran out of memory"):
        kernels.library.run((Op * 1)(Op(LINEAR, sizes=(KIND_F32, 1 << 58, 64))), Step(1))
    assert kernels.scale(torch.ones(1, 2), 3.0).tolist() == [[3.0, 3.0]]


def test_a_result_must_come_from_a_kernel(native: NativeKernels) -> None:
    kernels, step = native.backend(), inputs(2)
    with pytest.raises(AssertionError, match="no kernel made"):
        kernels.record(lambda: [torch.zeros(2, 3)], step)
    assert kernels.scale(torch.ones(1, 2), 3.0).tolist() == [[3.0, 3.0]], "a failed recording is over"


def test_only_buffers_that_never_live_together_share_memory() -> None:
    lives = [(0, 2, 64), (1, 3, 128), (3, 4, 64), (4, 6, 192), (2, 2, 64), (5, 9, 64)]
    buffers = [_Buffer(size, size, made, read) for made, read, size in lives]
    total = _share_memory(buffers)
    for i, one in enumerate(buffers):
        assert 0 <= one.at <= total - one.row_bytes
        for other in buffers[:i]:
            apart = one.at + one.row_bytes <= other.at or other.at + other.row_bytes <= one.at
            assert apart or one.made > other.last_read or other.made > one.last_read
    assert total < sum(size for _, _, size in lives)


def test_a_thread_computes_while_another_records(native: NativeKernels) -> None:
    kernels, step = native.backend(), inputs(2)
    table = kernels.pack(torch.randn(50, 24))
    is_recording, has_computed = Event(), Event()

    def compute(ids: torch.Tensor) -> list[torch.Tensor]:
        hidden = kernels.scale(kernels.embedding(ids, table), 3.0)
        is_recording.set()
        assert has_computed.wait(60)
        return [kernels.scale(hidden, 2.0)]

    assert step[0] is not None
    ids = step[0]
    with ThreadPoolExecutor() as others:
        recorded = others.submit(kernels.record, lambda: compute(ids), step)
        assert is_recording.wait(60)
        mine = kernels.scale(torch.ones(1, 2), 3.0).tolist()
        other = kernels.record(lambda: [kernels.scale(kernels.embedding(ids, table), 5.0)], step)
        has_computed.set()
        program = recorded.result()
    assert mine == [[3.0, 3.0]]
    assert program is not None
    assert other is not None
    rows = kernels.embedding(torch.arange(37), table)
    assert torch.equal(program(inputs(37))[0], rows * 6.0)
    assert torch.equal(other(inputs(37))[0], rows * 5.0)


def test_threads_take_turns_at_a_library(native: NativeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(native.library(runnable_levels()[0]), 1)
    inside, overlapped, has_company = [0], [], Event()

    class Held:
        """Stays in the kernel until another call is in it too, or for a moment."""

        def specdec_logsumexp(self, *arguments: object) -> int:
            inside[0] += 1
            overlapped.append(inside[0] > 1)
            if inside[0] > 1:
                has_company.set()
            has_company.wait(0.2)
            inside[0] -= 1
            return 0

    with monkeypatch.context() as patch:
        patch.setattr(library, "_c", Held())
        with ThreadPoolExecutor(2) as callers:
            list(callers.map(library.logsumexp, [torch.ones(1, 2)] * 2))
    assert overlapped == [False, False]


@pytest.mark.parametrize(("status", "error"), [(1, MemoryError), (2, RuntimeError)])
def test_a_kernel_says_how_it_failed(
    status: int, error: type[Exception], native: NativeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(native.library(runnable_levels()[0]), 1)
    with monkeypatch.context() as patch:
        patch.setattr(library, "_c", SimpleNamespace(specdec_logsumexp=lambda *_: status))
        with pytest.raises(error, match="ran out of memory" if status == 1 else r"'logsumexp' failed \(status 2\)"):
            library.logsumexp(torch.ones(1, 2))


def test_a_program_keeps_alive_what_its_calls_read(native: NativeKernels) -> None:
    kernels, step = native.backend(), inputs(2)
    weights = torch.full((64, 16), 2.0)
    table, matrix = kernels.pack(torch.ones(50, 16)), kernels.pack(weights)
    fixed = [matrix, torch.ones(64)]
    kept = [weakref.ref(matrix.data), weakref.ref(fixed[1])]

    def compute() -> list[torch.Tensor]:
        assert step[0] is not None
        return [kernels.linear(kernels.embedding(step[0], table), fixed[0], fixed[1])]

    program = kernels.record(compute, step)
    fixed.clear()
    del matrix
    gc.collect()
    assert all(tensor() is not None for tensor in kept)
    assert program is not None
    assert torch.equal(program(inputs(3))[0], torch.full((3, 64), 33.0))
