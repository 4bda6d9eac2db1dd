"""OpenVINO GenAI: a directory of its own format, or a .gguf file of a type that it reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch, left_padded

OPTIONS = ("prompt_lookup", "inference_precision", "precision")
CONSTANT = re.compile(r'<data element_type="(\w+)"[^>]*\bsize="(\d+)"')


def load(asked: Load) -> OpenVinoPeer:
    """Options: prompt_lookup (the number of tokens to draft), inference_precision (bf16, f32), precision (how to call
    the weights' one)."""
    asked.check_options(OPTIONS)
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = asked.max_batch
    # As without a configuration of one's own: prompts are not cut.
    scheduler.max_num_batched_tokens = asked.max_length * asked.max_batch
    lookup = int(asked.options.get("prompt_lookup", 0))
    settings: dict[str, Any] = {"scheduler_config": scheduler, "INFERENCE_NUM_THREADS": asked.num_threads}
    if lookup:
        settings["prompt_lookup"] = True
    if "inference_precision" in asked.options:
        settings["INFERENCE_PRECISION_HINT"] = asked.options["inference_precision"]
    pipeline = genai.LLMPipeline(asked.model, "CPU", **settings)
    return OpenVinoPeer(pipeline, asked.options.get("precision") or weights_of(Path(asked.model)), lookup)


def weights_of(path: Path) -> str:
    """The type that most bytes of a model's constants have."""
    if path.is_file():
        return f"as in {path.name}"
    sizes: Counter[str] = Counter()
    for kind, size in CONSTANT.findall((path / "openvino_model.xml").read_text("utf-8")):
        sizes[kind] += int(size)
    return sizes.most_common(1)[0][0] if sizes else "unknown"


class OpenVinoPeer:
    def __init__(self, pipeline: Any, precision: str, lookup: int) -> None:
        import openvino_genai as genai

        self.library = f"openvino-genai {genai.__version__}"
        self.precision = precision
        self._pipeline = pipeline
        self._lookup = lookup

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        """The first token's time is a streamer's where there is one prompt, else the mean that the library tells."""
        import numpy as np
        import openvino
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        if self._lookup:
            config.num_assistant_tokens, config.max_ngram_size = self._lookup, 3
        rows, mask = (openvino.Tensor(np.array(each, np.int64)) for each in left_padded(prompts, 0))
        watch = Stopwatch(len(prompts))
        streamer = _streamer(genai, watch) if len(prompts) == 1 else None
        found = self._pipeline.generate(genai.TokenizedInputs(rows, mask), config, streamer)
        told = watch.stop([list(map(int, ids)) for ids in found.tokens])
        if streamer is not None:
            return told
        return Generation(told.token_ids, found.perf_metrics.get_ttft().mean / 1e3, len(prompts), told.total_s)


def _streamer(genai: Any, watch: Stopwatch) -> Any:
    """Tells the watch of tokens as they come."""

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        num_tokens = 0

        def write(self, token: Any) -> Any:
            self.num_tokens += len(token) if isinstance(token, list) else 1
            watch.tokens(self.num_tokens, 1)
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    return Streamer()
