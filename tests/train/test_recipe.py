"""Recipes: the file in `configs` is the defaults, and what is wrong is one line that helps."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdec.train.recipe import DEFAULTS, Eagle3Config, RunConfig, TrainConfig, changed, read_recipe

FILE = Path(__file__).parents[2] / "configs" / "train" / "eagle3.yaml"


@pytest.mark.parametrize("trainee", ["eagle3", "medusa", "draft"])
def test_the_file_holds_every_default(trainee: str) -> None:
    values = yaml.safe_load((FILE.parent / f"{trainee}.yaml").read_text())
    assert read_recipe(values, "file") == DEFAULTS[trainee] == read_recipe({}, "file", trainee)


@pytest.mark.parametrize("trainee", ["eagle3", "medusa", "draft"])
def test_a_file_holds_every_key(trainee: str) -> None:
    values = yaml.safe_load((FILE.parent / f"{trainee}.yaml").read_text())
    config = read_recipe(values, "file")
    assert {section: set(keys) for section, keys in values.items()} == {
        name: {key.name for key in fields(getattr(config, name))} for name in ("run", "optimiser", "loss", trainee)
    }


def test_what_is_left_out_keeps_its_default() -> None:
    config = read_recipe({"run": {"epochs": 3}, "eagle3": {"aux_layers": [1, 2]}}, "file")
    assert config == TrainConfig(run=RunConfig(epochs=3), eagle3=Eagle3Config(aux_layers=(1, 2)))
    assert changed(config, {"run": {"seed": 5}}, "x").run == RunConfig(epochs=3, seed=5)


def test_numbers_that_yaml_takes_for_texts() -> None:
    assert read_recipe(yaml.safe_load("optimiser: {learning_rate: 5e-4}"), "f").optimiser.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": {}}, "f: unknown section 'optimizer'; did you mean 'optimiser'?"),
        ({"run": {"epoch": 2}}, "f: unknown key of run 'epoch'; did you mean 'epochs'?"),
        ({"run": 3}, "f: run must be a section of keys and values, got 3"),
        ({"run": {"epochs": 2.5}}, "f: run.epochs is 2.5, and must be a whole number"),
        ({"run": {"epochs": True}}, "f: run.epochs is True, and must be a whole number"),
        ({"run": {"epochs": 0}}, "f: run.epochs is 0, and must be between 1 and 10000"),
        ({"run": {"dtype": "int8"}}, "f: run.dtype is 'int8', and must be one of auto, bfloat16, float32"),
        ({"optimiser": {"clip": "big"}}, "f: optimiser.clip is 'big', and must be a number"),
        ({"eagle3": {"unrolls": 8}}, "f: eagle3.unrolls is 8, and must be between 1 and 7"),
        ({"eagle3": {"aux_layers": "2,3"}}, "f: eagle3.aux_layers is '2,3', and must be a list of whole numbers"),
        ({"eagle3": {"train_output": True}}, "f: eagle3.train_output is True, and must be one of all, first, none"),
    ],
)
def test_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_recipe(values, "f")
