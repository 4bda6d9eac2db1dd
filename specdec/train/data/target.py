"""The model that answers: an engine around it, with a tap where its states are wanted, and what names it for good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec.config import EngineConfig
from specdec.engine import Engine
from specdec.engine.build import LoadedModels, assemble, load_models
from specdec.models.hub import resolve
from specdec.train.data.tap import Tap

CHUNK = 1 << 22


@dataclass(frozen=True)
class Target:
    """An engine, and of its model what data made with it must say."""

    engine: Engine
    tap: Tap | None
    sha256: str
    """Of the model's weights."""
    vocab_size: int
    hidden_size: int
    aux_layers: tuple[int, ...]
    """Whose inputs are kept, with the state after the final norm; of use without a tap too."""

    @property
    def state_width(self) -> int:
        """Numbers in a row of states."""
        return (len(self.aux_layers) + 1) * self.hidden_size


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """A low, a middle and a high layer, as EAGLE-3's authors take them (arXiv 2503.01840); of shallow models, what
    there is."""
    return tuple(sorted({min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)}))


def load_target(
    config: EngineConfig,
    *,
    aux_layers: tuple[int, ...] | None,
    keeps_states: bool,
    progress: Callable[[str], None] | None = None,
) -> Target:
    """Load what `config` names. ValueError in one line for what is wrong with it."""
    models = load_models(config, progress)
    layers = default_aux_layers(models.model.config.num_layers) if aux_layers is None else aux_layers
    check_aux_layers(layers, models.model.config.num_layers)
    tap = Tap(models.model, layers) if keeps_states else None
    return Target(
        engine=_engine(config, models, tap),
        tap=tap,
        sha256=weights_sha256(resolve(config.model)),
        vocab_size=models.facts.vocab_size,
        hidden_size=models.model.config.hidden_size,
        aux_layers=layers,
    )


def _engine(config: EngineConfig, models: LoadedModels, tap: Tap | None) -> Engine:
    return assemble(
        config,
        models.model if tap is None else tap,
        models.facts,
        models.tokenizer,
        kernels=models.kernels,
        device=models.device,
        draft_models=models.draft_models,
    )


def check_aux_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """ValueError unless these are layers of the model, each once and in order (`num_layers`: the last one's output)."""
    if list(layers) != sorted(set(layers)) or not all(0 <= layer <= num_layers for layer in layers):
        raise ValueError(
            f"layers whose inputs are kept must rise, from 0 to {num_layers} (the last one's output); "
            f"got {','.join(map(str, layers))}"
        )


def weights_sha256(path: Path) -> str:
    """Of a weight file; of a directory, of all of its safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with open(file, "rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
