"""The CPU's kernels behind the contract of every backend. States are float32, whatever the weights are.

Results have the same bits however many rows share a call and however many threads share the work.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch

from specdec.kernels import reference
from specdec.kernels.base import INPUTS, Program, StepInputs
from specdec.kernels.cpu.calls import Call, Recorder, run_now
from specdec.kernels.cpu.library import (
    ADD,
    ATTEND,
    CACHED,
    EMBED,
    GATE,
    KIND_BF16,
    KIND_F32,
    KIND_Q4,
    KIND_Q8,
    KIND_Q8_ROWS,
    LARGEST,
    LINEAR,
    RMS_NORM,
    ROTATE,
    SCALE,
    WRITE_KV,
    Library,
    RowFilter,
)
from specdec.kernels.noise import NoiseKeys
from specdec.kernels.weights import PackedWeight, QuantizedWeight, Weight

MAX_REPEATS = 256
"""Query heads that may share one head of keys."""


class _Recording(threading.local):
    """What this thread records; None where it computes."""

    recorder: Recorder | None = None


class CpuKernels:
    """One op a method; see `specdec.kernels.base.Kernels`. Engines in several threads may share it."""

    own_threads = True

    def __init__(self, library: Library) -> None:
        self.library = library
        self._recording = _Recording()

    def num_threads(self) -> int:
        return self.library.num_threads

    def state_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def cache_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in CACHED else torch.float32

    def pack(self, weight: torch.Tensor | QuantizedWeight) -> Weight:
        if isinstance(weight, QuantizedWeight):
            kind = KIND_Q4 if weight.mins is not None else KIND_Q8_ROWS if weight.by_rows else KIND_Q8
            parts = [weight.codes, weight.scales, weight.mins]
        else:
            kind = KIND_BF16 if weight.dtype == torch.bfloat16 else KIND_F32
            parts = [weight if kind == KIND_BF16 else weight.float()]
        parts = [None if part is None else part.contiguous() for part in parts]
        return PackedWeight(self.library.pack(kind, weight.shape, *parts), kind, weight.shape)

    def record(self, function: Callable[[], Sequence[torch.Tensor]], inputs: StepInputs) -> Program | None:
        assert self._recording.recorder is None, "recordings do not nest"
        recorder = self._recording.recorder = Recorder(inputs)
        try:
            return recorder.finish(self.library, function())
        finally:
            self._recording.recorder = None

    def _do(self, call: Call, num_tokens: int, inputs: StepInputs = ()) -> None:
        recorder = self._recording.recorder
        if recorder is None:
            run_now(self.library, call, num_tokens, inputs)
        else:
            recorder.calls.append(call)

    def linear(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = self._packed(weight)
        outputs, inputs = weight.shape
        out = torch.empty(len(x), outputs)
        sizes = (weight.kind, inputs, outputs, _row_stride(x), outputs)
        offset = None if bias is None else _floats(bias)
        self._do(Call(LINEAR, (x, weight.data, offset, out), sizes, out=(3,)), len(x))
        return out

    def embedding(self, token_ids: torch.Tensor, weight: Weight) -> torch.Tensor:
        weight = self._packed(weight)
        out = torch.empty(len(token_ids), weight.shape[1])
        sizes = (weight.kind, weight.shape[1], weight.shape[0], weight.shape[1])
        self._do(Call(EMBED, (token_ids, weight.data, out), sizes, out=(2,)), len(token_ids))
        return out

    def _packed(self, weight: Weight) -> PackedWeight:
        packed = weight if isinstance(weight, PackedWeight) else self.pack(weight)
        assert isinstance(packed, PackedWeight)
        return packed

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        size = x.shape[-1]
        out = torch.empty(x.shape)
        count = math.prod(x.shape[1:]) // size
        sizes = (count, size, _row_stride(x), count * size, int(unit_offset))
        self._do(Call(RMS_NORM, (x, _floats(weight), out), sizes, (eps,), out=(2,)), len(x))
        return out

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape)
        sizes = (x.shape[-1], _row_stride(x), _row_stride(y), x.shape[-1])
        self._do(Call(ADD, (x, y, out), sizes, out=(2,)), len(x))
        return out

    def concat(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left, right = x.shape[-1], y.shape[-1]
        out = torch.empty(len(x), left + right)
        # What the first call makes is all of the result; the second fills its part of that.
        self._do(Call(SCALE, (x, None, out), (left, _row_stride(x), 0, left + right), (1.0,), out=(2,)), len(x))
        part = out[:, left:]
        self._do(Call(SCALE, (y, None, part), (right, _row_stride(y), 0, left + right), (1.0,)), len(y))
        return out

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        out = torch.empty(x.shape)
        self._do(
            Call(SCALE, (x, None, out), (x.shape[-1], _row_stride(x), 0, x.shape[-1]), (factor,), out=(2,)), len(x)
        )
        return out

    def rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        _, heads, size = x.shape
        out = torch.empty(x.shape)
        sizes = (heads, size, cos.shape[-1], _row_stride(x), heads * size)
        self._do(Call(ROTATE, (x, _floats(cos), _floats(sin), positions, out), sizes, out=(4,)), len(x))
        return out

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate(x, is_silu=True)

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate(x, is_silu=False)

    def _gate(self, x: torch.Tensor, *, is_silu: bool) -> torch.Tensor:
        size = x.shape[-1] // 2
        out = torch.empty(len(x), size)
        self._do(Call(GATE, (x, None, out), (size, _row_stride(x), 0, size, int(is_silu)), out=(2,)), len(x))
        return out

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        _, groups, size = key.shape
        sizes = (groups, size, CACHED[key_cache.dtype], _row_stride(key), _row_stride(value))
        self._do(Call(WRITE_KV, (key, value, key_cache, value_cache, slot_mapping), sizes), len(key))

    def move_kv(self, caches: Sequence[torch.Tensor], slots_from: torch.Tensor, slots_to: torch.Tensor) -> None:
        bytes_each = caches[0][0, 0].nbytes
        assert all(cache.is_contiguous() and cache[0, 0].nbytes == bytes_each for cache in caches)
        self.library.move(caches, bytes_each, slots_from.contiguous(), slots_to.contiguous())

    def paged_attention(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        *,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        committed_lens: torch.Tensor,
        block_tables: torch.Tensor,
        positions: torch.Tensor,
        ancestor_masks: torch.Tensor | None,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        first_entry: int = 0,
    ) -> torch.Tensor:
        tokens, heads, size = query.shape
        block_size, groups = key_cache.shape[1:3]
        assert heads // groups <= MAX_REPEATS
        out = torch.empty(query.shape)
        sizes = (
            heads,
            groups,
            size,
            block_size,
            CACHED[key_cache.dtype],
            sliding_window or 0,
            first_entry,
            _row_stride(query),
            heads * size,
        )
        call = Call(ATTEND, (query, key_cache, value_cache, out), sizes, (scale, soft_cap or 0.0), out=(3,))
        rows = (query_start_loc, seq_lens, committed_lens, block_tables, ancestor_masks)
        inputs = (None, positions, None, *rows)
        recorder = self._recording.recorder
        if recorder is not None:
            own = [t for name, t in zip(INPUTS, recorder.inputs, strict=False) if name in _ATTENDED]
            assert all(a is b for a, b in zip(own, (positions, *rows), strict=True)), "inputs of another step"
        self._do(call, tokens, inputs)
        return out

    def read(self, memory: torch.Tensor) -> None:
        assert memory.is_contiguous()
        self.library.read(memory)

    def largest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._recording.recorder is not None:
            tokens, values = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
            sizes = (logits.shape[-1], _row_stride(logits))
            self._do(Call(LARGEST, (logits, tokens, values), sizes, out=(1, 2)), len(logits))
            return tokens, values
        return self.library.largest(logits) if _is_matrix(logits) else reference.largest(logits)

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        return self.library.logsumexp(logits) if _is_matrix(logits) else reference.logsumexp(logits)

    def filter_logits(
        self,
        logits: torch.Tensor,
        divisors: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
    ) -> torch.Tensor:
        if not _is_matrix(logits):
            return reference.filter_logits(logits, divisors, top_k, top_p, min_p)
        shares = [math.log(share) if share else -math.inf for share in min_p]
        return self.library.filter_rows(logits, [*map(RowFilter, top_p, top_k, divisors, shares)])

    def gumbel_argmax(
        self, logits: torch.Tensor, rows: Sequence[int], keys: NoiseKeys
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not _is_matrix(logits, torch.float32, torch.float64):
            return reference.gumbel_argmax(logits, rows, keys)
        return self.library.gumbel_argmax(logits, rows, keys)


_ATTENDED = frozenset(INPUTS) - {"token_ids", "slot_mapping"}


def _is_matrix(logits: torch.Tensor, *dtypes: torch.dtype) -> bool:
    """Whether it has rows, each without gaps, of numbers that the compiled kernels read."""
    return logits.dtype in (dtypes or (torch.float32,)) and logits.numel() > 0 and logits.stride(-1) == 1


def _row_stride(x: torch.Tensor) -> int:
    """Elements from one row to the next of a float32 [T, ...] whose rows are contiguous."""
    assert x.dtype == torch.float32, f"states are float32 here, not {x.dtype}"
    assert x.stride(-1) == 1, "a row lies scattered"
    assert x.dim() == 2 or x.stride(1) == x.shape[2], "a row lies scattered"
    return x.stride(0)


def _floats(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor
