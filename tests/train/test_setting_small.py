"""From a recipe to Medusa heads and a small draft model, and on from another run's checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.kernels import reference
from specdec.models.heads import head_kind
from specdec.models.loader import load_model, open_checkpoint
from specdec.train.checkpoint import Checkpoint, save_checkpoint
from specdec.train.loop import Loop, Sitting
from specdec.train.recipe import DraftConfig, MedusaConfig, RunConfig, TrainConfig
from specdec.train.setting import Setting
from specdec.train.setting_small import draft, medusa
from specdec.train.target import read_target
from tests.engine.test_draft_files import save
from tests.heads import CPU
from tests.train.toys import surveyed, toy_data

RECIPE = TrainConfig(
    run=RunConfig(epochs=2, step_tokens=64, evaluations=2, dtype="float32", device="cpu"),
    medusa=MedusaConfig(num_heads=2, draft_vocab_size=20),
    draft=DraftConfig(num_layers=2, loss_vocab_size=20),
)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = save(tmp_path_factory.mktemp("target"), layers=5)
    target = load_model(open_checkpoint(folder), dtype="float32", device=CPU, kernels=reference, max_model_len=None)
    data = surveyed(toy_data(target, 6, length=8), 256)
    return Setting(read_target(folder), {"name": str(folder)}, data, (1, 2, 4))


def silent(line: str) -> None: ...


@pytest.mark.parametrize("make", [medusa, draft])
def test_a_run_writes_what_specdec_loads_and_another_goes_on_from_it(make, setting: Setting, tmp_path: Path) -> None:
    trainee = make(setting, RECIPE, None, silent)
    outcome = Loop(trainee, setting.data, RECIPE, setting.identity, Sitting(tmp_path)).run()
    assert outcome.ended == "finished"
    if make is medusa:
        assert head_kind(tmp_path / "head") == "medusa"
    else:
        assert open_checkpoint(tmp_path / "head").config.num_layers == 2
    other = make(setting, RECIPE, tmp_path / "last.pt", silent)
    for ours, theirs in zip(other.module.parameters(), trainee.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_in_two_sittings_ends_in_the_same_bits(setting: Setting, tmp_path: Path) -> None:
    for make in (medusa, draft):
        whole = make(setting, RECIPE, None, silent)
        Loop(whole, setting.data, RECIPE, setting.identity, Sitting(tmp_path / f"{whole.name}-whole")).run()
        parts = make(setting, RECIPE, None, silent)
        place = tmp_path / f"{whole.name}-parts"
        assert (
            Loop(parts, setting.data, RECIPE, setting.identity, Sitting(place, stop_after=1e-9)).run().ended == "time"
        )
        last = make(setting, RECIPE, None, silent)
        Loop(last, setting.data, RECIPE, setting.identity, Sitting(place)).run()
        for ours, theirs in zip(last.module.parameters(), whole.module.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_checkpoint_of_something_else_is_refused(setting: Setting, tmp_path: Path) -> None:
    weights = medusa(setting, RECIPE, None, silent).module.state_dict()
    save_checkpoint(tmp_path / "a.pt", Checkpoint(1, weights, {}, [], {"trainee": "medusa"}), {})
    with pytest.raises(ValueError, match=r"a\.pt is a checkpoint of medusa, not of draft"):
        draft(setting, RECIPE, tmp_path / "a.pt", silent)
    with pytest.raises(ValueError, match=r"b\.pt does not exist; expected a checkpoint such as best\.pt"):
        medusa(setting, RECIPE, tmp_path / "b.pt", silent)
    more = TrainConfig(medusa=MedusaConfig(num_heads=3), run=RECIPE.run)
    with pytest.raises(ValueError, match=r"a\.pt is of another shape, or for another target"):
        medusa(setting, more, tmp_path / "a.pt", silent)
