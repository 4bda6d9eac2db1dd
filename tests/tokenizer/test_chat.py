"""Chat templates: the same prompts as transformers writes, and one line for what cannot be written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from specdec.tokenizer import Tokenizer
from specdec.tokenizer.chat import compile_template, render_chat
from tests.tokenizer import helpers

CHATML_WITH_DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\nToday: " + date_string + "\\n" + system + eos_token }}
{%- for message in messages %}
    {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if tools is none and add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}"""
ALTERNATING = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}
{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant') }}
    {% endif %}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
<turn>{{ role }} {{ message['content'] | trim }}</turn>
{% endfor %}
{% if add_generation_prompt %}<turn>model {% endif %}
"""
TRAINING = """{%- for message in messages -%}
  {%- if message.role == "assistant" %}{% generation %}{% set x = 1 %}{{ message.content }}{% endgeneration %}
  {%- elif message.role == "stop" %}{% break %}
  {%- else %}[{{ message.content }}]{% continue %}
  {%- endif %}{{ x is defined }}
{%- endfor -%}"""
JSON = """{{ messages | tojson }} {{ messages[0] | tojson(indent=2, sort_keys=True) }}
{{- {'é': '<a&b>'} | tojson(ensure_ascii=True, separators=(',', ':')) }} {{ unk_token }}{{ bos_token is defined }}"""
NAMESPACE = """{% set ns = namespace(found=0) %}{% for m in messages %}
{% if 'x' in m.content %}{% set ns.found = ns.found + 1 %}{% endif %}
{% endfor %}{{ ns.found }} {{ messages[-1].content.split('x')[0].strip() }} {{ documents is none }}"""

TEMPLATES = {
    "chatml": CHATML_WITH_DEFAULT_SYSTEM,
    "headers": HEADERS,
    "alternating": ALTERNATING,
    "training": TRAINING,
    "json": JSON,
    "namespace": NAMESPACE,
}
CHATS = {
    "one turn": [{"role": "user", "content": "Hi  "}],
    "three turns": [
        {"role": "user", "content": " <b>x & 'y'\n\n"},
        {"role": "assistant", "content": "  é 🙂 \n"},
        {"role": "user", "content": "axb"},
    ],
    "system first": [{"role": "system", "content": " Sys\n"}, {"role": "user", "content": "Hi"}],
    "assistant first": [{"role": "assistant", "content": "Hello"}],
    "extra keys": [{"role": "user", "content": "Hi", "name": "Ann", "n": [1, 2.5, None, True]}],
    "stopped": [{"role": "stop", "content": "a"}, {"role": "user", "content": "b"}],
}
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}


def transformers_text(template: str, messages: list[dict[str, Any]], add: bool, special: dict[str, str]) -> str:
    """What transformers writes, or the message with which its rendering fails."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        (text,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=add, **special)
    except Exception as error:
        return f"the chat template rejected the messages: {error}"
    return str(text)


def our_text(template: str, messages: list[dict[str, Any]], add: bool, special: dict[str, str]) -> str:
    compiled = compile_template(template)
    try:
        return render_chat(compiled, messages, add_generation_prompt=add, special_tokens=special)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("special", [SPECIAL, {"eos_token": "</s>"}], ids=["bos", "no bos"])
@pytest.mark.parametrize("add", [True, False], ids=["prompt", "no prompt"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_text_equals_transformers(template: str, chat: str, add: bool, special: dict[str, str]) -> None:
    case = TEMPLATES[template], CHATS[chat], add, special
    assert our_text(*case) == transformers_text(*case)


@pytest.mark.parametrize(
    ("chat", "says"), [("system first", "System role not supported"), ("assistant first", "Roles must alternate")]
)
def test_a_template_may_reject_a_conversation(chat: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"the chat template rejected the messages: {says}"):
        render_chat(compile_template(ALTERNATING), CHATS[chat], add_generation_prompt=True, special_tokens=SPECIAL)


def chat_tokenizer(template: str | None) -> Tokenizer:
    backend = helpers.byte_level_backend()
    return Tokenizer(backend, eos_token_ids=(0,), bos_token_id=1, chat_template=template)


def test_ids_hold_the_templates_special_tokens_once() -> None:
    tokenizer = chat_tokenizer("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}])
    assert ids == [1, *tokenizer.encode("ab"), 0]


def test_the_generation_prompt_is_optional() -> None:
    tokenizer = chat_tokenizer(CHATML_WITH_DEFAULT_SYSTEM)
    messages = [{"role": "user", "content": "Hi"}]
    with_prompt, without = (tokenizer.apply_chat_template(messages, add) for add in (True, False))
    assert tokenizer.decode(with_prompt).removeprefix(tokenizer.decode(without)) == "<|im_start|>assistant\n"


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "user", "content": "Hi", "list": [1]}]
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.apply_chat_template(messages)
    assert messages == [{"role": "user", "content": "Hi", "list": [1]}]


def test_the_date_is_todays() -> None:
    before = datetime.now()
    text = render_chat(
        compile_template("{{ strftime_now('%Y-%m-%d') }}"),
        [{"role": "user", "content": ""}],
        add_generation_prompt=True,
        special_tokens={},
    )
    assert text in {f"{day:%Y-%m-%d}" for day in (before, datetime.now())}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "non-empty list"),
        ("Hi", "non-empty list"),
        (None, "non-empty list"),
        ([{"role": "user", "content": "a"}, "b"], r"messages\[1\] must be a mapping"),
        ([{"content": "a"}], r"messages\[0\] has no 'role'"),
        ([{"role": "user"}], r"messages\[0\] has no 'content'"),
        ([{"role": 1, "content": "a"}], r"messages\[0\]\['role'\] must be a string; got 1"),
        ([{"role": "user", "content": None}], r"messages\[0\]\['content'\] must be a string; got None"),
        ([{"role": "user", "content": "a", "x": object()}], "JSON values only"),
        ([{"role": "user", "content": "a\ud83d"}], "half a surrogate pair"),
        ([{"role": "user", "content": "a", "x": nested(100_000)}], "JSON values only"),
    ],
)
def test_malformed_messages_are_refused_by_position(messages: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        chat_tokenizer(CHATML_WITH_DEFAULT_SYSTEM).apply_chat_template(messages)
    assert "\n" not in str(refused.value)


SELF_CALLING = "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (SELF_CALLING, "rejected the messages: maximum recursion"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "the chat template is not valid: maximum recursion"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "the chat template is not valid: too many"),
        (None, "the model has no chat template"),
        ("a\n{% if %}", "the chat template is not valid, line 2"),
        ("{{ raise_exception('not\nthis') }}", "rejected the messages: not this"),
        ("{{ messages[9].content + 'x' }}", "rejected the messages"),
        ("{{ 1 // 0 }}", "rejected the messages"),
        ("{{ 'x' + 1 }}", "rejected the messages"),
        ("{{ messages.append(1) }}", "rejected the messages"),
        ("{{ ''.__class__.__mro__ }}", "rejected the messages"),
    ],
)
def test_templates_that_fail_say_so_in_one_line(template: str | None, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        chat_tokenizer(template).apply_chat_template([{"role": "user", "content": "Hi"}])
    assert "\n" not in str(refused.value)
