"""The adapter of llama.cpp around a stand-in for its binding, which counts on from a prompt's last token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from specdec.eval.peers.generation import Load
from specdec.eval.peers.run_llama_cpp import load


class Llama:
    """Goes on from what it has seen unless it is reset, as the real one does with a common beginning."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.metadata = {"general.file_type": "3"}
        self.seen: list[int] = []
        self.num_yielded = 0

    def reset(self) -> None:
        self.seen = []

    def generate(self, tokens: list[int], *, temp: float, repeat_penalty: float) -> Iterator[int]:
        assert (temp, repeat_penalty, self.seen) == (0.0, 1.0, []), "greedy, and nothing is reused"
        self.seen = list(tokens)
        while True:
            self.num_yielded += 1
            self.seen.append(self.seen[-1] + 1)
            yield self.seen[-1]


class Lookup:
    def __init__(self, num_pred_tokens: int) -> None:
        self.num_pred_tokens = num_pred_tokens


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    binding, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    vars(binding).update(Llama=Llama, __version__="9.9", llama_speculative=speculative)
    vars(speculative).update(LlamaPromptLookupDecoding=Lookup)
    monkeypatch.setitem(sys.modules, "llama_cpp", binding)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


def test_it_answers_one_prompt_at_a_time_as_long_as_asked() -> None:
    peer = load(Load("m.gguf", 3, 50, 1, {}))
    assert (peer.library, peer.precision) == ("llama-cpp-python 9.9", "Q4_1")
    told = peer.generate([[5, 6]], 4)
    assert (told.token_ids, told.first_tokens) == ([[7, 8, 9, 10]], 1)
    assert peer.generate([[1]], 2).token_ids == [[2, 3]]
    assert peer._model.num_yielded == 6, "no token is computed that nobody asked for"
    with pytest.raises(ValueError, match="one prompt at a time"):
        peer.generate([[1], [2]], 2)


def test_threads_context_and_prompt_lookup_reach_the_library() -> None:
    options = load(Load("m.gguf", 3, 50, 1, {"prompt_lookup": "5"}))._model.options
    assert (options["model_path"], options["n_threads"], options["n_threads_batch"]) == ("m.gguf", 3, 3)
    assert options["n_ctx"] == 50
    assert options["draft_model"].num_pred_tokens == 5
    assert load(Load("m.gguf", 3, 50, 1, {}))._model.options["draft_model"] is None
