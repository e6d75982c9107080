"""Tokenizers and chat templates of models that think and call tools, written for tests.

They behave as the originals do, which no package carries: Qwen3 (thinking and calls between tags
that are ordinary added tokens), a Qwen3 whose prompt opens the thinking, gpt-oss (harmony: markup is
special tokens), Gemma (no system role).
"""

import json
from functools import cache
from pathlib import Path

from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from support.tiny import train_tokenizer

QWEN3 = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Calls: <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{%- if message.role == 'tool' %}{{ '<tool_response>' + message.content + '</tool_response>' }}
{%- elif message.role == 'assistant' %}
{%- if message.reasoning_content and loop.index0 > last.user %}
{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- (message.content or '').split('</think>')[-1].lstrip('\\n') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{%- else %}{{ message.content }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
QWEN3_OPEN = QWEN3.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}")
GPT_OSS = """
{{- '<|start|>system<|message|>Today: ' + strftime_now('%Y-%m-%d') + ' Reasoning: ' + (reasoning_effort or 'medium') }}
{{- '<|end|>' }}
{%- if tools %}{{ '<|start|>developer<|message|>namespace functions\\n' }}
{%- for tool in tools %}{{ tool.function | tojson }}{% endfor %}{{ '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception('content and thinking beside calls') }}{% endif %}
{%- if message.content or message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (message.thinking or message.content) + '<|end|>' }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

_QWEN_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
# Template, special tokens (the first ends a text), other added tokens, tokens that end an answer.
_MODELS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "qwen3": (QWEN3, ("<|im_end|>", "<|im_start|>"), _QWEN_TAGS, ("<|im_end|>",)),
    "qwen3-open": (QWEN3_OPEN, ("<|im_end|>", "<|im_start|>"), _QWEN_TAGS, ("<|im_end|>",)),
    "qwen3-special": (QWEN3, ("<|im_end|>", "<|im_start|>", *_QWEN_TAGS), (), ("<|im_end|>",)),
    "gpt-oss": (GPT_OSS, ("<|endoftext|>", *_HARMONY), (), ("<|return|>", "<|call|>", "<|endoftext|>")),
    "gemma": (
        GEMMA,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        (),
        ("<eos>", "<end_of_turn>"),
    ),
}


def write_chat_tokenizer(folder: Path, name: str) -> None:
    template, special, _, ends = _MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("tokenizer.json").write_text(_tokenizer_json(name), encoding="utf-8")
    config = {"eos_token": special[0], "bos_token": special[1], "chat_template": template}
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ids = [special.index(one) for one in ends]
    folder.joinpath("generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


@cache
def _tokenizer_json(name: str) -> str:
    from tokenizers import AddedToken

    _, special, markup, _ = _MODELS[name]
    backend = train_tokenizer(special, ("thinking about the answer, <think", "name arguments functions"))
    backend.add_tokens([AddedToken(one, special=False, normalized=False) for one in markup])
    return backend.to_str()


def chat_tokenizer(folder: Path, name: str) -> Tokenizer:
    write_chat_tokenizer(folder, name)
    return open_tokenizer(folder)
