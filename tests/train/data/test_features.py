"""States for training: kept ones and recomputed ones are the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.config import EngineConfig
from specdec.engine.build import load_models
from specdec.train.data.dataset import open_dataset
from specdec.train.data.features import CachedOrRecomputed, Recomputed
from specdec.train.data.make import Bounds
from specdec.train.data.target import Target, load_target
from specdec.types import SamplingParams
from tests.engine.test_draft_files import save
from tests.engine.test_native import where_there_are_native_kernels
from tests.toys import run
from tests.train.data.toys import LAYERS, make, short_plan, small_decoder, target_around


def test_samples_without_kept_states_are_recomputed(tmp_path: Path) -> None:
    model = small_decoder()
    made = make(tmp_path / "all", target_around(model, states=True), short_plan(), bounds=Bounds(states_bytes=10**9))
    half = Bounds(states_bytes=made.totals.states_bytes // 2)
    make(tmp_path / "half", target_around(model, states=True), short_plan(), bounds=half)
    whole, dataset = open_dataset(tmp_path / "all"), open_dataset(tmp_path / "half")
    source = CachedOrRecomputed(dataset, Recomputed(model, LAYERS))  # type: ignore[arg-type]
    kept = 0
    for i in range(len(dataset)):
        expected = whole.states(i)
        assert expected is not None
        torch.testing.assert_close(source.states(i), expected, rtol=2**-7, atol=1e-6)
        kept += dataset.states(i) is not None
    assert 0 < kept < len(dataset)


def test_other_layers_than_the_kept_ones_are_refused(tmp_path: Path) -> None:
    model = small_decoder()
    make(tmp_path, target_around(model, states=True), short_plan(), bounds=Bounds(states_bytes=10**9))
    with pytest.raises(ValueError, match="keeps the states of layers 1,3, and those of 0,2 are wanted"):
        CachedOrRecomputed(open_dataset(tmp_path), Recomputed(model, (0, 2)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("target"), layers=3)


def native_target(folder: Path) -> Target:
    config = EngineConfig(
        str(folder),
        dtype="bfloat16",
        kernels="native",
        kv_cache_tokens=256,
        block_size=8,
        enable_prefix_caching=False,
        max_num_batched_tokens=32,
        max_num_seqs=4,
    )
    return load_target(config, aux_layers=None, keeps_states=True)


def test_native_states_are_the_same_bits(folder: Path) -> None:
    with where_there_are_native_kernels():
        target = native_target(folder)
        models = load_models(target.engine.config)
    tap, plain = target.tap, Recomputed(models.model, target.aux_layers)
    assert tap is not None
    assert target.aux_layers == (0, 1, 2)
    assert target.state_width == 4 * 32
    prompts = [[*range(5, 45)], [7] * 9, [1, 2, 3]]
    for i, prompt in enumerate(prompts):
        target.engine.add_request(str(i), prompt, SamplingParams(temperature=1.0, max_tokens=30, seed=i))
        tap.watch(str(i), len(prompt) + 30)
    outputs = run(target.engine)
    for i, prompt in enumerate(prompts):
        token_ids = [*prompt, *outputs[str(i)].outputs[0].token_ids]
        states = tap.take(str(i), token_ids)
        assert states is not None
        assert torch.equal(states, plain.of(token_ids))


@pytest.mark.parametrize("layers", [(2, 1), (0, 0), (-1,), (4,)])
def test_layers_that_the_model_has_not_are_refused(folder: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers whose inputs are kept must rise, from 0 to 3"):
        load_target(EngineConfig(str(folder), kernels="reference"), aux_layers=layers, keeps_states=True)
