"""Runs: they learn, stop, go on to the same bits, and leave what they say they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specdec.kernels import reference
from specdec.models.eagle import EagleHead
from specdec.models.heads import load_head
from specdec.train.checkpoint import load_checkpoint
from specdec.train.loop import Loop, Progress, Sitting
from specdec.train.recipe import Eagle3Config, LossConfig, OptimiserConfig, RunConfig, TrainConfig
from specdec.train.trainees.chains import PackedChains
from specdec.train.trainees.eagle3 import Eagle3Plan, Eagle3Trainee, HeldOutChains
from specdec.train.trainees.eagle3_start import Eagle3Weights, shape_for, start_from_target
from specdec.types import SamplingParams, SpeculationStats
from tests.heads import CPU, VOCABULARY, head_engine, tiny_target
from tests.toys import generate, tokens
from tests.train.toys import AUX_LAYERS, ToyData, parts_of, surveyed, toy_data

RECIPE = TrainConfig(
    run=RunConfig(epochs=6, step_tokens=60, dtype="float32", evaluations=3, held_out_share=0.25),
    optimiser=OptimiserConfig(learning_rate=5e-3),
    eagle3=Eagle3Config(unrolls=3, chain_share=1.0),
)


@pytest.fixture(scope="module")
def data() -> ToyData:
    return toy_data(tiny_target(), 12)


def trainee(recipe: TrainConfig, dtype: torch.dtype = torch.float32) -> Eagle3Trainee:
    target = parts_of(tiny_target())
    weights = Eagle3Weights(shape_for(target.config, AUX_LAYERS), torch.arange(VOCABULARY), recipe.run.seed)
    start_from_target(weights, target)
    plan = Eagle3Plan(recipe.eagle3.unrolls, 0.8, recipe.eagle3.chain_share, True, False, torch.float32, dtype, CPU)
    return Eagle3Trainee(weights, target, plan, "tiny")


def loop(
    recipe: TrainConfig, data: ToyData, sitting: Sitting, dtype: torch.dtype = torch.float32
) -> Loop[PackedChains, HeldOutChains]:
    whole = surveyed(data, VOCABULARY, recipe.run.held_out_share)
    return Loop(trainee(recipe, dtype), whole, recipe, {"name": "tiny"}, sitting)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more, and wait for them on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_tiny_head_learns_its_own_data(tmp_path: Path) -> None:
    """And drafts it: what the loop measures is what the engine then accepts."""
    target, data = tiny_target(), toy_data(tiny_target(), 4)
    recipe = TrainConfig(
        run=RunConfig(epochs=450, step_tokens=300, dtype="float32", evaluations=2, held_out_share=0.0),
        optimiser=OptimiserConfig(method="adamw", learning_rate=3e-2, weight_decay=0.0, clip=10.0, ema=0.95),
        eagle3=Eagle3Config(unrolls=3, chain_share=1.0),
    )
    outcome = loop(recipe, data, Sitting(tmp_path)).run()
    assert outcome.ended == "finished"
    assert outcome.best is not None
    assert min(outcome.best.conditional) > 0.95
    head = load_head(tmp_path / "head", target=target, dtype="float64", device=CPU, kernels=reference)
    assert isinstance(head, EagleHead)
    engine = head_engine(target, "eagle3", head, k=3)
    prompts = [data[i].token_ids[: data[i].num_prompt_tokens].tolist() for i in range(len(data))]
    drafted = generate(engine, prompts, SamplingParams(temperature=0.0, max_tokens=20))
    assert [[*prompt, *out[0]] for prompt, out in zip(prompts, tokens(drafted), strict=True)] == [
        data[i].token_ids.tolist() for i in range(len(data))
    ]
    total = SpeculationStats()
    for output in drafted:
        total.add(output.outputs[0].speculation)
    assert total.acceptance_rate > 0.95


def weights(directory: Path, name: str = "last.pt") -> dict[str, torch.Tensor]:
    found = load_checkpoint(directory / name)
    assert found is not None
    return dict(found.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_sittings_end_in_the_bits_of_one(tmp_path: Path, data: ToyData, dtype: torch.dtype) -> None:
    recipe = replace(RECIPE, eagle3=replace(RECIPE.eagle3, chain_share=0.5), run=replace(RECIPE.run, accumulation=2))
    whole = loop(recipe, data, Sitting(tmp_path / "whole"), dtype).run()
    assert whole.ended == "finished"
    sittings = 0
    while True:
        outcome = loop(recipe, data, Sitting(tmp_path / "parts", stop_after=0.0), dtype).run()
        sittings += 1
        assert outcome.step == sittings
        if outcome.ended == "finished":
            break
        assert outcome.ended == "time"
    assert sittings == whole.num_steps > 3
    assert outcome == whole
    for name in ("last.pt", "best.pt"):
        one, many = weights(tmp_path / "whole", name), weights(tmp_path / "parts", name)
        assert one.keys() == many.keys()
        assert all(torch.equal(one[key], many[key]) for key in one)
    files = {path.name for path in (tmp_path / "whole").iterdir()}
    assert files == {"last.pt", "last.json", "best.pt", "best.json", "curve.svg", "head"}
    again = loop(recipe, data, Sitting(tmp_path / "whole"), dtype).run()
    assert again == whole


def test_seeds_matter(tmp_path: Path, data: ToyData) -> None:
    other = replace(RECIPE, run=replace(RECIPE.run, seed=1))
    loop(RECIPE, data, Sitting(tmp_path / "a")).run()
    loop(other, data, Sitting(tmp_path / "b")).run()
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert not torch.equal(one["fc"], two["fc"])


def test_a_run_goes_on_with_its_own_recipe_and_data_alone(tmp_path: Path, data: ToyData) -> None:
    loop(RECIPE, data, Sitting(tmp_path, stop_after=0.0)).run()
    with pytest.raises(ValueError, match=r"last.pt was begun with recipe.loss.unroll_decay 0.8, and now it is 0.5"):
        loop(replace(RECIPE, loss=LossConfig(unroll_decay=0.5)), data, Sitting(tmp_path))
    fewer = ToyData(data.samples[:-1], data.kept[:-1])
    with pytest.raises(ValueError, match=r"last.pt was begun with data "):
        loop(RECIPE, fewer, Sitting(tmp_path))
    (tmp_path / "last.pt").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"last.pt is no last.pt or best.pt of a training run, or a damaged one"):
        loop(RECIPE, data, Sitting(tmp_path))


def test_ctrl_c_ends_a_run_after_its_step(tmp_path: Path, data: ToyData) -> None:
    outcome = loop(RECIPE, data, Sitting(tmp_path, stopped=lambda: True)).run()
    assert (outcome.ended, outcome.step) == ("stopped", 1)


def test_what_is_told_and_written(tmp_path: Path, data: ToyData) -> None:
    told: list[Progress] = []
    outcome = loop(RECIPE, data, Sitting(tmp_path, command="specdec train eagle3", tell=told.append)).run()
    assert [each.step for each in told] == list(range(1, outcome.num_steps + 1))
    assert all(len(each.divergences) == 3 for each in told)
    assert told[-1].acceptance == outcome.acceptance is not None
    provenance = json.loads((tmp_path / "last.json").read_text())
    assert provenance["command"] == "specdec train eagle3"
    assert provenance["target"] == {"name": "tiny"}
    assert provenance["recipe"]["eagle3"]["unrolls"] == 3
    assert provenance["progress"]["tokens"] == outcome.tokens == told[-1].tokens
    found = load_checkpoint(tmp_path / "last.pt")
    assert found is not None
    assert len(found.history) == 3
    assert outcome.best is not None
    assert outcome.best.mean_length == max(look["mean_length"] for look in found.history)


def test_states_of_other_data_are_refused(tmp_path: Path, data: ToyData) -> None:
    wrong = ToyData(data.samples, [states[1:] for states in data.kept])
    with pytest.raises(ValueError, match="has 24 tokens and states of 23"):
        loop(RECIPE, wrong, Sitting(tmp_path)).run()
