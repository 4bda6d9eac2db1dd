"""`specdec train eagle3`, `medusa` and `draft`: recipes from files and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specdec.cli.train_heads import recipe, recipe_options
from specdec.train.recipe import DEFAULTS, read_recipe
from tests.cli import fake
from tests.cli.fake import invoke

CONFIGS = Path(__file__).parents[2] / "configs" / "train"
TRAINEES = ("eagle3", "medusa", "draft")


def options(trainee: str, **values: Any) -> dict[str, Any]:
    return dict.fromkeys(recipe_options(trainee)) | values


@pytest.mark.parametrize("trainee", TRAINEES)
def test_the_recipes_in_the_repository_can_be_read(trainee: str) -> None:
    path = CONFIGS / f"{trainee}.yaml"
    values = yaml.safe_load(path.read_text())
    assert trainee in values
    assert recipe(trainee, path, options(trainee)) == read_recipe(values, str(path))


@pytest.mark.parametrize("trainee", TRAINEES)
def test_every_option_tells_the_default_of_its_key(trainee: str) -> None:
    _, out, _ = fake.run(["train", trainee, "--help"], None)
    told = " ".join(out.split())
    for name, (section, help) in recipe_options(trainee).items():
        default = getattr(getattr(DEFAULTS[trainee], section), name)
        assert f"{help} [default: {default}]" in told


def test_a_draft_model_learns_more_slowly_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    assert recipe("draft", None, options("draft")).optimiser.learning_rate == 3e-4
    file = tmp_path / "recipe.yaml"
    file.write_text("run: {seed: 3}\n")
    config = recipe("draft", file, options("draft"))
    assert (config.run.seed, config.run.epochs, config.optimiser.learning_rate) == (3, 4, 3e-4)
    assert recipe("medusa", None, options("medusa")).optimiser.learning_rate == 2e-3


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("medusa: {num_heads: 2, draft_vocab_size: 50}\nrun: {epochs: 3}\n")
    config = recipe("medusa", file, options("medusa", num_heads=5))
    assert (config.medusa.num_heads, config.medusa.draft_vocab_size, config.run.epochs) == (5, 50, 3)


@pytest.mark.parametrize(
    ("trainee", "option", "said"),
    [
        ("medusa", "--num-heads=0", "--num-heads: medusa.num_heads is 0, and must be between 1 and 16"),
        ("draft", "--num-layers=0", "--num-layers: draft.num_layers is 0, and must be between 1 and 1000"),
        ("draft", "--epochs=0", "--epochs: run.epochs is 0, and must be between 1 and 10000"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read(trainee: str, option: str, said: str, tmp_path: Path) -> None:
    result = invoke("train", trainee, f"--data={tmp_path}", f"--output={tmp_path / 'out'}", option)
    assert (result.exit_code, result.error) == (2, said)
