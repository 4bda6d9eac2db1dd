"""EAGLE heads against their plain definition, however the tokens come, and that what is wrong with one shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specdec.models import head_config, heads
from specdec.models.eagle import FEW_TOKENS, EagleHead
from specdec.types import Draft
from tests.models.head_cases import CASES, Pair, difference, features, prompt
from tests.models.head_stepping import chain_outputs, chunked_outputs, path_to, tree_outputs
from tests.models.head_writing import VOCAB, load_eagle, target
from tests.models.row_by_row import RowByRow
from tests.models.stepping import Span, Stepper
from tests.native import NativeKernels


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("pair"))


def over_target(head: EagleHead, logits: torch.Tensor) -> torch.Tensor:
    """The head's logits where the target has these tokens, -inf elsewhere."""
    if head.draft_token_ids is None:
        return logits
    whole = logits.new_full((len(logits), VOCAB), float("-inf"))
    whole[:, head.draft_token_ids] = logits
    return whole


def parity(pair: Pair, head: EagleHead, length: int = 30, chunk: int = 7) -> float:
    """How far the head's logits are from the plain ones, from the target's features on."""
    tokens = prompt(length)
    combined = head.combine(features(head.kind, head.aux_layers, length - 1))
    outputs = chunked_outputs(head, [tokens], [combined], chunk)[0]
    expected = pair.logits(pair.outputs(tokens[1:], pair.combined(length - 1)))
    return difference(over_target(head, head.compute_logits(outputs)), expected)


@pytest.mark.parametrize("chunk", [1, 7, 30])
def test_logits_equal_the_plain_definition_in_chunks(pair: Pair, chunk: int) -> None:
    head = pair.head
    assert (head.kind, head.feature_size) == (pair.kind, features(pair.kind, pair.case.aux_layers, 1).shape[1])
    assert head.aux_layers == (pair.case.aux_layers if pair.kind == "eagle3" else ())
    assert parity(pair, head, chunk=chunk) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_float32_logits_equal_the_plain_definition(name: str, tmp_path: Path) -> None:
    pair = Pair(name, tmp_path, torch.float32)
    head = pair.head
    assert head.kv_layout().dtype == torch.float32
    assert parity(pair, head) < 1e-4


def test_rows_of_a_batch_do_not_mix(pair: Pair) -> None:
    head = pair.head
    lengths = [30, 2, 13, 9]
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    combined = [pair.combined(length - 1, seed) for seed, length in enumerate(lengths)]
    for tokens, own, outputs in zip(prompts, combined, chunked_outputs(head, prompts, combined, 5), strict=True):
        assert difference(outputs, pair.outputs(tokens[1:], own)) < 1e-9


def test_a_head_goes_on_from_its_own_outputs(pair: Pair) -> None:
    head = pair.head
    tokens, path, combined = prompt(12), prompt(5, seed=8), pair.combined(11)
    fed, after = combined, pair.outputs(tokens[1:], combined)[-1:]
    for count in range(1, len(path) + 1):
        fed = torch.cat((fed, after))
        after = pair.outputs(tokens[1:] + path[:count], fed)[-1:]
    assert difference(chain_outputs(head, tokens, combined, path)[-1:], after) < 1e-9


def test_every_path_of_a_tree_equals_its_chain(pair: Pair) -> None:
    """Nodes see the committed entries and their own ancestors, nothing else."""
    head = pair.head
    draft = Draft(tuple(prompt(9, seed=4)), (-1, -1, 0, 0, 1, 2, 5, 4, 4))
    tokens, combined = prompt(10), pair.combined(9)
    outputs = tree_outputs(head, tokens, combined, draft)
    for node in range(len(draft)):
        path = [draft.token_ids[i] for i in path_to(draft, node)]
        assert difference(outputs[node], chain_outputs(head, tokens, combined, path)[-1]) < 1e-9


def test_the_first_position_of_the_authors_makes_no_difference(pair: Pair) -> None:
    """They rotate the pair of feature 0 and token 1 as position 0; only distances count."""
    tokens, combined = prompt(20), pair.combined(19)
    shifted, ours = (pair.outputs(tokens[1:], combined, first) for first in (0, 1))
    assert difference(shifted, ours) < 1e-5


@pytest.mark.parametrize("void", [float("nan"), float("inf"), 1e30])
def test_what_lies_at_position_0_is_never_seen(void: float, pair: Pair) -> None:
    head = pair.head
    tokens, combined = prompt(6), pair.combined(5)
    stepper = Stepper(head)
    sequence = stepper.sequence(tokens)
    batch = stepper.batch([Span(sequence, 1, 5)])
    slot = sequence.block_table[0], 0
    stepper.kv.keys[0][slot], stepper.kv.values[0][slot] = void, void
    outputs = head(batch, stepper.kv, combined)
    assert torch.equal(outputs, chunked_outputs(head, [tokens], [combined], 5)[0])


@pytest.mark.parametrize("name", ["eagle: bin", "eagle3: bin"])
def test_with_exact_products_and_attention_every_schedule_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    pair = Pair(name, tmp_path, torch.float32)
    head = load_eagle(pair.directory, pair.target, kernels=RowByRow())
    tokens, combined = prompt(25), pair.combined(24)
    expected = chunked_outputs(head, [tokens], [combined], 24)[0]
    for chunk in (1, 7):
        assert torch.equal(chunked_outputs(head, [tokens], [combined], chunk)[0], expected)
    others = [prompt(5, 1), tokens, prompt(17, 2)]
    mixed = chunked_outputs(head, others, [pair.combined(4, 1), combined, pair.combined(16, 2)], 6)
    assert torch.equal(mixed[1], expected)


# Faults that tests of this kind must find


def without_bias(head: EagleHead) -> None:
    head.inputs.fc.bias = None


def without_norm(head: EagleHead) -> None:
    head.norm = nn.Identity()


def without_hidden_norm(head: EagleHead) -> None:
    head.inputs.hidden_norm = nn.Identity()


def without_input_norm(head: EagleHead) -> None:
    head.inputs.input_norm = nn.Identity()


def other_residual(head: EagleHead) -> None:
    head.inputs.norm_before_residual = not head.inputs.norm_before_residual


def seeing_position_0(head: EagleHead) -> None:
    head.layer.attention.first_entry = 0


def with_the_targets_embedding(head: EagleHead) -> None:
    head.embed_tokens = None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("eagle: bin", without_bias),
        ("eagle: bin", with_the_targets_embedding),
        ("eagle: bin", seeing_position_0),
        ("eagle3: bin", without_norm),
        ("eagle3: bin", without_hidden_norm),
        ("eagle3: bin", without_input_norm),
        ("eagle3: bin", other_residual),
        ("eagle3: bin", seeing_position_0),
    ],
)
def test_a_fault_in_the_head_shows(name: str, fault: Callable[[EagleHead], None], tmp_path: Path) -> None:
    pair = Pair(name, tmp_path)
    assert parity(pair, pair.head) < 1e-9
    fault(pair.head)
    assert parity(pair, pair.head) > 1e-3


def in_ascending_order(aux_layers: Callable[..., tuple[int, ...]]) -> Callable[..., tuple[int, ...]]:
    return lambda *args: tuple(sorted(aux_layers(*args)))


def as_absolute_ids(_: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda offsets, marks, **_: offsets


@pytest.mark.parametrize(
    ("name", "module", "function", "fault"),
    [
        ("eagle3: own layers", head_config, "_aux_layers", in_ascending_order),
        ("eagle3: bin", heads, "target_ids", as_absolute_ids),
    ],
)
def test_a_fault_in_reading_shows(
    name: str, module: Any, function: str, fault: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(name, tmp_path)
    assert parity(pair, pair.head) < 1e-9
    monkeypatch.setattr(module, function, fault(getattr(module, function)))
    assert parity(pair, load_eagle(pair.directory, pair.target)) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_on_native_kernels_it_is_one_program_with_the_bits_of_its_calls(
    name: str, tmp_path: Path, native: NativeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(name, tmp_path, torch.float32)
    kernels = native.backend(num_threads=2)
    head = load_eagle(pair.directory, target(dtype=torch.float32, kernels=kernels), kernels=kernels)
    assert parity(pair, head) < 1e-4
    tokens, combined = prompt(12), pair.combined(11).float()
    stepper = Stepper(head)
    batch = stepper.batch([Span(stepper.sequence(tokens), 1, 11)])
    outputs, computed = head(batch, stepper.kv, combined), head.compute(batch, stepper.kv, combined)
    with monkeypatch.context() as patch:
        patch.setattr(type(kernels), "record", lambda *_: None)
        head._programs.clear()
        one_by_one = head.compute(batch, stepper.kv, combined)
    assert computed.largest is not None
    assert one_by_one.largest is None
    for logits in (head.compute_logits(outputs), one_by_one.logits):
        assert torch.equal(computed.logits, logits)
        assert torch.equal(computed.largest[0], logits.argmax(-1))
        assert torch.equal(computed.largest[1], logits.amax(-1))
    assert torch.equal(computed.hidden, outputs)
    assert torch.equal(one_by_one.hidden, outputs)


@pytest.mark.parametrize("length", [3, FEW_TOKENS + 1, FEW_TOKENS + 2])
@pytest.mark.parametrize("name", CASES)
def test_reading_goes_from_the_targets_own_features_to_logits(
    name: str, length: int, tmp_path: Path, native: NativeKernels
) -> None:
    """The last of two sequences is not read to its end, so that it has no logits."""
    pair = Pair(name, tmp_path, torch.float32)
    kernels = native.backend(num_threads=2)
    own = load_eagle(pair.directory, target(dtype=torch.float32, kernels=kernels), kernels=kernels)
    for head in (pair.head, own):
        stepper = Stepper(head)
        prompts = [prompt(length), prompt(length, seed=1)]
        given = [features(head.kind, head.aux_layers, length - 1, seed).float() for seed in (0, 1)]
        spans = [Span(stepper.sequence(tokens, str(i)), 1, length - 1 - i) for i, tokens in enumerate(prompts)]
        batch = stepper.batch(spans)
        raw = torch.cat([each[: span.count] for each, span in zip(given, spans, strict=True)])
        found = head.read(batch, stepper.kv, raw)
        expected = head(batch, stepper.kv, head.combine(raw))[batch.logits_indices]
        assert len(expected) == 1
        assert torch.equal(found.hidden, expected)
        assert torch.equal(found.logits, head.compute_logits(expected))
        if found.largest is not None:
            assert torch.equal(found.largest[0], found.logits.argmax(-1))
