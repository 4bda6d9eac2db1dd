"""What is done with a call of a kernel: do it at once, or write it down for every step to come."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.kernels.base import INPUTS, StepInputs
from specdec.kernels.cpu.library import ARENA, ATTEND, FIXED, INPUT, LINEAR, MAX_INPUTS, Library, Op, Operand, Step
from specdec.kernels.cpu.parts import split_step


@dataclass(frozen=True)
class Call:
    """One op: its operands in the order that the op has them, None for one that it does without; `out` are the
    indices of those that it fills."""

    code: int
    operands: tuple[torch.Tensor | None, ...]
    sizes: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    out: tuple[int, ...] = ()

    def op(self, places: Sequence[tuple[int, int, int]]) -> Op:
        """As the library takes it, with the place of each operand."""
        op = Op(self.code)
        for i, place in enumerate(places):
            op.operands[i] = Operand(*place)
        op.sizes[: len(self.sizes)] = self.sizes
        op.numbers[: len(self.numbers)] = self.numbers
        return op

    def results(self) -> list[torch.Tensor]:
        """The tensors that it fills."""
        filled = (self.operands[i] for i in self.out)
        return [tensor for tensor in filled if tensor is not None]

    @property
    def is_rowwise(self) -> bool:
        """Whether each row is computed from its own alone, by the one thread that has the row."""
        return self.code not in (LINEAR, ATTEND)


def run_now(library: Library, call: Call, num_tokens: int, inputs: StepInputs = ()) -> None:
    """Do one op. `inputs` are a step's, which attention looks at."""
    places = [(0, 0, 0) if tensor is None else (FIXED, tensor.data_ptr(), 0) for tensor in call.operands]
    step = Step(num_tokens)
    fill_inputs(step, inputs)
    ops = (Op * 1)(call.op(places))
    library.run(ops, step)


def fill_inputs(step: Step, inputs: StepInputs) -> None:
    """Point a step at its inputs."""
    for i, tensor in enumerate(inputs):
        assert tensor is None or tensor.is_contiguous(), "an input lies scattered"
        step.inputs[i] = None if tensor is None else tensor.data_ptr()
    if inputs:
        lengths, tables = inputs[INPUTS.index("seq_lens")], inputs[INPUTS.index("block_tables")]
        assert lengths is not None
        assert tables is not None
        assert lengths.dtype == tables.dtype == torch.int32
        step.rows, step.max_blocks = len(lengths), tables.shape[1]


@dataclass
class _Buffer:
    """A result that only the program itself reads: made in one phase, last read in another."""

    num_bytes: int  # while recording
    row_bytes: int
    made: int
    last_read: int
    at: int = -1


@dataclass
class Recorder:
    """Calls on tensors of a few rows, which stand for those of any number; one row would not show its stride."""

    inputs: StepInputs
    calls: list[Call] = field(default_factory=list)

    def finish(self, library: Library, results: Sequence[torch.Tensor]) -> RecordedProgram:
        """The program whose results are these tensors, each made by one of the calls."""
        made = {tensor.data_ptr(): tensor.nbytes for call in self.calls for tensor in call.results()}
        assert all(result.is_contiguous() and made.get(result.data_ptr()) == result.nbytes for result in results), (
            "a result that no kernel made"
        )
        assert len({result.data_ptr() for result in results}) == len(results), "a result given twice"
        assert len(self.inputs) + len(results) <= MAX_INPUTS, "too many results"
        layout = _Layout(self.calls, self.inputs, results)
        ops = (Op * len(self.calls))(*(call.op([layout.place(t) for t in call.operands]) for call in self.calls))
        fixed = [t for call in self.calls for t in call.operands if t is not None and layout.place(t)[0] == FIXED]
        forms = [(result.shape[1:], result.dtype) for result in results]
        return RecordedProgram(library, ops, layout.row_bytes, forms, fixed)


class _Layout:
    """Where each tensor of a recording lies when the program runs.

    Buffers share memory if one is last read before the other is made, with the end of a phase in between: two
    rowwise ops in a row may be at different rows at the same time.
    """

    def __init__(self, calls: Sequence[Call], inputs: StepInputs, results: Sequence[torch.Tensor]) -> None:
        given = [*inputs, *results]
        self._inputs = {tensor.data_ptr(): (i, tensor.nbytes) for i, tensor in enumerate(given) if tensor is not None}
        self._buffers: dict[int, _Buffer] = {}
        self._find(calls)
        self._starts = sorted(self._buffers)
        self.row_bytes = _share_memory(list(self._buffers.values()))

    def _find(self, calls: Sequence[Call]) -> None:
        phase, was_rowwise = 0, True
        for call in calls:
            phase += not (call.is_rowwise and was_rowwise)
            was_rowwise = call.is_rowwise
            for i, tensor in enumerate(call.operands):
                if tensor is None or self._input(tensor) is not None:
                    continue
                start = tensor.untyped_storage().data_ptr()
                assert i not in call.out or tensor.is_contiguous()
                if i in call.out:
                    row_bytes = -(-tensor.nbytes // len(tensor) // 64) * 64
                    self._buffers[start] = _Buffer(tensor.nbytes, row_bytes, phase, phase)
                elif start in self._buffers:
                    self._buffers[start].last_read = phase

    def _input(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Which input or result it is, or is a part of, and from which byte on."""
        where = tensor.data_ptr()
        for start, (number, size) in self._inputs.items():
            if start <= where < start + size:
                return number, where - start
        return None

    def place(self, tensor: torch.Tensor | None) -> tuple[int, int, int]:
        """Its space, and where in it."""
        if tensor is None:
            return (0, 0, 0)
        if (place := self._input(tensor)) is not None:
            return (INPUT, *place)
        where = tensor.data_ptr()
        i = bisect.bisect_right(self._starts, where) - 1
        if i >= 0 and where < self._starts[i] + self._buffers[self._starts[i]].num_bytes:
            return (ARENA, self._buffers[self._starts[i]].at, where - self._starts[i])
        return (FIXED, where, 0)


def _share_memory(buffers: list[_Buffer]) -> int:
    """Give every buffer its place, the largest first; the bytes a row of them all."""
    placed: list[_Buffer] = []
    for buffer in sorted(buffers, key=lambda buffer: -buffer.row_bytes):
        rivals = [other for other in placed if other.made <= buffer.last_read and buffer.made <= other.last_read]
        buffer.at = 0
        for other in sorted(rivals, key=lambda other: other.at):
            if buffer.at + buffer.row_bytes <= other.at:
                break
            buffer.at = max(buffer.at, other.at + other.row_bytes)
        placed.append(buffer)
    return max((buffer.at + buffer.row_bytes for buffer in buffers), default=0)


class RecordedProgram:
    """A recorded computation, called with a step's inputs. It owns the memory between its ops."""

    def __init__(
        self,
        library: Library,
        ops: ctypes.Array[Op],
        row_bytes: int,
        forms: Sequence[tuple[torch.Size, torch.dtype]],
        fixed: Sequence[torch.Tensor],
    ) -> None:
        self._library = library
        self._ops = ops
        self._row_bytes = row_bytes
        self._forms = forms  # of a row of each result
        self._fixed = tuple(fixed)  # kept alive: the ops hold addresses
        self._arena = torch.empty(0, dtype=torch.uint8)

    def __call__(self, inputs: StepInputs) -> list[torch.Tensor]:
        """The results of a step, [T, ...] each, in memory of their own."""
        assert inputs[0] is not None
        results = [torch.empty((len(inputs[0]), *shape), dtype=dtype) for shape, dtype in self._forms]
        for part, own in split_step(inputs):
            self._run(part.stop - part.start, (*own, *(result[part] for result in results)))
        return results

    def _run(self, num_tokens: int, inputs: StepInputs) -> None:
        needed = num_tokens * self._row_bytes + 64
        if self._arena.numel() < needed:
            self._arena = torch.empty(needed, dtype=torch.uint8)
        step = Step(num_tokens)
        fill_inputs(step, inputs)
        step.arena = self._arena.data_ptr() + -self._arena.data_ptr() % 64
        self._library.run(self._ops, step)
