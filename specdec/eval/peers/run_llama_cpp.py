"""llama.cpp by its Python binding: a .gguf file, one prompt at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch

FILE_TYPES = {"0": "F32", "1": "F16", "2": "Q4_0", "3": "Q4_1", "7": "Q8_0", "8": "Q5_0", "9": "Q5_1", "32": "BF16"}
"""`general.file_type` of the GGUF format, those that are one type throughout."""

OPTIONS = ("prompt_lookup",)


def load(asked: Load) -> LlamaPeer:
    """Options: prompt_lookup (the number of tokens to draft)."""
    asked.check_options(OPTIONS)
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = int(asked.options.get("prompt_lookup", 0))
    model = Llama(
        model_path=asked.model,
        n_ctx=asked.max_length,
        n_threads=asked.num_threads,
        n_threads_batch=asked.num_threads,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None,
        verbose=False,
    )
    return LlamaPeer(model)


class LlamaPeer:
    def __init__(self, model: Any) -> None:
        import llama_cpp

        kind = str(model.metadata.get("general.file_type", "?"))
        self.library = f"llama-cpp-python {llama_cpp.__version__}"
        self.precision = FILE_TYPES.get(kind, f"GGUF file type {kind}")
        self._model = model

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        if len(prompts) > 1:
            raise ValueError("llama-cpp-python answers one prompt at a time")
        self._model.reset()  # else it would go on from what the last prompt has in common with this one
        watch = Stopwatch(1)
        answer: list[int] = []
        for token in self._model.generate(list(prompts[0]), temp=0.0, repeat_penalty=1.0):
            answer.append(int(token))
            watch.tokens(len(answer), 1)
            if len(answer) == max_tokens:
                break
        return watch.stop([answer])
