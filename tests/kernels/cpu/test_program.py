"""Recording: what may be a result, and how memory between calls is shared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from specdec.kernels import StepInputs
from specdec.kernels.cpu.calls import _Buffer, _share_memory
from specdec.kernels.cpu.library import KIND_F32, LINEAR, Op, Step
from tests.native import NativeKernels


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
