"""Every byte is counted before the pool is sized."""

import pytest
import torch

from specdec.step.kv_cache import KVLayout
from specdec.step.memory import available_host_memory, format_bytes, plan_memory

LAYOUT = KVLayout(num_layers=40, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)


def plan(**changes):
    options = {
        "block_size": 16,
        "available_bytes": 64 << 30,
        "budget_bytes": 48 << 30,
        "kv_cache_tokens": None,
        "max_useful_tokens": 1 << 30,
        "weight_bytes": 0,
        "draft_bytes": 0,
        "activation_bytes": 0,
        "logits_bytes": 0,
    }
    return plan_memory([LAYOUT], **{**options, **changes})


def test_bytes_a_token_and_blocks_in_a_budget() -> None:
    assert LAYOUT.bytes_per_token == 163_840
    assert LAYOUT.bytes_per_token * 16 == 2.5 * (1 << 20)
    assert plan().num_blocks == 19_660


@pytest.mark.parametrize("part", ["weight_bytes", "draft_bytes", "activation_bytes", "logits_bytes"])
def test_every_part_is_taken_from_the_budget(part: str) -> None:
    less = plan(**{part: 8 << 30})
    assert less.num_blocks == (40 << 30) // (163_840 * 16)
    assert less.total_bytes <= 48 << 30


def test_the_pool_is_no_larger_than_can_be_used_and_may_be_given() -> None:
    assert plan(max_useful_tokens=1000).num_blocks == 63
    assert plan(max_useful_tokens=3).num_blocks == 2
    assert plan(kv_cache_tokens=100).num_blocks == 6


def test_a_given_pool_that_cannot_be_had_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_tokens \(10000000\) needs 1,525.9 GiB of memory, and 64.0 GiB"):
        plan(kv_cache_tokens=10_000_000)


def test_no_room_is_an_error_with_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"48.0 GiB are allowed and 48.0 GiB taken; raise gpu_memory_utilization, or lower"
    ):
        plan(weight_bytes=48 << 30)


def test_the_sum_can_be_read() -> None:
    text = plan(weight_bytes=1 << 30).describe()
    assert "163,840 B a token" in text
    assert "weights          1.0 GiB" in text
    assert len(text.splitlines()) == 6
    assert format_bytes(12) == "12 B"
    assert 1 << 28 < available_host_memory() < 1 << 45
