"""Recording: what may be a result, and how memory between calls is shared."""

from __future__ import annotations

import pytest
import torch

from specdec.kernels import StepInputs
from specdec.kernels.cpu.calls import _Buffer, _share_memory
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
