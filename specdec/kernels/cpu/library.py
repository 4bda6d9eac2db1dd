"""The C interface of the compiled kernels: its structures, and one method a function."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from specdec.kernels.cpu.build import NoCompiler

MAX_OPERANDS, MAX_SIZES, MAX_NUMBERS, MAX_INPUTS = 8, 12, 4, 64

FIXED, ARENA, INPUT = 1, 2, 3
"""Where an operand lies; 0: it is absent."""

LINEAR, EMBED, RMS_NORM, ROTATE, GATE, ADD, SCALE, WRITE_KV, ATTEND = range(9)
"""Codes of ops."""

KIND_F32, KIND_BF16, KIND_Q8, KIND_Q4 = range(4)
"""Kinds of packed weights."""

CACHED = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Kinds of cached entries."""


class Operand(ctypes.Structure):
    _fields_ = (("space", ctypes.c_int64), ("at", ctypes.c_int64), ("offset", ctypes.c_int64))


class Op(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int64),
        ("operands", Operand * MAX_OPERANDS),
        ("sizes", ctypes.c_int64 * MAX_SIZES),
        ("numbers", ctypes.c_double * MAX_NUMBERS),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("arena", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p * MAX_INPUTS),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "specdec_open": ([_INT], _POINTER),
    "specdec_close": ([_POINTER], None),
    "specdec_run": ([_POINTER, _POINTER, _INT, _POINTER], ctypes.c_int),
    "specdec_packed_bytes": ([_INT, _INT, _INT], _INT),
    "specdec_pack": ([_POINTER, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER], ctypes.c_int),
    "specdec_move": ([_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT], ctypes.c_int),
    "specdec_argmax": ([_POINTER, _POINTER, _INT, _INT, _INT, _POINTER], ctypes.c_int),
    "specdec_read": ([_POINTER, _POINTER, _INT, ctypes.POINTER(ctypes.c_uint64)], ctypes.c_int),
}


class Library:
    """The kernels of one shared library with threads of their own; not to be called from two threads at once."""

    def __init__(self, path: Path, num_threads: int) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise NoCompiler(f"the compiled kernels cannot be loaded: {error}") from None
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.argtypes, function.restype = arguments, result
        self.num_threads = num_threads
        self._context = self._c.specdec_open(num_threads)
        if not self._context:
            raise ValueError(f"{num_threads} threads cannot be started")

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._c.specdec_close(self._context)

    def run(self, ops: ctypes.Array[Op], step: Step) -> None:
        """Do `ops` in order."""
        _check(self._c.specdec_run(self._context, ops, len(ops), ctypes.byref(step)))

    def pack(self, kind: int, shape: torch.Size, *parts: torch.Tensor | None) -> torch.Tensor:
        """A matrix [out, in] in packed form, uint8: of its values, or of codes, scales and mins."""
        outputs, inputs = shape
        size = self._c.specdec_packed_bytes(kind, inputs, outputs)
        # Aligned to a cache line, with room behind for what is fetched ahead of its use.
        memory = torch.empty(size + 64, dtype=torch.uint8)
        packed = memory[-memory.data_ptr() % 64 :][:size]
        values, scales, mins = (address(part) for part in (*parts, None, None)[:3])
        _check(self._c.specdec_pack(self._context, kind, inputs, outputs, values, scales, mins, packed.data_ptr()))
        return packed

    def move(self, caches: Sequence[torch.Tensor], bytes_each: int, start: torch.Tensor, end: torch.Tensor) -> None:
        """In each cache copy entries of `bytes_each` bytes from slots `start` to slots `end`, int64 [n]."""
        addresses = (ctypes.c_void_p * len(caches))(*(cache.data_ptr() for cache in caches))
        _check(
            self._c.specdec_move(
                self._context, addresses, len(caches), bytes_each, address(start), address(end), len(start)
            )
        )

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """The first place of each row's largest, float32 [n, V] -> int64 [n]."""
        out = torch.empty(len(logits), dtype=torch.int64)
        rows, columns = logits.shape
        _check(self._c.specdec_argmax(self._context, address(logits), rows, columns, logits.stride(0), out.data_ptr()))
        return out

    def read(self, memory: torch.Tensor) -> None:
        """Read all of a contiguous tensor, every thread a share: to see how fast memory is."""
        total = ctypes.c_uint64()
        _check(self._c.specdec_read(self._context, memory.data_ptr(), memory.nbytes, ctypes.byref(total)))


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(status: int) -> None:
    if status:
        raise MemoryError("the kernels ran out of memory")
