"""The decoder against transformers, on tiny random models of every family, however the tokens come."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from specdec.core.scheduler import ScheduledRow
from specdec.core.sequence import Sequence
from specdec.kernels import reference
from specdec.models.decoder import Decoder
from specdec.models.families import model_config
from specdec.models.moe import MixtureOfExperts
from specdec.step.paths import path_moves
from specdec.types import Draft, Verdict
from tests.models.cases import CASES, STEPWISE, build, load, tokens, transformers_logits
from tests.models.row_by_row import RowByRow
from tests.models.stepping import BLOCK_SIZE, Span, Stepper, chunked_logits, drafted_logits

PROMPT = tokens(90)


@dataclass
class Pair:
    """A transformers model, where it is saved, our decoder of it, and its logits over PROMPT."""

    name: str
    model: PreTrainedModel
    directory: Path
    decoder: Decoder
    logits: torch.Tensor


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name = request.param
    model = build(CASES[name]())
    directory = tmp_path_factory.mktemp(name)
    model.save_pretrained(directory)
    logits = transformers_logits(model, PROMPT, stepwise=name in STEPWISE)
    return Pair(name, model, directory, load(directory), logits)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("chunk", [1, 7, 64, 90])
def test_logits_equal_transformers_in_chunks(pair: Pair, chunk: int) -> None:
    logits = chunked_logits(pair.decoder, [PROMPT], chunk)[0]
    assert logits.dtype == torch.float32
    assert difference(logits, pair.logits) < 1e-4


def test_logits_equal_transformers_with_every_position_drafted(pair: Pair) -> None:
    assert difference(drafted_logits(pair.decoder, PROMPT[:65]), pair.logits[:65]) < 1e-4


def test_float64_logits_equal_transformers(pair: Pair) -> None:
    """transformers stays in float64 but for the rotary tables, which are float32 on both sides.

    Of the dynamic ones it takes the powers one by one, and those differ from a whole table's in the last bit.
    """
    tolerance = 1e-5 if pair.name == "rope_dynamic" else 1e-9
    decoder = load(pair.directory, dtype="float64")
    expected = transformers_logits(pair.model.double(), PROMPT, stepwise=pair.name in STEPWISE)
    pair.model.float()
    assert expected.dtype == torch.float64
    for logits in (*chunked_logits(decoder, [PROMPT], 90), *chunked_logits(decoder, [PROMPT], 7)):
        assert logits.dtype == torch.float64
        assert difference(logits, expected) < tolerance
    assert difference(drafted_logits(decoder, PROMPT[:65]), expected[:65]) < tolerance


def test_rows_of_a_batch_do_not_mix(pair: Pair) -> None:
    prompts = [PROMPT, tokens(3, seed=1), tokens(31, seed=2), tokens(1, seed=3)]
    alone = [chunked_logits(pair.decoder, [prompt], 16)[0] for prompt in prompts]
    for together, solo in zip(chunked_logits(pair.decoder, prompts, 16), alone, strict=True):
        assert difference(together, solo) < 5e-5


def test_bfloat16_runs_close_to_float32(pair: Pair) -> None:
    decoder = load(pair.directory, dtype="bfloat16")
    logits = chunked_logits(decoder, [PROMPT], 40)[0]
    assert decoder.kv_layout().dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
    assert (logits - pair.logits).abs().mean() < 0.2 * pair.logits.std()


def test_every_path_of_a_tree_equals_its_chain(pair: Pair) -> None:
    """Nodes of a draft tree see the committed tokens and their own ancestors, nothing else."""
    committed, parents = PROMPT[:20], (-1, -1, 0, 0, 1, 2, 5, 4)
    nodes = tuple(tokens(len(parents), seed=4))
    stepper = Stepper(pair.decoder)
    sequence = stepper.sequence(committed)
    stepper.step([Span(sequence, 0, 19)])
    tree = stepper.step([Span(sequence, 19, 1, Draft(nodes, parents))])[0]
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path.insert(0, nodes[at])
            at = parents[at]
        chain = chunked_logits(pair.decoder, [committed + path], 100)[0]
        assert difference(tree[1 + node], chain[-1]) < 5e-5


def test_a_rejected_draft_leaves_no_trace(pair: Pair) -> None:
    """What follows a rejected draft overwrites its entries: logits as if it had never been."""
    stepper = Stepper(pair.decoder)
    sequence = stepper.sequence(PROMPT[:30])
    stepper.step([Span(sequence, 0, 30, Draft(tuple(tokens(9, seed=5))))])
    sequence.token_ids = PROMPT[:60]
    logits = stepper.step([Span(sequence, 30, 30)])[0]
    assert difference(logits, pair.logits[30:60]) < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_with_exact_products_and_attention_every_schedule_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    """D5: nothing else in a decoder lets a token's logits depend on what shares its step."""
    build(CASES[case]()).save_pretrained(tmp_path)
    decoder = load(tmp_path, kernels=RowByRow())
    prompt = PROMPT[:34]
    expected = chunked_logits(decoder, [prompt], 34)[0]
    for chunk in (1, 7):
        assert torch.equal(chunked_logits(decoder, [prompt], chunk)[0], expected)
    assert torch.equal(chunked_logits(decoder, [tokens(5, 1), prompt, tokens(17, 2)], 13)[1], expected)
    assert torch.equal(drafted_logits(decoder, prompt), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_of_a_mixture_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    """Bit for bit, given an exact matrix product."""
    config = model_config(
        json.loads(CASES["qwen3_moe"]().to_json_string()) | {"architectures": ["Qwen3MoeForCausalLM"]}
    )
    moe = config.layers[1].moe
    assert moe is not None
    block = MixtureOfExperts(config, moe, RowByRow()).to_empty(device="cpu").to(dtype)
    torch.manual_seed(0)
    for parameter in block.parameters():
        parameter.normal_(std=0.3)
    hidden = torch.randn(23, config.hidden_size).to(dtype)
    together = block(hidden)
    assert torch.equal(together, torch.cat([block(hidden[i : i + 1]) for i in range(23)]))
    assert torch.equal(together[5:12], block(hidden[5:12]))


def test_building_a_decoder_takes_no_memory_for_weights() -> None:
    config = model_config(json.loads(CASES["llama"]().to_json_string()) | {"architectures": ["LlamaForCausalLM"]})
    decoder = Decoder(config, reference, 16)
    assert all(parameter.is_meta for parameter in decoder.parameters())
    assert decoder.weight_bytes == 4 * sum(p.numel() for p in decoder.parameters()) + 2 * 4 * 16 * 8
    assert decoder.kv_layout().bytes_per_token == 2 * 3 * 2 * 16 * 4


def test_the_moved_path_of_a_tree_is_the_cache_of_its_chain(pair: Pair) -> None:
    """What a verdict leaves in the cache, in every layer, is what plain decoding would have written there."""
    committed, parents, path = PROMPT[:18], (-1, -1, 0, 1, 1, 4, 2, 5), (1, 4, 5)
    nodes = tuple(tokens(len(parents), seed=4))
    stepper, plain = Stepper(pair.decoder), Stepper(pair.decoder)
    sequence, chain = stepper.sequence(committed), plain.sequence([*committed, *(nodes[node] for node in path)])
    stepper.step([Span(sequence, 0, 17)])
    span = Span(sequence, 17, 1, Draft(nodes, parents))
    stepper.step([span])
    row = ScheduledRow(sequence, span.start, 1 + len(nodes), span.draft)
    moves = torch.tensor(path_moves([row], [Verdict((), path)], BLOCK_SIZE))
    stepper.kv.move(*moves.unbind(-1), stepper.decoder.kernels)
    plain.step([Span(chain, 0, 21)])
    for layer in range(pair.decoder.config.num_layers):
        entries = [s.kv.read(layer, slots(own, 21)) for s, own in ((stepper, sequence), (plain, chain))]
        for moved, written in zip(*entries, strict=True):
            assert difference(moved, written) < 5e-5


def slots(sequence: Sequence, length: int) -> torch.Tensor:
    """Where the first `length` entries of a sequence lie."""
    table = sequence.block_table
    return torch.tensor([table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(length)])
