"""Offline generation in vLLM's manner: a list of prompts in, a list of outputs out, in order."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from specdec.config import DEFAULT_MODEL, EngineConfig
from specdec.core.alarm import ProposerWatch
from specdec.engine import Engine, Prompt
from specdec.types import RequestOutput, SamplingParams, SpeculationParams

Message = Mapping[str, Any]
"""One turn of a conversation: {"role": ..., "content": ...}."""


class LLM:
    """A model ready to answer lists of prompts. Arguments are `EngineConfig`'s fields, with vLLM's names.

    `speculative_config` is vLLM's dictionary, for example `{"method": "ngram", "num_speculative_tokens": 4}`, or a list
    of them: then the first is the default and a request may name any.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        speculative_config: Mapping[str, Any] | Many[Mapping[str, Any]] | None = None,
        dtype: str = "auto",
        quantization: str | None = "none",
        kv_cache_dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        block_size: int = 16,
        kv_cache_tokens: int | None = None,
        gpu_memory_utilization: float = 0.5,
        enable_prefix_caching: bool = True,
        seed: int = 0,
        verifier: str = "auto",
        kernels: str = "auto",
        num_threads: int | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "block_size": block_size,
            "kv_cache_tokens": kv_cache_tokens,
            "gpu_memory_utilization": gpu_memory_utilization,
            "enable_prefix_caching": enable_prefix_caching,
            "seed": seed,
            "verifier": verifier,
            "kernels": kernels,
            "num_threads": num_threads,
            "speculative_config": speculative_config,
        }
        self.engine = Engine.from_config(EngineConfig.from_mapping(options))
        self._num_requests = 0
        self._watch = ProposerWatch()

    def generate(
        self,
        prompts: Prompt | Many[Prompt],
        sampling_params: SamplingParams | Many[SamplingParams] | None = None,
        *,
        priority: Many[int] | None = None,
        speculation: SpeculationParams | Many[SpeculationParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of them, in one batch; outputs are in the order of the prompts.

        A prompt is text, {"prompt": ...}, {"prompt_token_ids": [...]} or a list of token ids. Lists of parameters,
        priorities or speculation settings must be as long as the list of prompts. ValueError before anything runs if
        any of them is wrong.

        A proposer that never drafts, or whose drafts are hardly ever right, does not show in the answers: a
        UserWarning tells of it, once for each proposer, when the calls so far are enough to judge by.
        """
        return self._generate(prompts, sampling_params, priority, speculation)

    def _generate(
        self,
        prompts: Prompt | Many[Prompt],
        sampling_params: SamplingParams | Many[SamplingParams] | None,
        priority: Many[int] | None,
        speculation: SpeculationParams | Many[SpeculationParams] | None,
    ) -> list[RequestOutput]:
        """What `generate` and `chat` share; a warning names the line that called them."""
        if self.engine.has_unfinished_requests():
            raise ValueError("the engine has unfinished requests of its own; finish or abort them first")
        listed = _prompt_list(prompts)
        count = len(listed)
        params = _broadcast("sampling_params", sampling_params, SamplingParams(), count)
        settings = _broadcast("speculation", speculation, SpeculationParams(), count)
        priorities = _broadcast("priority", priority, 0, count)
        ids: list[str] = []
        try:
            for i in range(count):
                self._num_requests += 1
                request_id = f"llm-{self._num_requests}"
                self.engine.add_request(
                    request_id, listed[i], params[i], priority=priorities[i], speculation=settings[i]
                )
                ids.append(request_id)
            outputs = self._run(ids)
        except BaseException:
            for request_id in ids:
                self.engine.abort(request_id)
            raise
        for message in self._watch.judge(outputs):
            warnings.warn(message, stacklevel=3)
        return outputs

    def chat(
        self,
        messages: Many[Message] | Many[Many[Message]],
        sampling_params: SamplingParams | Many[SamplingParams] | None = None,
        *,
        speculation: SpeculationParams | Many[SpeculationParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or a list of them, through the model's chat template.

        Otherwise as `generate`.
        """
        if not isinstance(messages, Many) or isinstance(messages, str | bytes):
            raise ValueError(f"messages must be a list of messages; got {type(messages).__name__}")
        if not messages:
            raise ValueError("messages is empty; give at least one {'role': 'user', 'content': ...}")
        conversations: Any = [messages] if isinstance(messages[0], Mapping) else messages
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise ValueError("this engine has no tokenizer, and so no chat template")
        prompts = [{"prompt_token_ids": tokenizer.apply_chat_template(turns)} for turns in conversations]
        return self._generate(prompts, sampling_params, None, speculation)

    def _run(self, ids: Many[str]) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        while len(finished) < len(ids):
            for output in self.engine.step():
                if output.finished:
                    finished[output.request_id] = output
        return [finished[request_id] for request_id in ids]


def _prompt_list(prompts: Prompt | Many[Prompt]) -> list[Prompt]:
    """One prompt (a list of integers is one) becomes a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Many) or isinstance(prompts, bytes):
        raise ValueError(f"prompts must be text, token ids, a mapping or a list of these; got {type(prompts).__name__}")
    if prompts and all(isinstance(entry, int) for entry in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _broadcast(name: str, value: Any, default: Any, count: int) -> list[Any]:
    """One value for all prompts, or a list with one for each."""
    if value is None:
        return [default] * count
    if not isinstance(value, Many):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} entries for {count} prompts")
    return list(value)
