"""From files and a recipe to a loop that is ready to run: what to train on, for which target, with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.config import EngineConfig
from specdec.models.hub import resolve
from specdec.train.checkpoint import load_checkpoint
from specdec.train.data.dataset import Dataset, open_dataset
from specdec.train.data.features import CachedOrRecomputed, Recomputed
from specdec.train.data.target import check_aux_layers, default_aux_layers, weights_sha256
from specdec.train.loop import TrainingData
from specdec.train.recipe import TrainConfig
from specdec.train.samples import StateSource, joined, joined_states
from specdec.train.survey import Survey, survey
from specdec.train.target import TargetParts, read_target
from specdec.train.trainees.eagle3 import Eagle3Plan, Eagle3Trainee
from specdec.train.trainees.eagle3_start import Eagle3Weights, shape_for, start_from_target
from specdec.train.vocabulary import choose_vocabulary, coverage

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """A target and its data, whatever is to be trained."""

    target: TargetParts
    identity: Mapping[str, Any]
    """What provenance says of the target."""
    data: TrainingData
    aux_layers: tuple[int, ...]


def open_setting(
    directories: Sequence[Path], engine: EngineConfig, config: TrainConfig, asked: tuple[int, ...], tell: Tell
) -> Setting:
    """`directories` are of one target; `engine` names the model and how its forward pass runs where states were not
    kept; `asked` are the auxiliary layers, (): those of the data. ValueError for data of another model."""
    datasets = [open_dataset(directory) for directory in directories]
    for dataset in datasets:
        counted = dataset.provenance["counts"].get("samples", 0)
        if len(dataset) < counted:
            tell(
                f"{dataset.directory} holds {len(dataset):,} samples, and its data.json counts {counted:,}: are its "
                "last files missing?"
            )
    path = resolve(engine.model, tell)
    sha256 = weights_sha256(path)
    for dataset in datasets:
        made_by = dataset.provenance["identity"].get("model", {})
        if made_by.get("sha256", sha256) != sha256:
            raise ValueError(
                f"{dataset.directory} holds answers of {made_by.get('name')}, whose weights are not those of "
                f"{engine.model}: give the model that made them"
            )
    target = read_target(path)
    kept = next((dataset.aux_layers for dataset in datasets if dataset.aux_layers), ())
    layers = asked or kept or default_aux_layers(target.config.num_layers)
    check_aux_layers(layers, target.config.num_layers)
    samples = joined(datasets)
    tell(f"looking over {len(samples):,} samples")
    looked = survey(samples, target.config.vocab_size, config.run.held_out_share)
    identity = {"name": engine.model, "sha256": sha256, "architecture": target.config.architecture}
    origin = {
        "directories": [
            {"directory": each.directory.name, "samples": len(each), "counts": each.provenance["counts"]}
            for each in datasets
        ]
    }
    data = TrainingData(samples, _states(datasets, engine, layers, tell), looked, origin)
    return Setting(target, identity, data, layers)


@dataclass(frozen=True)
class _Kept:
    dataset: Dataset

    def states(self, index: int) -> torch.Tensor:
        kept = self.dataset.states(index)
        assert kept is not None, "every shard has its states"
        return kept


def _states(datasets: Sequence[Dataset], engine: EngineConfig, layers: tuple[int, ...], tell: Tell) -> StateSource:
    """Those on disk; the target itself is loaded only where some are missing."""
    if all(each.aux_layers == layers and all(shard.has_states for shard in each.shards) for each in datasets):
        return joined_states(datasets, [_Kept(dataset) for dataset in datasets])
    from specdec.engine.build import load_models

    tell("loading the model: not all of its states were kept")
    recomputed = Recomputed(load_models(engine, tell).model, layers)
    return joined_states(datasets, [CachedOrRecomputed(dataset, recomputed) for dataset in datasets])


def eagle3(setting: Setting, config: TrainConfig, start_from: Path | None, tell: Tell) -> Eagle3Trainee:
    """The head that the recipe describes. `start_from` is a checkpoint whose weights and vocabulary it takes over."""
    own, target = config.eagle3, setting.target
    shape = shape_for(target.config, setting.aux_layers)
    kept = kept_weights(start_from, Eagle3Trainee.name)
    token_ids = vocabulary(setting.data.survey, own.draft_vocab_size, tell, kept.get("token_ids", ()))
    weights = Eagle3Weights(shape, token_ids, config.run.seed)
    if own.start == "target":
        start_from_target(weights, target)
    if kept:
        try:
            weights.take(kept)
        except RuntimeError:
            raise ValueError(f"{start_from} is of a head for another target, or for other auxiliary layers") from None
    weights.lm_head.requires_grad_(own.train_output != "none")
    device = choose_device(config.run.device)
    return Eagle3Trainee(
        weights,
        target,
        Eagle3Plan(
            unrolls=own.unrolls,
            unroll_decay=config.loss.unroll_decay,
            chain_share=own.chain_share,
            answers_only=own.train_on == "answers",
            output_from_first=own.train_output == "first",
            weight_dtype=getattr(torch, own.weight_dtype),
            dtype=choose_dtype(config.run.dtype, device),
            device=device,
        ),
        setting.identity["name"],
    )


def vocabulary(looked: Survey, size: int, tell: Tell, kept: Sequence[int] | torch.Tensor = ()) -> torch.Tensor:
    """The `size` tokens that the target says most often, `kept` among them, however many these are."""
    token_ids = choose_vocabulary(looked.counts, max(len(kept), min(size, len(looked.counts))), kept)
    share = coverage(looked.counts, token_ids)
    tell(f"the draft's {len(token_ids):,} tokens are {100 * share:.1f} % of what the target says")
    return token_ids


def kept_weights(path: Path | None, trainee: str) -> Mapping[str, torch.Tensor]:
    """The weights of a checkpoint of another run; none where there is no path."""
    if path is None:
        return {}
    found = load_checkpoint(path)
    if found is None:
        raise ValueError(f"{path} does not exist; expected a checkpoint such as best.pt of another run")
    if found.facts.get("trainee") != trainee:
        raise ValueError(f"{path} is a checkpoint of {found.facts.get('trainee')}, not of {trainee}")
    return found.weights


def choose_device(name: str) -> torch.device:
    """auto: a GPU if there is one. ValueError for one that is not there, and for other kinds of devices."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"the device must be auto, cpu, cuda or one of several GPUs, such as cuda:1; got {name!r}")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where products in it are faster."""
    if name != "auto":
        found: torch.dtype = getattr(torch, name)
        return found
    fast = device.type == "cuda" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.bfloat16 if fast else torch.float32
