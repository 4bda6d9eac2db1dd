"""The default model on real text: the tokens are transformers', and speculation does not change them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specdec import LLM, RequestOutput, SamplingParams, SpeculationParams
from specdec.models.hub import resolve

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_TOKENS = 100
PROMPTS = [
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper and a whale.",
    "List ten fruits, one a line, each with its colour.",
    "Explain to a child how a bicycle stays upright.",
    "Give me a recipe for pancakes with exact amounts.",
    "Summarise: The committee met on Monday. It discussed the budget. It postponed the vote to Friday.",
    "def fibonacci(n: int) -> int:\n    ",
    "Write a Python function that reverses a linked list.",
    "for (int i = 0; i < 10; i++) {\n\tprintf(",
    "SELECT name, age FROM people WHERE",
    "Fix this code:\n```python\ndef add(a, b)\n  retrun a+b\n```",
    "| name | age |\n|------|-----|\n| Ann  | 31  |\n| Bob  |",
    "a,b,c\n1,2,3\n4,5,6\n7,",
    "What is 12 * 34 + 56? Show the steps.",
    "Translate to French: The weather is nice today and we walk along the river.",
    "Erkläre in drei Sätzen, wie ein Regenbogen entsteht.",
    "日本の首都はどこですか。",
    "Почему трава зелёная?",
    "ما هي عاصمة مصر؟",
    "Reply in emoji only: 🎉🚀👩‍👩‍👧‍👦 how was your day? 😀",
    "one two three one two three one two three one two",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
]


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve("smollm2-135m", None)


@pytest.fixture(scope="module", autouse=True)
def _two_threads() -> Iterator[None]:
    """The model is large enough for both cores of a small machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(
        str(path),
        dtype="float32",
        max_num_seqs=64,
        max_num_batched_tokens=512,
        speculative_config={"method": "ngram", "num_speculative_tokens": 8},
    )


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """Half of the prompts through the chat template, half as they are."""
    tokenizer = llm.engine.tokenizer
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}]) if i % 2 == 0 else tokenizer.encode(text)
        for i, text in enumerate(PROMPTS)
    ]


GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return llm.generate(prompts, GREEDY, speculation=SpeculationParams("none"))


@pytest.fixture(scope="module")
def reference(path: Path):
    transformers = pytest.importorskip("transformers")
    with torch.device("cpu"):
        return transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        ).eval()


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(reference, prompts, plain) -> None:
    """Every token is the argmax of transformers' own logits after the same tokens, unless these nearly tie."""
    for prompt, output in zip(prompts, plain, strict=True):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == NUM_TOKENS
        logits = reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        best = logits.topk(2, dim=-1)
        for i, token in enumerate(tokens):
            if token == int(best.indices[i, 0]):
                continue
            margin = float(best.values[i, 0] - best.values[i, 1])
            assert margin < 1e-3, f"token {i} of {output.prompt_token_ids[:8]}... differs at a margin of {margin}"
            break


@torch.inference_mode()
@pytest.mark.parametrize("index", [0, 7, 16])
def test_transformers_generate_says_the_same(reference, prompts, plain, index: int) -> None:
    prompt = torch.tensor([prompts[index]])
    generated = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, min_new_tokens=40, do_sample=False
    )
    assert generated[0, prompt.shape[1] :].tolist() == plain[index].outputs[0].token_ids[:40]


def test_ngram_speculation_changes_nothing_at_any_length(llm: LLM, prompts, plain) -> None:
    """All prompts with every k from 1 to 8, in one batch of mixed rows."""
    expected = {tuple(p): o.outputs[0].token_ids for p, o in zip(prompts, plain, strict=True)}
    jobs = [(prompt, k) for k in range(1, 9) for prompt in prompts]
    settings = [SpeculationParams("ngram", k) for _, k in jobs]
    outputs = llm.generate([prompt for prompt, _ in jobs], GREEDY, speculation=settings)
    for (prompt, k), output in zip(jobs, outputs, strict=True):
        assert output.outputs[0].token_ids == expected[tuple(prompt)], f"k = {k}"
    assert sum(output.outputs[0].speculation.num_accepted_tokens for output in outputs) > 1000


def test_coupled_sampling_is_the_same_with_speculation(path: Path, prompts) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=17)
    engine = LLM(
        str(path), dtype="float32", verifier="coupled", kv_cache_tokens=8192, speculative_config={"method": "ngram"}
    )
    drafted = engine.generate(prompts[:6], params)
    alone = [engine.generate([p], params, speculation=SpeculationParams("none"))[0] for p in prompts[:6]]
    assert [o.outputs[0].token_ids for o in drafted] == [o.outputs[0].token_ids for o in alone]
