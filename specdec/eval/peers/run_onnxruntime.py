"""ONNX Runtime GenAI: a directory of its own format.

Its end-of-sequence token is never chosen, so that answers are as long as was asked for; elsewhere it is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch, right_padded

OPTIONS = ("precision", "pad_token_id")


def load(asked: Load) -> OnnxPeer:
    """Options: precision (how to call the weights' one), pad_token_id (0). The library takes every token of that id for
    padding, so that it must be one that no prompt has; converters often name one that chat templates use."""
    asked.check_options(OPTIONS)
    import onnxruntime_genai as genai

    padding = int(asked.options.get("pad_token_id", "0"))
    session = {"intra_op_num_threads": asked.num_threads}
    config = genai.Config(asked.model)
    config.overlay(json.dumps({"model": {"pad_token_id": padding, "decoder": {"session_options": session}}}))
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

        if len(prompts) > 1 and any(self._padding in ids for ids in prompts):
            raise ValueError(f"a prompt has the token {self._padding}, which stands for padding: set pad_token_id")
        watch = Stopwatch(len(prompts))
        rows = right_padded(prompts, self._padding)
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
