"""Precisions by name, and the engine's configuration that each stands for."""

from __future__ import annotations

import pytest

from specdec.config import EngineConfig
from specdec.eval.precisions import DEFAULT, REFERENCE, Precision, parse_precisions


def test_names_are_read_back() -> None:
    assert parse_precisions(",".join(precision.name for precision in DEFAULT)) == DEFAULT
    assert parse_precisions("int4, int4/int8,int4") == (Precision("int4"), Precision("int4", "int8"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int3", "unknown precision 'int3'"),
        ("int4,", "unknown precision ''"),
        ("int4/int3", "unknown dtype of the KV cache 'int3'"),
        ("int4/", "unknown dtype of the KV cache ''"),
    ],
)
def test_other_names_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_precisions(text)


def test_a_precision_takes_the_place_of_what_a_configuration_says() -> None:
    base = EngineConfig(dtype="float16", quantization="int8", kv_cache_dtype="int8", seed=7)
    found = {
        precision: (own.dtype, own.quantization, own.kv_cache_dtype, own.seed)
        for precision in (REFERENCE, Precision("bfloat16"), Precision("int4", "float32"))
        if (own := precision.apply(base))
    }
    assert [*found.values()] == [
        ("float32", "none", "float32", 7),
        ("bfloat16", "none", "auto", 7),
        ("auto", "int4", "float32", 7),
    ]
