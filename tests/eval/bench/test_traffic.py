"""The bytes of a step are the weights once, and rows of tables that are looked up in."""

from __future__ import annotations

import pytest

from specdec.config import EngineConfig
from specdec.engine import TargetFacts
from specdec.engine.build import assemble
from specdec.eval.bench.traffic import kv_bytes_read, weight_bytes_read
from tests.eval.helpers import toy_engine
from tests.heads import tiny_target


@pytest.mark.parametrize("num_rows", [1, 5, 1000])
def test_weights_are_read_once_and_tables_by_row(num_rows: int) -> None:
    model = tiny_target()
    facts = TargetFacts(model.config.vocab_size, 256, weight_bytes=model.weight_bytes)
    engine = assemble(EngineConfig("tiny", kv_cache_tokens=64), model, facts)
    embedding, vocab_size = model.embed_tokens.weight, model.config.vocab_size
    in_layers = sum(each.nbytes for each in (*model.layers.parameters(), *model.norm.parameters()))
    output = model.output_matrix().nbytes
    rotary = sum(table[:num_rows].nbytes for rope in model.ropes for table in rope.buffers())
    looked_up = 0 if model.lm_head is None else min(num_rows, vocab_size) * embedding[0].nbytes
    assert weight_bytes_read(engine, num_rows) == in_layers + output + rotary + looked_up
    assert (model.lm_head is None) == (embedding is model.output_matrix())


def test_kv_is_read_for_every_token_before_the_last_row() -> None:
    engine = toy_engine()
    assert kv_bytes_read(engine, 10) == 10 * 2 * 8, "a key and a value of one float64 each"
    assert weight_bytes_read(engine, 3) == engine.memory.weight_bytes
