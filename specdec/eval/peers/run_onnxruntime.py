"""ONNX Runtime GenAI: a directory of its own format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch, left_padded

OPTIONS = ("precision",)


def load(asked: Load) -> OnnxPeer:
    """Options: precision (how to call the weights' one)."""
    asked.check_options(OPTIONS)
    import onnxruntime_genai as genai

    config = genai.Config(asked.model)
    threads = {"intra_op_num_threads": asked.num_threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    told = json.loads((Path(asked.model) / "genai_config.json").read_text("utf-8"))
    padding = int(told["model"].get("pad_token_id", 0))
    return OnnxPeer(genai.Model(config), asked.options.get("precision", "as converted"), padding)


class OnnxPeer:
    def __init__(self, model: Any, precision: str, padding: int) -> None:
        import onnxruntime_genai as genai

        self.library = f"onnxruntime-genai {genai.__version__}"
        self.precision = precision
        self._model = model
        self._padding = padding

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        import numpy as np
        import onnxruntime_genai as genai

        watch = Stopwatch(len(prompts))
        rows, _ = left_padded(prompts, self._padding)
        length = len(rows[0]) + max_tokens
        params = genai.GeneratorParams(self._model)
        params.set_search_options(min_length=length, max_length=length, batch_size=len(rows), do_sample=False)
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(rows, np.int32))
        for number in range(1, max_tokens + 1):
            generator.generate_next_token()
            watch.tokens(number * len(rows), len(rows))
        found = [generator.get_sequence(place)[len(rows[0]) :] for place in range(len(rows))]
        return watch.stop([list(map(int, ids)) for ids in found])
