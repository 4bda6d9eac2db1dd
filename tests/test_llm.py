"""`LLM`: lists in, outputs in order; vLLM's habits carry over."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import LLM, SamplingParams, SpeculationParams

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama over bytes, as a Hugging Face directory."""
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=0,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(
        str(folder),
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        kv_cache_tokens=1024,
        dtype="float64",
    )


def test_every_kind_of_prompt_in_order(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    ids = llm.engine.tokenizer.encode("hello")
    outputs = llm.generate(["hello", {"prompt": "hello"}, {"prompt_token_ids": ids}, ids], params)
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) == 1
    assert [o.prompt for o in outputs] == ["hello", "hello", None, None]
    assert llm.generate("hello", params)[0].outputs[0].token_ids == outputs[0].outputs[0].token_ids
    assert llm.generate(ids, params)[0].prompt_token_ids == ids


def test_parameters_one_for_all_or_one_each(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    outputs = llm.generate(["a", "b"], each, speculation=[SpeculationParams("none"), SpeculationParams()])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [2, 5]
    assert [o.proposer for o in outputs] == ["none", "ngram"]
    with pytest.raises(ValueError, match="sampling_params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], each[:1])


def test_a_bad_prompt_stops_the_call_before_it_starts_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm.generate(["fine", ""])
    assert not llm.engine.has_unfinished_requests()
    assert llm.generate("fine", SamplingParams(max_tokens=1))[0].finished


@pytest.mark.parametrize("prompts", [5, None, b"ab", torch.tensor([1, 2])])
def test_prompts_of_the_wrong_kind(llm: LLM, prompts: object) -> None:
    with pytest.raises(ValueError, match="prompts must be text, token ids, a mapping or a list of these; got"):
        llm.generate(prompts)


def test_requests_of_others_are_not_swallowed(llm: LLM) -> None:
    llm.engine.add_request("own", "a", SamplingParams(max_tokens=1))
    with pytest.raises(ValueError, match="unfinished requests of its own"):
        llm.generate("a")
    assert llm.engine.abort("own").finished
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].finished


def test_chat_goes_through_the_template(llm: LLM) -> None:
    turns = [{"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0, max_tokens=3)
    (one,) = llm.chat(turns, params)
    assert one.prompt_token_ids == llm.engine.tokenizer.encode("[user]hi>")
    assert len(llm.chat([turns, turns], params)) == 2
    with pytest.raises(ValueError, match="messages must be a list of messages; got int"):
        llm.chat(5, params)
    with pytest.raises(ValueError, match="messages"):
        llm.chat([5], params)
    with pytest.raises(ValueError, match="messages is empty"):
        llm.chat([], params)
    with pytest.raises(ValueError, match="messages"):
        llm.chat([{"role": "user"}], params)


def test_defaults_are_vllms(llm: LLM) -> None:
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 16


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_does_not_change_a_real_decoder(folder: Path, dtype: str, temperature: float) -> None:
    """Greedy and coupled, on a model with attention, over a pool that forces preemption."""
    prompts = ["abcabcabcabc", "the cat the cat the", "zzzzzzz", "once upon"]
    params = SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True, seed=5)

    def generate(**options) -> tuple[list[list[int]], int]:
        made = LLM(str(folder), dtype=dtype, verifier="coupled", **options)
        outputs = [o.outputs[0].token_ids for o in made.generate(prompts, params)]
        return outputs, made.engine.scheduler.num_preemptions

    plain, _ = generate(kv_cache_tokens=1024)
    for k in (1, 4, 8):
        ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": 1}
        drafted, preemptions = generate(
            kv_cache_tokens=96, block_size=8, max_num_seqs=4, max_num_batched_tokens=32, speculative_config=ngram
        )
        assert drafted == plain
        assert preemptions > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"speculative_config": {"method": "ngarm"}}, "unknown proposer 'ngarm'; did you mean 'ngram'?"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_mx": 3}}, "did you mean 'prompt_lookup_max'?"),
        ({"speculative_config": [{"method": "ngram"}] * 2}, "names the proposer 'ngram' twice"),
        ({"max_model_len": 500}, "500"),
    ],
)
def test_bad_options_are_one_line(folder: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        LLM(**{"model": str(folder), **options})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def idle(folder: Path) -> LLM:
    """A model whose n-grams are too long to be found again."""
    settings = {"method": "ngram", "prompt_lookup_min": 16, "prompt_lookup_max": 16}
    return LLM(str(folder), speculative_config=settings, kv_cache_tokens=1024)


@pytest.mark.parametrize("turns", [False, True])
def test_a_proposer_that_does_not_help_is_warned_of_once_where_it_is_called(folder: Path, turns: bool) -> None:
    llm = idle(folder)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    def call() -> None:
        if turns:
            llm.chat([{"role": "user", "content": "hi"}], params)
        else:
            llm.generate("abc", params)

    call()  # too few tokens to judge by
    with pytest.warns(UserWarning, match="proposer ngram drafted nothing in 80 generated tokens") as told:
        call()
    assert [warning.filename for warning in told] == [__file__]
    call()


def test_a_proposer_that_nobody_asks_for_is_not_judged(folder: Path) -> None:
    llm = idle(folder)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    llm.generate(["abc", "abcd"], params, speculation=SpeculationParams("none"))
