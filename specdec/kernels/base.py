"""The contract of a kernel backend: one function per op. A module of functions is a backend.

Shapes: T tokens of B ragged rows (row b owns tokens `query_start_loc[b] : query_start_loc[b + 1]`), H query heads,
G key-value heads, D head size, N blocks of S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from specdec.kernels.noise import NoiseKeys
from specdec.kernels.weights import QuantizedWeight, Weight

StepInputs = tuple[torch.Tensor | None, ...]
"""What changes from step to step, in the order of `INPUTS`, of which the masks may be None; then what else a
computation takes of each token, [T, ...] and contiguous."""

INPUTS = (
    "token_ids",  # int64 [T]
    "positions",  # int64 [T]
    "slot_mapping",  # int64 [T]
    "query_start_loc",  # int32 [B + 1]
    "seq_lens",  # int32 [B]
    "committed_lens",  # int32 [B]
    "block_tables",  # int32 [B, blocks]
    "ancestor_masks",  # int64 [T]
)

Program = Callable[[StepInputs], list[torch.Tensor]]
"""A recorded computation: given a step's inputs, its results."""


class Kernels(Protocol):
    """What a model and a sampler may ask of the device."""

    @property
    def own_threads(self) -> bool:
        """Whether it computes on threads of its own, so that torch's would only be in the way."""
        ...

    def num_threads(self) -> int:
        """How many threads compute."""
        ...

    def state_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of a model's hidden states whose weights were loaded in `dtype`."""
        ...

    def cache_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of a KV cache that loses nothing of a model whose weights were loaded in `dtype`."""
        ...

    def pack(self, weight: torch.Tensor | QuantizedWeight) -> Weight:
        """A matrix [out, in] in the form that `linear` and `embedding` are fastest with."""
        ...

    def record(self, function: Callable[[], Sequence[torch.Tensor]], inputs: StepInputs) -> Program | None:
        """`function`, which calls kernels on a step's `inputs` and returns [T, ...] tensors, as a program that does
        the same for the inputs of any step, without Python between the kernels. Nothing is computed now; between the
        kernels `function` may only take views. None if this backend does not record."""
        ...

    def linear(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in] times weight [out, in] transposed, plus bias [out]."""
        ...

    def embedding(self, token_ids: torch.Tensor, weight: Weight) -> torch.Tensor:
        """Rows of weight [V, hidden] at int64 [T]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, float32 or wider, times weight (1 + weight with the offset)."""
        ...

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The sum of two [T, size]."""
        ...

    def concat(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x [T, a] and y [T, b] side by side: [T, a + b]."""
        ...

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """x [T, size] times a number."""
        ...

    def rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate the first R of each head's D entries, halves convention: x [T, heads, D], by the rows `positions`
        (int64 [T]) of the tables cos and sin, float32 [P, R / 2]."""
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up for x = [gate | up], [T, 2 * I] -> [T, I]."""
        ...

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """gelu(gate, tanh form) * up for x = [gate | up], [T, 2 * I] -> [T, I]."""
        ...

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store key and value [T, G, D] at the slots (int64 [T]) of caches [N, S, G, D]; of int8 caches
        [N, S, G, D + 4], where each entry's scale, a float32, follows its codes."""
        ...

    def move_kv(self, caches: Sequence[torch.Tensor], slots_from: torch.Tensor, slots_to: torch.Tensor) -> None:
        """In every cache [N, S, G, ...], copy the entries at `slots_from` to `slots_to`, int64 [n] each; all are read
        before any is written, so the two may overlap."""
        ...

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
        """Ragged attention of the step's tokens over their rows' cached keys, this step's included.

        query [T, H, D]; caches [N, S, G, D]; the rest as in `specdec.step.Batch`. Entry t of a row with C committed
        entries is visible to a query at position p if t < C and t <= p, or if t >= C and bit t - C of the query's
        ancestor mask is set. With a sliding window W also the entry's position must be above p - W (of a draft node
        seen, C plus the number of bits set below its own). `soft_cap` c turns a score s into c * tanh(s / c). Entries
        before `first_entry` are invisible to everybody and may hold anything, NaN included; every query must see one
        of the others. -> [T, H, D]
        """
        ...

    def read(self, memory: torch.Tensor) -> None:
        """Read all of a contiguous tensor, with the threads that everything else has: to see how fast memory is."""
        ...

    def largest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The first index of the maximum of each row of logits [L, V], int64 [L], and the maximum, [L]; a NaN counts as
        the maximum."""
        ...

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        """The logarithm of the sum of e^x of each row of logits [L, V], in float64, [L]; NaN where a row has one."""
        ...

    def filter_logits(
        self,
        logits: torch.Tensor,
        divisors: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
    ) -> torch.Tensor:
        """A copy of logits [L, V] with each row divided by its divisor and with -inf where its filters, as defined in
        `specdec.kernels.filters`, exclude a token."""
        ...

    def gumbel_argmax(
        self, logits: torch.Tensor, rows: Sequence[int], keys: NoiseKeys
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For each of n keys one sample of softmax of its row of logits [L, V]: the argmax of the row plus the key's
        Gumbel noise (`specdec.kernels.noise`), int64 [n], and the sum there, float64 [n]. A sum that is not finite
        tells that the row has a NaN, an infinite logit or no possible token; its token then means nothing."""
        ...
