"""Chat templates: renderings against transformers, hostile templates, and malformed messages."""

import datetime
import threading
import time
from typing import Any

import pytest

from holdfast.errors import InvalidRequest, TemplateError
from holdfast.models.locate import locate
from holdfast.sandbox.template_sandbox import TemplateLimits
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import open_tokenizer
from support.chat_models import GPT_OSS, QWEN3

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2? <b>&"},
    {"role": "assistant", "content": "4\n"},
    {"role": "user", "content": " And 你 😀? "},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "<int> é"}}}]
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": "é"}'}}
CHATML = """{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
QWEN2 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" %}{%- set ns.last = loop.index0 %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}{{- call.function.arguments | tojson }}{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ns.last }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- endif %}
"""
STYLES = {"chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "qwen2": QWEN2}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render_reference(source: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    texts, _ = utils.render_jinja_template([messages], chat_template=source, **SPECIAL, **variables)
    return str(texts[0])


@pytest.mark.parametrize("talk", [HELLO, TALK], ids=["hello", "talk"])
@pytest.mark.parametrize("style", STYLES)
def test_rendering_matches_transformers(style: str, talk: list[dict[str, Any]]) -> None:
    template = ChatTemplate(STYLES[style], SPECIAL)
    for variables in ({}, {"enable_thinking": False}):
        for tools in (None, TOOLS):
            for prompt in (True, False):
                ours = template.render(
                    talk,
                    tools=tools,
                    add_generation_prompt=prompt,
                    variables={"date_string": "1 Jan 2025", **variables},
                )
                theirs = render_reference(
                    STYLES[style],
                    talk,
                    tools=tools,
                    add_generation_prompt=prompt,
                    date_string="1 Jan 2025",
                    **variables,
                )
                assert ours == theirs


@pytest.mark.smollm2
def test_smollm2_template() -> None:
    tokenizer = open_tokenizer(locate(None).path)
    template = ChatTemplate.of(tokenizer)
    text = template.render(HELLO)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.chat_template is not None
    assert template.render(TALK) == render_reference(
        tokenizer.chat_template, TALK, add_generation_prompt=True
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)


def test_template_date_is_fixed() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y %H:%M') }}")
    assert template.render(HELLO) == "26 Jul 2024 00:00"
    assert template.render(HELLO, date=datetime.date(2031, 2, 3)) == "03 Feb 2031 00:00"
    assert "26 Jul 2024" in ChatTemplate(LLAMA3, SPECIAL).render(HELLO)


def test_tool_template_is_used_for_tools() -> None:
    template = ChatTemplate("plain", tool_source="tools")
    assert (template.render(HELLO), template.render(HELLO, tools=TOOLS)) == ("plain", "tools")


def test_content_parts_arguments_and_reasoning_are_normalised() -> None:
    calls = "{{ (m.tool_calls or []) | tojson }}"
    source = "{% for m in messages %}[{{ m.content }}|{{ m.reasoning_content }}|" + calls + "]{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"function": {"name": "f", "arguments": '{"x": [1]}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": [call]},
    ]
    text = ChatTemplate(source).render(messages)
    assert text == '[a\nb||[]][None|hm|[{"function": {"name": "f", "arguments": {"x": [1]}}}]]'


def test_unusual_messages_and_variables_are_rendered() -> None:
    template = ChatTemplate("{{ messages[0].content }}|{{ (messages[0].tool_calls or []) | length }}")
    same_id = {"id": "same", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    deep = {"function": {"name": "f", "arguments": "[" * 100_000}}  # not JSON, so it stays text
    for message, text in (
        ({"role": "user", "content": []}, "|0"),
        ({"role": "user", "content": "a", "tool_calls": [same_id, same_id]}, "a|2"),
        ({"role": "user", "content": "a", "tool_calls": [deep]}, "a|1"),
    ):
        assert template.render([message]) == text
    assert template.render(HELLO, variables={"tokenize": True, "chat_template": "{{ 7 }}"}) == "Hello|0"


def test_qwen3_drops_old_thinking_and_keeps_the_last() -> None:
    thinking = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "5", "tool_call_id": "a"}
    kept = ChatTemplate(QWEN3).render([*HELLO, thinking, result], tools=TOOLS)
    assert '<think>\nHm.\n</think>\n\n<tool_call>{"name": "add", "arguments": {"a": "é"}}</tool_call>' in kept
    assert "Hm." not in ChatTemplate(QWEN3).render([*HELLO, thinking, result, *HELLO], tools=TOOLS)
    off = ChatTemplate(QWEN3).render(HELLO, variables={"enable_thinking": False})
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")


def test_gpt_oss_writes_calls_with_their_thinking() -> None:
    message = {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [CALL]}
    text = ChatTemplate(GPT_OSS).render(
        [*HELLO, message], tools=TOOLS, variables={"reasoning_effort": "high"}
    )
    assert "Today: 2024-07-26 Reasoning: high<|end|>" in text
    assert "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.add<|channel|>" in text
    assert text.endswith('json<|message|>{"a": "é"}<|call|><|start|>assistant')


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

HOSTILE = {
    "nested ranges": ENDLESS,
    "multiplication": "{{ 'a' * 10**10 }}",
    "power": "{{ 7 ** 99999999 }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "format width": "{{ '%09999999999d' % 1 }}",
    "format method": "{{ '{:>9999999999}'.format(1) }}",
    "indent": "{{ ('a\\n' * 10**6) | indent(10**6) }}",
    "output": "{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nesting": "{{ " + "(" * 9999 + " }}",
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format attributes": "{{ '{0.__class__}'.format(messages) + 1 }}",
    "globals": "{{ raise_exception.__globals__.os }}",
    "mutation": "{{ messages.append(1) }}",
    "underscore": "{% set n = namespace(__init__=1) %}",
    "files": "{% include '/etc/passwd' %}",
    "random": "{{ [1, 2] | random }}",
    "surrogate": "{{ '\\ud800' }}",
    "syntax": "{% if %}",
    "size": "a" * (2 << 20),
    "undefined": "{{ nothing.at.all }}",
    "its own refusal": "{{ raise_exception('no') }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_fails_promptly(name: str) -> None:
    template = ChatTemplate(HOSTILE[name], limits=TemplateLimits(cpu_seconds=0.2, memory_bytes=256 << 20))
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            template.render(HELLO)
        except TemplateError as error:
            failures.append(error)

    begin = time.monotonic()
    thread = threading.Thread(target=attempt)  # limits must not depend on signals of the main thread
    thread.start()
    thread.join()
    template.close()
    assert len(failures) == 1
    assert time.monotonic() - begin < 6
    assert len(str(failures[0])) < 1000


def test_sandbox_recovers_after_a_killed_worker() -> None:
    source = "{% if messages[0].content == 'x' %}" + ENDLESS + "{% endif %}fine"
    template = ChatTemplate(source, limits=TemplateLimits(cpu_seconds=0.2))
    assert template.render(HELLO) == "fine"
    with pytest.raises(TemplateError, match=r"computed for more than 0\.2 seconds"):
        template.render([{"role": "user", "content": "x"}])
    assert template.render(HELLO) == "fine"


def test_long_messages_are_rendered() -> None:
    text = "long ☃ " * 800_000
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": text}]) == text


def test_missing_template_error_says_what_to_do() -> None:
    with pytest.raises(TemplateError, match=r"no chat template.*chat_template\.jinja"):
        ChatTemplate(None).render(HELLO)


def test_template_digest_covers_source_and_special_tokens() -> None:
    same = [ChatTemplate("a", SPECIAL).digest(), ChatTemplate("a", dict(SPECIAL)).digest()]
    others = [ChatTemplate("b", SPECIAL).digest(), ChatTemplate("a").digest(), ChatTemplate(None).digest()]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 4


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "must be a list"),
        ([], "is empty"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"role": "", "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "\ud800", "content": "x"}], "lone surrogate"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role"),
        ([*HELLO, {"role": "user"}], r"messages\[1\]\.content.*not nothing"),
        ([{"role": "user", "content": 7}], r"content.*not int"),
        ([{"role": "user", "content": [None]}], "may only contain"),
        ([{"role": "user", "content": [{"type": "text"}]}], "may only contain"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}], "lone surrogate"),
        # Requests made and files read for the client (CVE-2025-6242, CVE-2026-5497, CVE-2026-44222).
        *(
            ([{"role": "user", "content": [part]}], "may only contain")
            for part in (
                {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data/"}},
                {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
                {"type": "input_audio", "input_audio": {"data": "a", "format": "wav"}},
                {"type": "file", "file": {"file_id": "../../etc/passwd"}},
            )
        ),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
        ([{"role": "user", "content": "x", "more": object()}], "JSON"),
        ([{"role": "user", "content": "x", 3: "x"}], "must be an object"),
        ([{"role": "assistant", "content": None, "tool_calls": "x"}], "tool_calls"),
        ([{"role": "assistant", "content": "x", "tool_calls": [None]}], "tool_calls"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ChatTemplate("x").render(messages)


def test_invalid_variables_and_tools_are_refused() -> None:
    template = ChatTemplate("x")
    for name in ("messages", "tools", "documents", "add_generation_prompt", "strftime_now"):
        with pytest.raises(InvalidRequest, match=f"'{name}'"):
            template.render(HELLO, variables={name: True})
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        template.render(HELLO, variables={"\ud800": "\ud800"})
    with pytest.raises(InvalidRequest, match="JSON"):
        template.render(HELLO, variables={"x": {1, 2}})
    with pytest.raises(InvalidRequest, match="tools"):
        template.render(HELLO, tools="x")  # type: ignore[arg-type]


# Continuing the last message


@pytest.mark.parametrize("source", [CHATML, LLAMA2, "{{ messages[-1].content | upper }}"])
@pytest.mark.parametrize("start", ["The answer is", "The answer is ", "\ue000 x \ue000\ue000"])
def test_continue_final_message_ends_with_its_content(source: str, start: str) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    talk = [*HELLO, {"role": "assistant", "content": start}]
    text = template.render(talk, add_generation_prompt=False, continue_final_message=True)
    assert text.lower().endswith(start.lower())
    whole = template.render(talk, add_generation_prompt=False)
    assert whole.startswith(text.rstrip()) and talk[-1]["content"] == start
    template.close()


@pytest.mark.parametrize(
    ("source", "messages", "also", "error"),
    [
        (CHATML, HELLO, {"add_generation_prompt": True}, "set one of them"),
        (CHATML, [{"role": "assistant", "content": ""}], {}, "needs a last message with text"),
        (
            CHATML,
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
            {},
            "needs a last message with text",
        ),
        ("{{ messages[0].content }}", TALK, {}, "does not write the last message's content"),
    ],
)
def test_continue_final_message_is_refused_where_it_has_no_meaning(
    source: str, messages: Any, also: dict[str, Any], error: str
) -> None:
    template = ChatTemplate(source)
    with pytest.raises((InvalidRequest, TemplateError), match=error):
        template.render(messages, **{"add_generation_prompt": False, "continue_final_message": True, **also})
    template.close()
