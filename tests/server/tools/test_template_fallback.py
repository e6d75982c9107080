"""Conversations with tools for chat templates without tool support."""

import json
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import ToolCallIds
from holdfast.server.tools.formats import HERMES
from holdfast.server.tools.template_fallback import describe_tools, supports_system
from holdfast.server.tools.tool_config import parse_tools
from holdfast.text.chat_template import ChatTemplate, supports_tools
from support.tool_parsing import parse_text

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}{{ '<<SYS>>' + messages[0]['content'] + '<</SYS>>' }}"
    "{% set messages = messages[1:] %}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('users and assistants alternate') }}"
    "{% endif %}{{ '[' + message['role'] + ']' + message['content'] }}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + ALTERNATING[ALTERNATING.index("{% for") :]
)
TWO_ROLES = (
    "{% for message in messages %}{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('Unknown role') }}{% endif %}{{ '[' + message['role'] + ']' + message['content'] }}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "alternating": ALTERNATING, "no system": NO_SYSTEM, "two roles": TWO_ROLES}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather in a città.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
CONFIG = parse_tools([WEATHER, {"type": "function", "function": {"name": "now"}}])
QUESTION = {"role": "user", "content": "Rome and Oslo?"}


def call(id_: str, city: str) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": "weather", "arguments": f'{{"city":  "{city}"}}'},
    }


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    QUESTION,
    # as OpenAI's client sends a message back
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [call("call_1", "Rome"), call("call_2", "Oslo")],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "28 °C"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": '{"celsius": 3}'}]},
    {"role": "assistant", "content": "28 and 3."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [call("call_3", "Rome")]},
    {"role": "tool", "tool_call_id": "call_3", "content": "29 °C"},
    {"role": "user", "content": "Quick!"},
]
INLINED = [
    ("user", "Rome and Oslo?"),
    (
        "assistant",
        '<tool_call>\n{"name": "weather", "arguments": {"city":  "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city":  "Oslo"}}\n</tool_call>',
    ),
    ("user", '<tool_response>\n28 °C\n</tool_response>\n<tool_response>\n{"celsius": 3}\n</tool_response>'),
    ("assistant", "28 and 3."),
    ("user", "And now?"),
    ("assistant", 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city":  "Rome"}}\n</tool_call>'),
    ("user", "<tool_response>\n29 °C\n</tool_response>\nQuick!"),
]


def pairs(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_calls_and_results_become_contents() -> None:
    inlined = describe_tools(CONVERSATION, CONFIG.visible, CHATML)
    assert pairs(inlined)[1:] == INLINED
    assert not any("tool_calls" in message or "tool_call_id" in message for message in inlined)
    assert pairs(describe_tools(CONVERSATION, (), CHATML)) == [
        ("system", "Be brief."),
        *INLINED,
    ]


def test_tools_are_described_in_the_system_message() -> None:
    (system, question) = describe_tools([QUESTION], CONFIG.visible, CHATML)
    assert (system["role"], question) == ("system", QUESTION)
    for tool in CONFIG.tools:
        assert json.dumps(tool.template_dict()["function"], ensure_ascii=False) in system["content"]
    assert "strict" not in system["content"]
    (extended, _) = describe_tools(
        [{"role": "system", "content": "Be brief."}, QUESTION], CONFIG.visible, CHATML
    )
    assert extended["content"] == f"Be brief.\n\n{system['content']}"


@pytest.mark.parametrize("template", [NO_SYSTEM, TWO_ROLES])
def test_without_system_role_tools_are_in_the_user_message(template: str) -> None:
    (question,) = describe_tools([QUESTION], CONFIG.visible, template)
    assert question["role"] == "user"
    assert question["content"].startswith("You can call functions")
    assert question["content"].endswith("\n\nRome and Oslo?")
    (first, _) = describe_tools([{"role": "assistant", "content": "Hello"}], CONFIG.visible, template)
    assert first["role"] == "user"


@pytest.mark.parametrize("name", TEMPLATES)
def test_any_template_renders_the_conversation(name: str) -> None:
    source = TEMPLATES[name]
    conversation = CONVERSATION if supports_system(source) else CONVERSATION[1:]
    template = ChatTemplate(source)
    try:
        text = template.render(describe_tools(conversation, CONFIG.visible, source))
    finally:
        template.close()
    for shown in ("28 °C", '{"celsius": 3}', '"arguments": {"city":  "Oslo"}', "città", "<tools>", "Quick!"):
        assert shown in text


def test_example_in_the_description_is_not_parsed_as_a_call() -> None:
    """The described syntax is what the parser reads; the example itself is not a call."""
    inlined = describe_tools(CONVERSATION, CONFIG.visible, CHATML)
    parser = AutoToolParser(HERMES, ["weather"], ToolCallIds(b""))
    assert [one.arguments for one in parse_text(parser, inlined[2]["content"]).calls] == [
        '{"city":  "Rome"}',
        '{"city":  "Oslo"}',
    ]
    parser = AutoToolParser(HERMES, ["weather", "now"], ToolCallIds(b""))
    assert not parse_text(parser, inlined[0]["content"]).calls
    parser = AutoToolParser(HERMES, ["the function's name"], ToolCallIds(b""))
    assert len(parse_text(parser, inlined[0]["content"]).calls) == 1


@pytest.mark.parametrize(
    ("calls", "expected_message"),
    [
        (
            [{"id": "1", "type": "custom", "custom": {"name": "f"}}],
            r"messages\[1\].tool_calls must have a function",
        ),
        (
            [{"function": {"name": "f", "arguments": 1}}],
            r"arguments of a call in messages\[1\] must be JSON text",
        ),
        ("f", r"messages\[1\].tool_calls must be a list of objects"),
    ],
)
def test_malformed_calls_are_refused(calls: Any, expected_message: str) -> None:
    with pytest.raises(InvalidRequest, match=expected_message):
        describe_tools([QUESTION, {"role": "assistant", "content": None, "tool_calls": calls}], CONFIG)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{%- if tools %}x{% endif %}", True),
        ("{{ 'a' }}{{ \"it's\" }}{% for tool in tools %}{% endfor %}", True),
        (CHATML, False),
        (ALTERNATING, False),
        ("You have tools. {{ messages }}", False),
        ("{# tools #}{{ message.tools }}{{ builtin_tools }}", False),
        ("{% if tools", False),
        ("", False),
        ("{{ '\" }}" * 100_000, False),
    ],
    ids=range(9),
)
def test_supports_tools(template: str, expected: bool) -> None:
    assert supports_tools(template) == expected
