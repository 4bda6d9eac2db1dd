"""A small draft model in training is the one that specdec loads; and it learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec import LLM, SamplingParams
from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.engine.checkpoints import open_model
from specdec.kernels import reference
from specdec.models.decoder import Decoder
from specdec.models.loader import load_model, open_checkpoint
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.tokenizer import Tokenizer
from specdec.train.formats.draft import check_llama
from specdec.train.samples import Item
from specdec.train.target import read_target
from specdec.train.trainees.draft import DraftPlan, DraftTrainee, start_draft
from tests.engine.test_draft_files import save
from tests.heads import CPU, tiny_target
from tests.train.toys import greedy, row, states_of

VOCABULARY, HIDDEN, LAYERS = 256, 32, 2
KEPT = [token for token in range(VOCABULARY) if token % 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("target"), layers=5)


@pytest.fixture(scope="module")
def target(folder: Path) -> Decoder:
    return loaded(folder)


def loaded(path: Path) -> Decoder:
    return load_model(open_checkpoint(path), dtype="float32", device=CPU, kernels=reference, max_model_len=None)


def trainee(
    folder: Path, token_ids: Sequence[int] = range(VOCABULARY), *, answers_only: bool = True, layers: int = LAYERS
) -> DraftTrainee:
    parts = read_target(folder)
    weights = start_draft(folder, parts, layers, torch.tensor(list(token_ids)))
    plan = DraftPlan(answers_only, torch.float32, torch.float32, CPU)
    return DraftTrainee(weights, parts, Tokenizer.from_directory(folder), plan)


def item(target: Decoder, seed: int, length: int, prompt: int) -> Item:
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length)
    return Item(torch.from_numpy(tokens), prompt, states_of(target, tokens.tolist()).float())


@torch.no_grad()
def decoder_logits(model: Decoder, token_ids: list[int]) -> torch.Tensor:
    batch = Batch.build(Schedule((ScheduledRow(row(token_ids), 0, len(token_ids)),)), 4, CPU)
    return model.compute_logits(model.forward(batch, KVCache(model.kv_layout(), 64, 4, CPU)))


def test_before_training_it_is_the_targets_first_layers(folder: Path, target: Decoder) -> None:
    samples = [item(target, 0, 17, 5), item(target, 1, 9, 1)]
    training = trainee(folder)
    logits = training.logits(training.prepare(samples, (0,)))
    expected = [decoder_logits(target.first_layers(LAYERS), s.token_ids[:-1].tolist()) for s in samples]
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_what_is_written_computes_the_same_and_drafts(folder: Path, target: Decoder, tmp_path: Path) -> None:
    training = trainee(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in training.module.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    training.write(tmp_path / "draft")
    training.write(tmp_path / "draft")  # as at each look
    samples = [item(target, 0, 17, 5), item(target, 1, 9, 1)]
    logits = training.logits(training.prepare(samples, (0,)))
    model = loaded(tmp_path / "draft")
    expected = [decoder_logits(model, sample.token_ids[:-1].tolist()) for sample in samples]
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-4, rtol=1e-4)
    drafts = {"method": "draft", "model": str(tmp_path / "draft")}
    llm = LLM(str(folder), speculative_config=drafts, kv_cache_tokens=1024, kernels="reference", dtype="float32")
    sample = llm.generate("hello", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0]
    assert sample.speculation.num_draft_tokens > 0


def test_the_tokenizer_goes_with_it(folder: Path, tmp_path: Path) -> None:
    trainee(folder).write(tmp_path / "draft")
    ours, theirs = open_model(str(tmp_path / "draft"))[1], open_model(str(folder))[1]
    assert ours.encode("héllo 12") == theirs.encode("héllo 12")
    assert (ours.eos_token_ids, ours.bos_token_id) == (theirs.eos_token_ids, theirs.bos_token_id)


@pytest.mark.parametrize("kept", [range(VOCABULARY), KEPT])
@pytest.mark.parametrize(("answers_only", "share"), [(True, 0.0), (False, 0.0), (True, 1.0)])
def test_the_loss_is_that_of_its_definition(
    folder: Path, target: Decoder, kept: Sequence[int], answers_only: bool, share: float
) -> None:
    training = trainee(folder, kept, answers_only=answers_only)
    samples = [item(target, 0, 17, 5), item(target, 1, 9, 1)]
    prepared = training.prepare(samples, (0,))
    loss = training.loss(prepared, share)
    logits, at = training.logits(prepared), 0
    matrix = read_target(folder).output_matrix[list(kept)]
    parts = []
    for sample in samples:
        tokens = sample.token_ids.tolist()
        first = max(0, sample.num_prompt_tokens - 1) if answers_only else 0
        for position in range(first, len(tokens) - 1):
            if tokens[position + 1] in kept:
                draft = torch.log_softmax(logits[at + position, list(kept)], -1)
                law = torch.log_softmax(matrix @ sample.states[position, -HIDDEN:], -1)
                accepted = torch.minimum(draft.exp(), law.exp()).sum()
                divergence = (law.exp() * (law - draft)).sum()
                parts.append(float((1 - share) * divergence - share * accepted.log()))
        at += len(tokens) - 1
    assert loss.num_rows == len(parts)
    torch.testing.assert_close(float(loss.total.detach()), sum(parts) / len(parts), atol=1e-3, rtol=1e-3)


def test_every_weight_has_a_gradient(folder: Path, target: Decoder) -> None:
    training = trainee(folder)
    training.loss(training.prepare([item(target, 0, 17, 5)], (0,)), 0.0).total.backward()
    gradients = [parameter.grad for parameter in training.module.parameters()]
    assert len(gradients) == 6 * LAYERS + 1
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


def test_all_layers_are_the_target_itself(folder: Path, target: Decoder) -> None:
    """Then every guess along its own greedy answers is right, to any depth."""
    training = trainee(folder, layers=5)
    tokens = np.array(greedy(target, [1, 2, 3], 12))
    sample = Item(torch.from_numpy(tokens), 3, states_of(target, tokens.tolist()).float())
    tally = training.measure(training.prepare_held_out([sample]))
    assert tally.tried == (12, 11, 10, 9)
    assert tally.accepted == tally.tried
    assert tally.overlap == pytest.approx(12, abs=1e-3)


def test_it_learns_its_own_data(folder: Path, target: Decoder) -> None:
    rng = np.random.default_rng(0)
    texts = [greedy(target, rng.integers(0, VOCABULARY, 4).tolist(), 12) for _ in range(4)]
    items = [Item(torch.tensor(text), 4, states_of(target, text).float()) for text in texts]
    training = trainee(folder)
    prepared, held_out = training.prepare(items, (0,)), training.prepare_held_out(items)
    before = training.measure(held_out)
    optimiser = torch.optim.Adam(training.module.parameters(), lr=0.003)
    for _ in range(200):
        optimiser.zero_grad()
        training.loss(prepared, 0.0).total.backward()
        optimiser.step()
    after = training.measure(held_out)
    assert after.accepted[0] > 0.95 * after.tried[0] > before.accepted[0]


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^draft\.num_layers is 6, and the model has 5 layers$"):
        trainee(folder, layers=6)
    with pytest.raises(ValueError, match=r"no sample has the 2 tokens"):
        trainee(folder).prepare([Item(torch.tensor([1]), 1, torch.zeros(1, HIDDEN))], (0,))
    config = tiny_target().config
    check_llama(config)
    for change in ({"qkv_bias": True}, {"norm_placement": "post"}, {"qk_norm": "head"}, {"final_soft_cap": 30.0}):
        with pytest.raises(ValueError, match=r"a small draft of LlamaForCausalLM is not supported"):
            check_llama(replace(config, **change))
    windowed = tuple(replace(layer, sliding_window=4) for layer in config.layers)
    with pytest.raises(ValueError, match=r"only of models whose layers are all llama's"):
        check_llama(replace(config, layers=windowed))
