"""The bytes that a step has to read: every weight once, whatever the number of rows, and the KV of the context."""

from __future__ import annotations

from specdec.engine import Engine
from specdec.kernels import Weight
from specdec.models.decoder import Decoder


def weight_bytes_read(engine: Engine, num_rows: int) -> int:
    """Weights as they lie in memory; of an embedding that is not the output matrix too, and of rotary tables, only
    `num_rows` rows. A mixture of experts is counted whole, which it reads only where the rows choose all experts."""
    model = engine.runner.model
    weights = engine.memory.weight_bytes
    if not isinstance(model, Decoder):
        return weights
    tables: list[Weight] = [table for rope in model.ropes for table in rope.buffers()]
    if model.lm_head is not None:
        tables.append(model.embed_tokens.weight)
    return weights - sum(table.nbytes - min(num_rows, len(table)) * table.nbytes // len(table) for table in tables)


def kv_bytes_read(engine: Engine, num_tokens: int) -> int:
    """Keys and values of `num_tokens` tokens in every layer; a sliding window is not taken into account."""
    return num_tokens * engine.runner.kv.layout.bytes_per_token
