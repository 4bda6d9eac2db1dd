"""Whole decoders on the compiled kernels: what the reference computes, and the same bits under every schedule (D5)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.core.scheduler import ScheduledRow
from specdec.kernels.cpu.parts import MOST_TOKENS
from specdec.models.decoder import Decoder
from specdec.models.loader import open_checkpoint, prepare_model
from specdec.step.paths import path_moves
from specdec.types import Draft, Verdict
from tests.models.cases import CASES, build, load, tokens
from tests.models.stepping import BLOCK_SIZE, Span, Stepper, chunked_logits, drafted_logits
from tests.native import NativeKernels

PROMPT = tokens(90)
STORED = [
    ("float32", "none", "float32"),
    ("bfloat16", "none", "bfloat16"),
    ("float32", "int8", "int8"),
    ("bfloat16", "int4", "bfloat16"),
    ("float32", "none", "int8"),
]
"""dtype, quantisation, dtype of the cache."""


def stored(directory: Path, native: NativeKernels, how: tuple[str, str, str], threads: int = 1) -> Decoder:
    prepared = prepare_model(
        open_checkpoint(directory), kernels=native.backend(num_threads=threads), max_model_len=None
    )
    dtype, quantization, kv_cache_dtype = how
    device = torch.device("cpu")
    return prepared.load(dtype=dtype, device=device, quantization=quantization, kv_cache_dtype=kv_cache_dtype)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_reference(case: str, tmp_path: Path, native: NativeKernels) -> None:
    build(CASES[case]()).save_pretrained(tmp_path)
    expected = chunked_logits(load(tmp_path), [PROMPT], 90)[0]
    found = chunked_logits(stored(tmp_path, native, STORED[0]), [PROMPT], 90)[0]
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("how", STORED, ids="-".join)
@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_sliding", "qwen3_moe"])
def test_quantised_and_narrow_ones_are_those_of_the_reference(
    case: str, how: tuple[str, str, str], tmp_path: Path, native: NativeKernels
) -> None:
    """As near as rounding to the same codes allows: the reference gets the same weights and the same cache."""
    build(CASES[case]()).save_pretrained(tmp_path)
    dtype, quantization, cache = how
    prepared = prepare_model(open_checkpoint(tmp_path), kernels=load(tmp_path).kernels, max_model_len=None)
    plain = prepared.load(dtype="float32", device=torch.device("cpu"), quantization=quantization, kv_cache_dtype=cache)
    expected = chunked_logits(plain, [PROMPT], 90)[0]
    found = chunked_logits(stored(tmp_path, native, how), [PROMPT], 90)[0]
    tolerance = 0.2 if dtype == "bfloat16" else 0.02
    assert (found - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("how", STORED, ids="-".join)
@pytest.mark.parametrize("case", CASES)
def test_every_schedule_gives_the_same_bits(
    case: str, how: tuple[str, str, str], tmp_path: Path, native: NativeKernels
) -> None:
    build(CASES[case]()).save_pretrained(tmp_path)
    decoder = stored(tmp_path, native, how)
    expected = chunked_logits(decoder, [PROMPT], 90)[0]
    for chunk in (1, 7):
        assert torch.equal(chunked_logits(decoder, [PROMPT], chunk)[0], expected)
    assert torch.equal(chunked_logits(decoder, [tokens(5, 1), PROMPT, tokens(17, 2)], 13)[1], expected)
    assert torch.equal(drafted_logits(decoder, PROMPT[:65]), expected[:65])
    threaded = stored(tmp_path, native, how, threads=3)
    assert torch.equal(chunked_logits(threaded, [PROMPT], 33)[0], expected)


@pytest.mark.parametrize("how", STORED, ids="-".join)
@pytest.mark.parametrize("case", ["llama", "gemma3", "qwen3_sliding", "mixtral"])
def test_a_path_of_a_tree_has_the_bits_of_its_chain(
    case: str, how: tuple[str, str, str], tmp_path: Path, native: NativeKernels
) -> None:
    """Logits of its nodes, and the cache that it leaves behind."""
    build(CASES[case]()).save_pretrained(tmp_path)
    decoder = stored(tmp_path, native, how)
    committed, parents, path = PROMPT[:70], (-1, -1, 0, 1, 1, 4, 2, 5), (1, 4, 5)
    nodes = tuple(tokens(len(parents), seed=4))
    stepper, plain = Stepper(decoder), Stepper(decoder)
    sequence, chain = stepper.sequence(committed), plain.sequence([*committed, *(nodes[node] for node in path)])
    stepper.step([Span(sequence, 0, 69)])
    span = Span(sequence, 69, 1, Draft(nodes, parents))
    tree = stepper.step([span])[0]
    logits = plain.step([Span(chain, 0, 73)])[0]
    assert torch.equal(tree[[0, *(1 + node for node in path)]], logits[69:])
    row = ScheduledRow(sequence, span.start, 1 + len(nodes), span.draft)
    moves = torch.tensor(path_moves([row], [Verdict((), path)], BLOCK_SIZE))
    stepper.kv.move(*moves.unbind(-1), decoder.kernels)
    for layer in range(decoder.config.num_layers):
        slots = [
            torch.tensor([table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(73)])
            for table in (sequence.block_table, chain.block_table)
        ]
        moved, straight = stepper.kv.read(layer, slots[0]), plain.kv.read(layer, slots[1])
        assert all(torch.equal(a, b) for a, b in zip(moved, straight, strict=True))


def test_the_states_between_layers_are_those_of_the_calls_one_by_one(tmp_path: Path, native: NativeKernels) -> None:
    """A recorded program against its own calls, for steps that grow and shrink, and two caches in turns."""
    build(CASES["llama"]()).save_pretrained(tmp_path)
    decoder = stored(tmp_path, native, STORED[1])
    steppers = [Stepper(decoder), Stepper(decoder)]
    kept = []
    for size in (3, 40, 1, 17):
        for stepper in steppers:
            batch = stepper.batch([Span(stepper.sequence(PROMPT[:size]), 0, size)])
            with torch.inference_mode():
                hidden, aux = decoder.forward_with_aux(batch, stepper.kv, (0, 2, 3))
                alone, alone_aux = decoder._compute(batch, stepper.kv, (0, 2, 3))
            assert torch.equal(hidden, alone)
            assert aux.keys() == alone_aux.keys() == {0, 2, 3}
            assert all(torch.equal(aux[layer], alone_aux[layer]) for layer in aux)
            kept.append((hidden, hidden.clone()))
    assert all(torch.equal(hidden, copy) for hidden, copy in kept), "a later step wrote over a result"


@pytest.mark.parametrize("case", ["llama", "qwen3_sliding"])
def test_a_step_of_many_tokens_has_the_bits_of_its_calls_one_by_one(
    case: str, tmp_path: Path, native: NativeKernels
) -> None:
    """It is computed in parts, which may end anywhere in a prompt or a draft; neither may read what is yet to come."""
    build(CASES[case]()).save_pretrained(tmp_path)
    decoder = stored(tmp_path, native, STORED[1], threads=2)
    tree = Draft(tuple(tokens(30, 3)), tuple((node - 1) // 2 if node else -1 for node in range(30)))
    found = []
    for forward in (decoder.forward_with_aux, decoder._compute):
        stepper = Stepper(decoder)
        rows = [stepper.sequence(tokens(90, seed=i)) for i in range(9)]
        stepper.step([Span(row, 0, 20 + i) for i, row in enumerate(rows)])
        spans = [Span(row, 20 + i, 90 - 20 - i, tree if i % 2 else Draft(())) for i, row in enumerate(rows)]
        batch = stepper.batch(spans)
        assert batch.num_tokens > 2 * MOST_TOKENS
        with torch.inference_mode():
            hidden, aux = forward(batch, stepper.kv, (1, decoder.config.num_layers))
        found.append((hidden, *aux.values()))
    assert all(torch.equal(part, alone) for part, alone in zip(*found, strict=True))
    assert not found[0][0].isnan().any()
