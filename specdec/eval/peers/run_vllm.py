"""vLLM: a directory. Its engine runs in the worker's own process, and is stepped there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch

OPTIONS = ("dtype", "speculative_config", "enforce_eager", "kv_cache_gb")


def load(asked: Load) -> VllmPeer:
    """Options: dtype (auto), speculative_config (JSON), enforce_eager (true or false), kv_cache_gb (1)."""
    asked.check_options(OPTIONS)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = asked.options.get("kv_cache_gb", "1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, processors()[: asked.num_threads]))
    from vllm import LLM

    speculative = asked.options.get("speculative_config")
    model = LLM(
        model=asked.model,
        dtype=asked.options.get("dtype", "auto"),
        max_model_len=asked.max_length,
        max_num_seqs=asked.max_batch,
        enable_prefix_caching=False,
        enforce_eager=asked.options.get("enforce_eager") == "true",
        skip_tokenizer_init=True,
        speculative_config=None if speculative is None else json.loads(speculative),
    )
    return VllmPeer(model)


def processors() -> list[int]:
    """Those that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


class VllmPeer:
    def __init__(self, model: Any) -> None:
        import vllm

        self.library = f"vllm {vllm.__version__}"
        self.precision = str(model.llm_engine.model_config.dtype).removeprefix("torch.")
        self._engine = model.llm_engine
        self._names = map(str, count())

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        watch = Stopwatch(len(prompts))
        names = [next(self._names) for _ in prompts]
        for name, ids in zip(names, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        answers: dict[str, list[int]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                answers[output.request_id] = list(output.outputs[0].token_ids)
            watch.tokens(sum(map(len, answers.values())), sum(map(bool, answers.values())))
        return watch.stop([answers[name] for name in names])
