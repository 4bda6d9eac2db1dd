"""transformers: a directory, or a .gguf file that it turns into float weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .generation import Generation, Ids, Load, Stopwatch, left_padded

OPTIONS = ("dtype", "prompt_lookup")


def load(asked: Load) -> TransformersPeer:
    """Options: dtype (auto), prompt_lookup (the number of tokens to draft)."""
    asked.check_options(OPTIONS)
    import torch

    torch.set_num_threads(asked.num_threads)
    from transformers import AutoModelForCausalLM

    path = Path(asked.model)
    dtype = asked.options.get("dtype", "auto")
    model: Any
    if path.is_file():
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=dtype)
    return TransformersPeer(model.eval(), int(asked.options.get("prompt_lookup", 0)))


class TransformersPeer:
    def __init__(self, model: Any, prompt_lookup: int) -> None:
        import transformers

        self.library = f"transformers {transformers.__version__}"
        self.precision = str(model.dtype).removeprefix("torch.")
        self._model = model
        self._model.generation_config.eos_token_id = None  # answers go on after it, and may hold it
        self._prompt_lookup = prompt_lookup

    def generate(self, prompts: Sequence[Ids], max_tokens: int) -> Generation:
        import torch

        watch = Stopwatch(len(prompts))
        rows, mask = left_padded(prompts, 0)
        width = len(rows[0])
        going_on = torch.zeros(len(rows), dtype=torch.bool)

        def look(input_ids: Any, scores: Any, **rest: Any) -> Any:
            watch.tokens(len(prompts) * (input_ids.shape[1] - width), len(prompts))
            return going_on

        extra = {"prompt_lookup_num_tokens": self._prompt_lookup} if self._prompt_lookup else {}
        with torch.inference_mode():
            found = self._model.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                do_sample=False,
                max_new_tokens=max_tokens,
                pad_token_id=0,
                stopping_criteria=[look],
                **extra,
            )
        return watch.stop([row[width:] for row in found.tolist()])
