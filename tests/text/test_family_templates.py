"""What templates of other families need: no system role, end-of-turn tokens, dates, JSON, generation
tags, other names of variables. The templates are written for tests and behave as the originals.
"""

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import TemplateError
from holdfast.text.chat_template import ChatTemplate
from support.chat_models import GEMMA, GPT_OSS, QWEN3, chat_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": "é"}'}}
OTHERS = {
    "phi": "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "olmo": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ '<|' + m['role'] + '|>\\n' + m['content'] }}"
    "{% endif %}{% if loop.last and add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}{% endfor %}",
    "granite": "{%- if messages[0].role == 'system' %}{% set text = messages[0].content %}{% set messages = messages[1:] %}"
    "{%- else %}{% set text = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}{% endif %}"
    "{{ '<|start_of_role|>system<|end_of_role|>' + text }}{% if thinking %}{{ ' Think first.' }}{% endif %}"
    "{%- if tools %}{{ tools | tojson(indent=4) }}{% endif %}"
    "{%- for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content }}{% endfor %}",
    "cohere": "{%- for m in messages %}{% if m.role not in ('user', 'assistant', 'system') %}"
    "{{ raise_exception('bad role ' ~ m.role) }}{% endif %}"
    "{{ '<|START_OF_TURN_TOKEN|>' ~ ({'user': '<|USER_TOKEN|>'}[m.role] or '<|CHATBOT_TOKEN|>') ~ m.content }}{% endfor %}",
}


def render(source: str, messages: list[Any], **options: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<bos>", "eos_token": "<eos>"})
    try:
        return template.render(messages, **options)
    finally:
        template.close()


def test_gemma_refuses_a_system_message_clearly() -> None:
    assert render(GEMMA, HELLO) == "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"
    with pytest.raises(TemplateError, match="System role not supported"):
        render(GEMMA, [SYSTEM, *HELLO])


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("phi", {}, "<|user|>\nHello<|end|>\n<|assistant|>\n"),
        ("phi", {"add_generation_prompt": False}, "<|user|>\nHello<|end|>\n<eos>"),
        ("olmo", {}, "<bos><|user|>\nHello\n<|assistant|>\n"),
        ("granite", {"variables": {"thinking": True}}, "Today is July 26, 2024. Think first."),
        ("granite", {"tools": TOOLS}, '[\n    {\n        "type": "function"'),
        ("cohere", {}, "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello"),
    ],
)
def test_templates_of_other_families(name: str, options: dict[str, Any], expected: str) -> None:
    assert expected in render(OTHERS[name], HELLO, **options)


def test_generation_tags_mark_the_answer() -> None:
    talk = [*HELLO, {"role": "assistant", "content": "Hi"}]
    assert render(OTHERS["olmo"], talk, add_generation_prompt=False) == "<bos><|user|>\nHelloHi<eos>"


def test_qwen3_drops_old_thinking_and_keeps_the_last() -> None:
    thinking = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "5", "tool_call_id": "a"}
    kept = render(QWEN3, [*HELLO, thinking, result], tools=TOOLS)
    assert '<think>\nHm.\n</think>\n\n<tool_call>{"name": "add", "arguments": {"a": "é"}}</tool_call>' in kept
    assert "Hm." not in render(QWEN3, [*HELLO, thinking, result, *HELLO], tools=TOOLS)
    off = render(QWEN3, HELLO, variables={"enable_thinking": False})
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")


def test_gpt_oss_writes_calls_with_their_thinking() -> None:
    message = {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [CALL]}
    text = render(GPT_OSS, [*HELLO, message], tools=TOOLS, variables={"reasoning_effort": "high"})
    assert "Today: 2024-07-26 Reasoning: high<|end|>" in text
    assert "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.add<|channel|>" in text
    assert text.endswith('json<|message|>{"a": "é"}<|call|><|start|>assistant')


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("gemma", {"<eos>", "<end_of_turn>"}),
        ("gpt-oss", {"<|return|>", "<|call|>", "<|endoftext|>"}),
        ("qwen3", {"<|im_end|>"}),
    ],
)
def test_answers_end_as_the_generation_config_says(tmp_path: Path, name: str, ends: set[str]) -> None:
    tokenizer = chat_tokenizer(tmp_path, name)
    assert tokenizer.eos_token_ids == {tokenizer.special_id(one) for one in ends}
