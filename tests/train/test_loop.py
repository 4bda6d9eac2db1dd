"""Runs: they learn, stop, go on to the same bits, and leave what they say they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.kernels import reference
from specdec.models.eagle import EagleHead
from specdec.models.heads import load_head
from specdec.train.loop import Loop, Sitting
from specdec.train.recipe import Eagle3Config, LossConfig, OptimiserConfig, RunConfig, TrainConfig
from specdec.train.trainees.eagle3 import Eagle3Plan, Eagle3Trainee
from specdec.train.trainees.eagle3_start import Eagle3Weights, shape_for, start_from_target
from specdec.types import SamplingParams
from tests.heads import CPU, VOCABULARY, head_engine, tiny_target
from tests.toys import generate, tokens
from tests.train.toys import AUX_LAYERS, ToyData, parts_of, surveyed, toy_data

RECIPE = TrainConfig(
    run=RunConfig(epochs=6, step_tokens=60, dtype="float32", evaluations=3, held_out_share=0.25),
    optimiser=OptimiserConfig(learning_rate=5e-3),
    eagle3=Eagle3Config(unrolls=3),
)


@pytest.fixture(scope="module")
def data() -> ToyData:
    return toy_data(tiny_target(), 12)


def trainee(recipe: TrainConfig, dtype: torch.dtype = torch.float32) -> Eagle3Trainee:
    target = parts_of(tiny_target())
    weights = Eagle3Weights(shape_for(target.config, AUX_LAYERS), torch.arange(VOCABULARY), recipe.run.seed)
    start_from_target(weights, target)
    plan = Eagle3Plan(recipe.eagle3.unrolls, 0.8, recipe.eagle3.chain_share, True, torch.float32, dtype, CPU)
    return Eagle3Trainee(weights, target, plan, "tiny")


def loop(recipe: TrainConfig, data: ToyData, sitting: Sitting, dtype: torch.dtype = torch.float32) -> Loop:
    whole = surveyed(data, VOCABULARY, recipe.run.held_out_share)
    return Loop(trainee(recipe, dtype), whole, recipe, {"name": "tiny"}, sitting)


def test_a_tiny_head_learns_its_own_data(tmp_path: Path, data: ToyData) -> None:
    recipe = TrainConfig(
        run=RunConfig(epochs=120, step_tokens=300, dtype="float32", evaluations=4, held_out_share=0.0),
        optimiser=OptimiserConfig(learning_rate=1e-2, weight_decay=0.0, clip=10.0),
        loss=LossConfig(acceptance_from=0.67),
        eagle3=Eagle3Config(unrolls=3),
    )
    outcome = loop(recipe, data, Sitting(tmp_path)).run()
    assert outcome.ended == "finished"
    assert outcome.best is not None
    assert min(outcome.best.conditional) > 0.95
    target = tiny_target()
    head = load_head(tmp_path / "head", target=target, dtype="float64", device=CPU, kernels=reference)
    assert isinstance(head, EagleHead)
    prompts = [data[i].token_ids[: data[i].num_prompt_tokens].tolist() for i in range(len(data))]
    params = SamplingParams(temperature=0.0, max_tokens=20)
    plain = generate(head_engine(target), prompts, params)
    engine = head_engine(target, "eagle3", head, k=3)
    drafted = generate(engine, prompts, params)
    assert tokens(drafted) == tokens(plain)
    stats = [output.outputs[0].speculation for output in drafted]
    print(stats[0])
