"""specdec itself, by the same protocol. The option `config` is a whole engine configuration as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING

from specdec.config import EngineConfig, calm_threads

from .generation import Generation, Ids, Load, Stopwatch

if TYPE_CHECKING:
    from specdec.engine import Engine

OPTIONS = ("config",)


def config_text(config: EngineConfig) -> str:
    """A configuration as the option `config` has it."""
    own = asdict(config)
    own["speculative"] = [
        {"method": each.method, "num_speculative_tokens": each.num_speculative_tokens, **each.settings}
        for each in config.speculative
    ]
    return json.dumps(own)


def load(asked: Load) -> SpecdecPeer:
    """An engine of that configuration; its proposer is the first one."""
    asked.check_options(OPTIONS)
    config = EngineConfig.from_mapping(json.loads(asked.options["config"]))
    calm_threads()
    import torch

    torch.set_num_threads(asked.num_threads)
    from specdec.engine import Engine

    return SpecdecPeer(Engine.from_config(config))


def _precision(engine: Engine) -> str:
    """Of the weights."""
    from specdec.models.decoder import Decoder

    model, quantization = engine.runner.model, engine.config.quantization
    if quantization != "none":
        return quantization
    dtype = model.dtype if isinstance(model, Decoder) else model.kv_layout().dtype
    return str(dtype).removeprefix("torch.")


class SpecdecPeer:
    def __init__(self, engine: Engine) -> None:
        from specdec import __version__

        self.library = f"specdec {__version__}"
        self.precision = _precision(engine)
        self._engine = engine
        self._calls = count()

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        from specdec.types import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, seed=0)
        salt = str(next(self._calls))  # neither prefixes nor drafts come from earlier calls
        watch = Stopwatch(len(prompts))
        try:
            for index, ids in enumerate(prompts):
                self._engine.add_request(str(index), list(ids), params, cache_salt=salt)
            return watch.stop(self._answers(len(prompts), watch))
        finally:
            for index in range(len(prompts)):
                self._engine.abort(str(index))

    def _answers(self, count: int, watch: Stopwatch) -> list[list[int]]:
        answers: dict[str, list[int]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if error := output.outputs[0].error:
                    raise ValueError(f"an answer failed: {error}")
                answers[output.request_id] = output.outputs[0].token_ids
            watch.tokens(sum(map(len, answers.values())), sum(map(bool, answers.values())))
        return [answers[str(index)] for index in range(count)]
