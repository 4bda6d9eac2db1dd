"""What weights and a KV cache are held in: the names that a user gives, and what an engine makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specdec.config import KV_CACHE_DTYPES, EngineConfig, unknown_name

DTYPES = ("float32", "bfloat16", "float16")
CODES = "gguf"
QUANTIZED = ("int8", "int4", CODES)
WEIGHTS = (*DTYPES, *QUANTIZED)
AUTO = "auto"


@dataclass(frozen=True)
class Precision:
    """`weights` is one of `WEIGHTS`; the cache's dtype "auto" is the one that such weights have by default."""

    weights: str
    kv_cache_dtype: str = AUTO

    @property
    def name(self) -> str:
        return self.weights if self.kv_cache_dtype == AUTO else f"{self.weights}/{self.kv_cache_dtype}"

    def apply(self, config: EngineConfig) -> EngineConfig:
        """`config` in this precision. Quantised weights are rounded from the checkpoint's own dtype."""
        is_quantized = self.weights in QUANTIZED
        return replace(
            config,
            dtype="auto" if is_quantized else self.weights,
            quantization=self.weights if is_quantized else "none",
            kv_cache_dtype=self.kv_cache_dtype,
        )


REFERENCE = Precision("float32", "float32")
"""What every other is compared with."""

DEFAULT = (
    Precision("float32"),
    Precision("float32", "bfloat16"),
    Precision("float32", "int8"),
    Precision("bfloat16"),
    Precision("bfloat16", "int8"),
    Precision("int8"),
    Precision("int4"),
    Precision(CODES),
)
"""Those with float32 weights show what the cache alone does."""


def parse_precisions(text: str) -> tuple[Precision, ...]:
    """Entries WEIGHTS or WEIGHTS/CACHE with commas between them, each once; ValueError in one line."""
    return tuple(dict.fromkeys(_parse(entry.strip()) for entry in text.split(",")))


def _parse(entry: str) -> Precision:
    weights, slash, cache = entry.partition("/")
    if weights not in WEIGHTS:
        raise ValueError(unknown_name("precision", weights, WEIGHTS))
    if slash and cache not in KV_CACHE_DTYPES:
        raise ValueError(unknown_name("dtype of the KV cache", cache, KV_CACHE_DTYPES))
    return Precision(weights, cache if slash else AUTO)
