"""The C interface of the compiled kernels: its structures, and one method a function."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from specdec.kernels.cpu.build import NoCompiler
from specdec.kernels.cpu.memory import WeightMemory
from specdec.kernels.noise import NoiseKeys

MAX_OPERANDS, MAX_SIZES, MAX_NUMBERS, MAX_INPUTS = 8, 12, 4, 512

FIXED, ARENA, INPUT = 1, 2, 3
"""Where an operand lies; 0: it is absent."""

LINEAR, EMBED, RMS_NORM, ROTATE, GATE, ADD, SCALE, WRITE_KV, ATTEND, LARGEST = range(10)
"""Codes of ops."""

OUT_OF_MEMORY = 1
"""The status of a kernel that found no memory; 0: done; others: it failed in another way."""

KIND_F32, KIND_BF16, KIND_Q8, KIND_Q4, KIND_Q8_ROWS = range(5)
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


class RowFilter(ctypes.Structure):
    """`top_p`, `top_k`, what logits are divided by, and how far below the likeliest a token may be, 0 or less."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("divisor", ctypes.c_float),
        ("reach", ctypes.c_float),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "specdec_open": ([_INT], _POINTER),
    "specdec_close": ([_POINTER], None),
    "specdec_run": ([_POINTER, _POINTER, _INT, _POINTER], ctypes.c_int),
    "specdec_packed_bytes": ([_INT, _INT, _INT], _INT),
    "specdec_pack": ([_POINTER, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER], ctypes.c_int),
    "specdec_move": ([_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT], ctypes.c_int),
    "specdec_largest": ([_POINTER, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER], ctypes.c_int),
    "specdec_logsumexp": ([_POINTER, _POINTER, _INT, _INT, _INT, _POINTER], ctypes.c_int),
    "specdec_filter": ([_POINTER, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER], ctypes.c_int),
    "specdec_gumbel_argmax": ([_POINTER, _POINTER, *[_INT] * 4, *[_POINTER] * 4], ctypes.c_int),
    "specdec_read": ([_POINTER, _POINTER, _INT, ctypes.POINTER(ctypes.c_uint64)], ctypes.c_int),
}


class Library:
    """The kernels of one shared library with threads of their own. Those who call from several threads take turns."""

    def __init__(self, path: Path, num_threads: int) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise NoCompiler(f"the compiled kernels cannot be loaded: {error}") from None
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(self._c, name, None)
            if function is None:
                raise NoCompiler(f"the compiled kernels cannot be used: {path} lacks {name}")
            function.argtypes, function.restype = arguments, result
        self.num_threads = num_threads
        self._weights = WeightMemory()
        self._turn = threading.Lock()
        self._context = self._c.specdec_open(num_threads)
        if not self._context:
            raise ValueError(f"{num_threads} threads cannot be started")

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._c.specdec_close(self._context)

    def _call(self, name: str, *arguments: object) -> None:
        """Call the kernel of this name. MemoryError if memory ran out, RuntimeError if it failed otherwise."""
        with self._turn:
            status = getattr(self._c, f"specdec_{name}")(self._context, *arguments)
        if status == OUT_OF_MEMORY:
            raise MemoryError("the kernels ran out of memory")
        if status:
            raise RuntimeError(f"the compiled kernel {name!r} failed (status {status})")

    def run(self, ops: ctypes.Array[Op], step: Step) -> None:
        """Do `ops` in order."""
        self._call("run", ops, len(ops), ctypes.byref(step))

    def pack(self, kind: int, shape: torch.Size, *parts: torch.Tensor | None) -> torch.Tensor:
        """A matrix [out, in] in packed form, uint8: of its values, or of codes, scales and mins."""
        outputs, inputs = shape
        size = self._c.specdec_packed_bytes(kind, inputs, outputs)
        with self._turn:
            packed = self._weights.take(size)
        values, scales, mins = (address(part) for part in (*parts, None, None)[:3])
        self._call("pack", kind, inputs, outputs, values, scales, mins, packed.data_ptr())
        return packed

    def move(self, caches: Sequence[torch.Tensor], bytes_each: int, start: torch.Tensor, end: torch.Tensor) -> None:
        """In each cache copy entries of `bytes_each` bytes from slots `start` to slots `end`, int64 [n]."""
        addresses = (ctypes.c_void_p * len(caches))(*(cache.data_ptr() for cache in caches))
        self._call("move", addresses, len(caches), bytes_each, address(start), address(end), len(start))

    def largest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The first place of each row's largest and the largest, float32 [n, V] -> int64 [n], float32 [n]."""
        tokens, values = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
        self._call("largest", *_matrix(logits), tokens.data_ptr(), values.data_ptr())
        return tokens, values

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        """The logarithm of each row's sum of e^x, float32 [n, V] -> float64 [n]."""
        out = torch.empty(len(logits), dtype=torch.float64)
        self._call("logsumexp", *_matrix(logits), out.data_ptr())
        return out

    def filter_rows(self, logits: torch.Tensor, filters: Sequence[RowFilter]) -> torch.Tensor:
        """Each row as its filter leaves it, float32 [n, V]."""
        out = torch.empty(logits.shape)
        asked = (RowFilter * len(filters))(*filters)
        self._call("filter", *_matrix(logits), asked, out.data_ptr())
        return out

    def gumbel_argmax(
        self, logits: torch.Tensor, rows: Sequence[int], keys: NoiseKeys
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For each key the token of its row whose logit plus noise is highest, int64 [n], and the sum, float64 [n];
        logits float32 or float64."""
        count, (start, _, columns, stride) = len(keys), _matrix(logits)
        tokens, scores = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.float64)
        words = (ctypes.c_uint32 * (5 * count))(*(word for key in keys for word in key))
        at = (ctypes.c_int64 * count)(*rows)
        is_double = int(logits.dtype == torch.float64)
        results = (tokens.data_ptr(), scores.data_ptr())
        self._call("gumbel_argmax", start, is_double, columns, stride, count, at, words, *results)
        return tokens, scores

    def read(self, memory: torch.Tensor) -> None:
        """Read all of a contiguous tensor, every thread a share: to see how fast memory is."""
        total = ctypes.c_uint64()
        self._call("read", memory.data_ptr(), memory.nbytes, ctypes.byref(total))


def _matrix(logits: torch.Tensor) -> tuple[int, int, int, int]:
    """Address, rows, columns and the elements from one row to the next."""
    rows, columns = logits.shape
    return logits.data_ptr(), rows, columns, logits.stride(0)


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
