"""What a cache costs is what it takes."""

from __future__ import annotations

import pytest
import torch

from specdec.step.kv_cache import KVCache, KVLayout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_the_bytes_that_are_planned_are_those_of_its_tensors(dtype: torch.dtype) -> None:
    layout = KVLayout(num_layers=3, num_kv_heads=2, head_dim=24, dtype=dtype)
    kv = KVCache(layout, num_blocks=5, block_size=4, device=torch.device("cpu"))
    assert sum(cache.nbytes for cache in (*kv.keys, *kv.values)) == 5 * 4 * layout.bytes_per_token
