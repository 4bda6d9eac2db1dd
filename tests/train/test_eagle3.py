"""The head in training is the head at inference, entry by entry; and it learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec.core.scheduler import Schedule, ScheduledRow
from specdec.kernels import reference
from specdec.models.eagle import EagleHead
from specdec.models.heads import load_head
from specdec.step.batch import Batch
from specdec.step.kv_cache import KVCache
from specdec.train.samples import Item
from specdec.train.trainees.eagle3 import Eagle3Plan, Eagle3Trainee
from specdec.train.trainees.eagle3_start import Eagle3Weights, shape_for
from tests.heads import CPU, VOCABULARY, tiny_target
from tests.train.toys import AUX_LAYERS, parts_of, row, states_of

UNROLLS = 4


def trainee(
    token_ids: Sequence[int] = range(VOCABULARY),
    *,
    unrolls: int = UNROLLS,
    answers_only: bool = True,
    share: float = 1.0,
) -> Eagle3Trainee:
    """Loud noise for weights, so that every part of the head matters."""
    target = parts_of(tiny_target())
    weights = Eagle3Weights(shape_for(target.config, AUX_LAYERS), torch.tensor(list(token_ids)), seed=3)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.3
            )
    plan = Eagle3Plan(unrolls, 0.8, share, answers_only, torch.float32, torch.float32, CPU)
    return Eagle3Trainee(weights, target, plan, "tiny")


def item(seed: int, length: int, prompt: int) -> Item:
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length)
    return Item(torch.from_numpy(tokens), prompt, states_of(tiny_target(), tokens.tolist()).float())


@torch.no_grad()
def chain_logits(head: EagleHead, sample: Item, start: int, unrolls: int) -> list[torch.Tensor]:
    """Token by token as the engine does: logits [Vd] of the entries at `start`, and of those that follow from the
    head's own outputs."""
    tokens = sample.token_ids.tolist()
    kv = KVCache(head.kv_layout(), 64, 4, CPU)
    for cache in (*kv.keys, *kv.values):
        cache.fill_(float("nan"))
    features = head.combine(sample.states[:start, : head.feature_size])
    out = head.forward(Batch.build(Schedule((ScheduledRow(row(tokens), 1, start),)), 4, CPU), kv, features)[-1:]
    logits = [head.compute_logits(out)[0]]
    for position in range(start + 1, min(start + unrolls, len(tokens) - 1)):
        out = head.forward(Batch.build(Schedule((ScheduledRow(row(tokens), position, 1),)), 4, CPU), kv, out)
        logits.append(head.compute_logits(out)[0])
    return logits


@pytest.mark.parametrize("kept", [range(VOCABULARY), [t for t in range(VOCABULARY) if t % 5]])
@pytest.mark.parametrize("answers_only", [True, False])
def test_unrolls_are_what_the_written_head_computes(tmp_path: Path, kept: Sequence[int], answers_only: bool) -> None:
    training = trainee(kept, answers_only=answers_only)
    training.write(tmp_path / "head")
    head = load_head(tmp_path / "head", target=tiny_target(), dtype="float32", device=CPU, kernels=reference)
    assert isinstance(head, EagleHead)
    samples = [item(0, 17, 5), item(1, 9, 1), item(2, 12, 11)]
    chains = training.prepare(samples, (0,))
    rows = [iter(out) for out in training.logits(chains)]
    for sample in samples:
        tokens = sample.token_ids.tolist()
        first = max(1, sample.num_prompt_tokens - 1) if answers_only else 1
        expected = {start: chain_logits(head, sample, start, UNROLLS) for start in range(first, len(tokens) - 1)}
        for depth in range(UNROLLS):
            for start, logits in expected.items():
                said = tokens[start + 1 : start + depth + 2]
                if depth < len(logits) and all(token in kept for token in said):
                    torch.testing.assert_close(next(rows[depth]), logits[depth], atol=2e-5, rtol=2e-5)
    assert all(next(each, None) is None for each in rows)
