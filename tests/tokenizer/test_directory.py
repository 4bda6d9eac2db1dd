"""Tokenizers from Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from specdec.tokenizer import Tokenizer
from tests.tokenizer import helpers


def save(directory: Path, **files: Any) -> Path:
    """A directory with the trained byte-level tokenizer and `files` (name without .json -> content)."""
    helpers.byte_level_backend().save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_same_ids_as_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    tokenizer, backend = Tokenizer.from_directory(save(tmp_path)), helpers.byte_level_backend()
    for text in [*helpers.SENTENCES, "<|user|>x<|end|>"]:
        assert tokenizer.encode(text) == backend.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == backend.decode(backend.encode(text).ids)
    assert tokenizer.special_token_ids == {0, 1}
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id, tokenizer.chat_template) == ((), None, None)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {
            "tokenizer_config": {
                "eos_token": "<|user|>",
                "bos_token": "<|end|>",
                "pad_token": "x",
                "chat_template": "é{{1}}",
            },
            "generation_config": {"eos_token_id": [0, 1]},
        },
    ],
)
def test_what_is_saved_is_the_same_tokenizer(tmp_path: Path, files: dict[str, Any]) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Tokenizer.from_directory(save(tmp_path / "first", **files))
    first.save(tmp_path / "second")
    second = Tokenizer.from_directory(tmp_path / "second")
    for text in [*helpers.SENTENCES, "<|user|>x<|end|>"]:
        assert first.encode(text) == second.encode(text)
    for name in ("eos_token_ids", "bos_token_id", "chat_template", "special_token_ids", "vocab_size"):
        assert getattr(first, name) == getattr(second, name)
    assert first._named_special_tokens() == second._named_special_tokens()


def test_the_tokenizers_own_eos_comes_first_then_the_generation_configs(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|user|>", "lstrip": False}, "bos_token": "<|end|>"}
    save(tmp_path, tokenizer_config=config, generation_config={"eos_token_id": [0, 1]}, config={"eos_token_id": 9})
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id) == ((1, 0), 0)


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"special_tokens_map": {"eos_token": "<|end|>"}}, (0,)),
        ({"special_tokens_map": {"eos_token": "<|end|>"}, "tokenizer_config": {"eos_token": "<|user|>"}}, (1,)),
        ({"generation_config": {"eos_token_id": 1}}, (1,)),
        ({"config": {"eos_token_id": 1}}, (1,)),
        ({"tokenizer_config": {"eos_token": "absent"}}, ()),
    ],
)
def test_where_eos_is_looked_for(tmp_path: Path, files: dict[str, Any], eos: tuple[int, ...]) -> None:
    assert Tokenizer.from_directory(save(tmp_path, **files)).eos_token_ids == eos


def test_bos_is_added_as_the_post_processor_says(tmp_path: Path) -> None:
    backend = helpers.byte_level_backend()
    plain = backend.encode("ab").ids
    backend.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(str(tmp_path))
    assert tokenizer.encode("ab") == [1, *plain]
    assert tokenizer.encode("ab", add_special_tokens=False) == plain


def test_saved_truncation_and_padding_do_not_touch_prompts(tmp_path: Path) -> None:
    backend = helpers.byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "zzzzz"
    assert Tokenizer.from_directory(tmp_path).encode(text) == helpers.byte_level_backend().encode(text).ids
    assert len(backend.encode(text).ids) == 8


def test_where_the_chat_template_is_looked_for(tmp_path: Path) -> None:
    save(tmp_path, chat_template={"chat_template": "json"})
    assert Tokenizer.from_directory(tmp_path).chat_template == "json"
    save(tmp_path, tokenizer_config={"chat_template": "config"})
    assert Tokenizer.from_directory(tmp_path).chat_template == "config"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    save(tmp_path, tokenizer_config={"chat_template": several})
    assert Tokenizer.from_directory(tmp_path).chat_template == "plain"
    (tmp_path / "chat_template.jinja").write_text("jinja é", encoding="utf-8")
    assert Tokenizer.from_directory(tmp_path).chat_template == "jinja é"


def test_without_tokenizer_json_transformers_converts(tmp_path: Path) -> None:
    state = json.loads(helpers.byte_level_backend().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(state["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, state["merges"])))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>", "unk_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(tmp_path)
    text = helpers.SENTENCES[1]
    assert tokenizer.encode(text) == helpers.byte_level_backend().encode(text).ids
    assert tokenizer.eos_token_ids == (0,)


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no tokenizer in {tmp_path}: expected tokenizer.json") as refused:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", "{", "cannot read the tokenizer in"),
        ("tokenizer.json", '{"model": {"type": "Nope"}}', "cannot read the tokenizer in"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON"),
        ("generation_config.json", "[]", "generation_config.json must hold a JSON object"),
        ("generation_config.json", '{"eos_token_id": "x"}', "generation_config.json: eos_token_id must be a token id"),
        ("config.json", '{"eos_token_id": [1, true]}', "config.json: eos_token_id must be a token id or a list"),
        ("config.json", "[" * 100_000, "config.json is not valid JSON: nested too deeply"),
        ("config.json", '{"a": ' + "9" * 5000 + "}", "config.json is not valid JSON: Exceeds the limit"),
        ("tokenizer_config.json", '{"chat_template": 5}', "tokenizer_config.json: chat_template must be text"),
        ("tokenizer_config.json", '{"chat_template": [5]}', "tokenizer_config.json: chat_template must be text"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}', "chat_template must be text"),
        ("chat_template.json", '{"chat_template": {"a": 1}}', "chat_template.json: chat_template must be text"),
        ("tokenizer_config.json", '{"eos_token": 5}', "tokenizer_config.json: eos_token must be the text of a token"),
        ("tokenizer_config.json", '{"eos_token": "\\ud800"}', "eos_token must be the text of a token"),
        ("special_tokens_map.json", '{"bos_token": {"content": []}}', "special_tokens_map.json: bos_token must be"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str, says: str) -> None:
    save(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=says) as refused:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_template_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    file = save(tmp_path) / "chat_template.jinja"
    file.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=f"{file} is not valid UTF-8: invalid start byte at byte 3"):
        Tokenizer.from_directory(tmp_path)


def test_added_tokens_are_told_from_those_of_text(tmp_path: Path) -> None:
    backend = helpers.byte_level_backend()
    text, whole = backend.get_vocab_size(with_added_tokens=False), backend.get_vocab_size()
    backend.add_tokens(["<image>", "<sound>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert (tokenizer.text_vocab_size, tokenizer.vocab_size) == (text, whole + 2)


def test_an_unreadable_conversion_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match=f"cannot read the tokenizer in {tmp_path}") as refused:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["added_tokens_decoder", "added_tokens"])
def test_tokens_that_stand_beside_tokenizer_json_are_added(tmp_path: Path, place: str) -> None:
    size = helpers.byte_level_backend().get_vocab_size()
    names = ["<|im_start|>", "<|im_end|>"]
    config: dict[str, Any] = {"eos_token": "<|im_end|>"}
    files: dict[str, Any] = {"tokenizer_config": config}
    if place == "added_tokens":
        files["added_tokens"] = {name: size + i for i, name in enumerate(names)}
    else:
        config[place] = {str(size + i): {"content": name, "special": True} for i, name in enumerate(names)}
        config[place]["0"] = {"content": "<|end|>", "special": True}
    tokenizer = Tokenizer.from_directory(save(tmp_path, **files))
    assert tokenizer.encode("<|im_start|>")[-1:] == [size]
    assert tokenizer.encode("<|im_end|>") == [size + 1]
    assert tokenizer.eos_token_ids == (size + 1,)
    assert tokenizer.decode([size + 1]) == ""


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {"99999": {"content": "<new>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"0": {"content": "<new>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "<new>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"0": "<new>"}}},
        {"added_tokens": {"<new>": "x"}},
        {"added_tokens": {"<new>": [1], "<other>": 5}},
    ],
)
def test_added_tokens_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="added token") as error:
        Tokenizer.from_directory(save(tmp_path, **files))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_template_may_name_every_special_token(tmp_path: Path) -> None:
    config = {
        "chat_template": "{{ pad_token }}|{{ unk_token }}|{{ eos_token }}",
        "pad_token": "a",
        "eos_token": "<|end|>",
    }
    tokenizer = Tokenizer.from_directory(
        save(tmp_path, tokenizer_config=config, special_tokens_map={"unk_token": {"content": "b"}})
    )
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": ""}]), False) == "a|b|<|end|>"


def test_a_bare_sentencepiece_model_says_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.tokenizer.directory.find_spec", lambda package: None)
    (tmp_path / "tokenizer.model").write_bytes(b"junk")
    with pytest.raises(ValueError, match="takes the packages sentencepiece and protobuf"):
        Tokenizer.from_directory(tmp_path)
