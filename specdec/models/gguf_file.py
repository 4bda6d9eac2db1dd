"""The GGUF container: metadata and tensors of one memory-mapped file (versions 2 and 3, little endian).

It refuses to know what a model is: names and values are handed on as they stand. Layout: magic, version, counts,
key-value pairs, tensor infos, then, aligned, the tensors' data. Nothing in the file is trusted: every length is
checked against the file's size before anything of that length is read or allocated.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.kernels import QuantizedWeight
from specdec.models.gguf_types import CODED, SUPPORTED, GGMLType, dequantize, dequantize_into, name_of, read_codes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"))
    if code is not None
}
"""Formats of the fixed-size value types, by GGUF's number."""
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and what it is."""

    shape: tuple[int, ...]
    """Outermost dimension first, as torch has it (the file says it the other way round)."""
    kind: GGMLType
    offset: int
    """First byte, counted from the start of the file."""
    num_bytes: int


class GGUFFile:
    """One GGUF file. `metadata` holds plain Python values (lists for arrays), `tensors` every tensor by name.

    Raises ValueError, one line that names the file, for whatever is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
        try:
            self.metadata, self.tensors = _parse(_Cursor(self._data))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor's weights, or those of one entry of its first dimension, float32; the caller owns the memory."""
        shape = self.tensors[name].shape
        weights = torch.empty(shape if index is None else shape[1:])
        self.read_into(name, weights, index)
        return weights

    def read_into(self, name: str, out: torch.Tensor, index: int | None = None) -> None:
        """The same, written into a tensor of that shape and of any dtype, whose rows may lie apart."""
        info = self.tensors[name]
        offset, num_bytes = info.offset, info.num_bytes
        if index is not None:
            num_bytes //= info.shape[0]
            offset += index * num_bytes
        row_bytes = info.shape[-1] // info.kind.block_size * info.kind.num_bytes if info.shape else num_bytes
        raw = np.frombuffer(self._data, np.uint8, num_bytes, offset).reshape(-1, row_bytes)
        if out.dim() == 2 or out.is_contiguous():
            dequantize_into(raw, info.kind, out.view(len(raw), -1))
        else:
            out.copy_(dequantize(raw, info.kind).view(out.shape))

    def read_codes(self, name: str) -> QuantizedWeight | None:
        """A matrix as it is stored, None if it is none or of another kind than 4 or 8 bits in groups of 32."""
        info = self.tensors[name]
        if len(info.shape) != 2 or info.kind.name not in CODED:
            return None
        row_bytes = info.num_bytes // info.shape[0]
        raw = np.frombuffer(self._data, np.uint8, info.num_bytes, info.offset).reshape(-1, row_bytes)
        return read_codes(raw, info.kind)


class _Cursor:
    """A reading position in the header."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0

    def take(self, num_bytes: int) -> int:
        """Step over `num_bytes` and return where they start."""
        start, self.at = self.at, self.at + num_bytes
        if self.at > self.size:
            raise ValueError(
                f"truncated GGUF file: its header needs {num_bytes} bytes at offset {start}, "
                f"but the file ends at {self.size}"
            )
        return start

    def scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack_from(self.data, self.take(layout.size))[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings, each a 64-bit length and UTF-8. A vocabulary has 100,000: opening spends its time here."""
        data, at, size, unpack = self.data, self.at, self.size, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                if at > size:
                    break
                found.append(str(data[start:at], "utf-8"))
        except struct.error:
            at = size + 1
        except UnicodeDecodeError:
            raise ValueError(f"the string at offset {start} is not UTF-8; the file is corrupt") from None
        if at > size:
            raise ValueError(f"truncated GGUF file: a string in its header runs past the file's end at {size}")
        self.at = at
        return found

    def array(self) -> list[Any]:
        kind, count = self.scalar(_U32), self.scalar(_U64)
        if kind == _STRING:
            return self.strings(count)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise ValueError(f"array of unknown value type {kind}")
        start = self.take(count * layout.size)
        values: list[Any] = np.frombuffer(self.data, layout.format, count, start).tolist()
        return values

    def value(self) -> Any:
        kind = self.scalar(_U32)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        layout = _SCALARS.get(kind)
        if layout is None:
            raise ValueError(f"unknown value type {kind}")
        return self.scalar(layout)


def _parse(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    num_tensors, num_values = _preamble(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"metadata key {key!r} appears twice")
        try:
            metadata[key] = cursor.value()
        except ValueError as error:
            raise ValueError(f"metadata {key!r}: {error}") from None
    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment must be a power of two; got {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, info in infos:
        if name in tensors:
            raise ValueError(f"tensor {name!r} appears twice")
        tensors[name] = _placed(name, info, base, cursor.size)
    return metadata, tensors


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; the numbers of tensors and of metadata values."""
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise ValueError(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    cursor.take(4)
    version = cursor.scalar(_U32)
    if version & 0xFFFF == 0:
        raise ValueError("a big-endian GGUF file; only little-endian ones are read")
    if version not in VERSIONS:
        raise ValueError(f"GGUF version {version} is not supported (supported: 2 and 3)")
    num_tensors, num_values = cursor.scalar(_U64), cursor.scalar(_U64)
    # The shortest entry: a key's length, a value type and one byte; a name's length, dimensions, type and offset.
    for what, count, shortest in (("metadata values", num_values, 13), ("tensors", num_tensors, 24)):
        if count * shortest > cursor.size - cursor.at:
            raise ValueError(f"truncated or corrupt GGUF file: {cursor.size} bytes cannot hold {count} {what}")
    return num_tensors, num_values


def _tensor_info(cursor: _Cursor) -> tuple[str, TensorInfo]:
    """A tensor's name and facts; the offset is still relative to the data section."""
    name = cursor.string()
    num_dimensions = cursor.scalar(_U32)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.scalar(_U64) for _ in range(num_dimensions))[::-1]
    number, offset = cursor.scalar(_U32), cursor.scalar(_U64)
    kind = SUPPORTED.get(number)
    if kind is None:
        supported = ", ".join(kind.name for kind in SUPPORTED.values())
        raise ValueError(f"tensor {name!r} has type {name_of(number)}, which is not supported (supported: {supported})")
    if 0 in shape or shape[-1] % kind.block_size:
        raise ValueError(
            f"tensor {name!r} of shape {list(shape)} is not made of whole {kind.name} blocks of {kind.block_size}"
        )
    return name, TensorInfo(shape, kind, offset, math.prod(shape) // kind.block_size * kind.num_bytes)


def _placed(name: str, info: TensorInfo, base: int, size: int) -> TensorInfo:
    """`info` with its offset counted from the start of the file, checked to lie inside."""
    start = base + info.offset
    if start + info.num_bytes > size:
        raise ValueError(
            f"truncated GGUF file: tensor {name!r} ends at byte {start + info.num_bytes}, but the file has {size}"
        )
    return TensorInfo(info.shape, info.kind, start, info.num_bytes)
