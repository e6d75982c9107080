"""A digest of a chat template's renderings of fixed messages: of what the template library does here.

Two versions of the library that render the same text give the same digest.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from holdfast.errors import InvalidRequest, TemplateError
from holdfast.sandbox.template_sandbox import TemplateLimits
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer

_WALL_SECONDS = 60.0  # a busy machine may not change the digest
_TOOL = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "The tide <at> a \u201cplace\u201d & time.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "tide", "arguments": '{"place": "Br\u00e9hat"}'},
}
_TURNS: list[dict[str, object]] = [
    {"role": "user", "content": '  What is a\n"holdfast"? <b>&amp;</b> {{ x }}\t\u6771\u4eac\n'},
    {"role": "assistant", "content": "<think>\nIt holds.\n</think>\n\nA root. "},
    {"role": "user", "content": "And 1.5 + 2?"},
]
# Messages whose renderings show the template language at work: with a system message, an answer to continue,
# and a tool that was called.
_CONVERSATIONS: tuple[Mapping[str, Any], ...] = (
    {"messages": _TURNS},
    {"messages": [{"role": "system", "content": "Be brief. "}, *_TURNS[:2]], "add_generation_prompt": False},
    {
        "messages": [
            _TURNS[0],
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call00001", "content": "[1, 2]"},
        ],
        "tools": [_TOOL],
    },
)


def digest_renderings(tokenizer: Tokenizer) -> str:
    """SHA-256 over the renderings of the model's own template."""
    sources = (tokenizer.chat_template, tokenizer.chat_templates.get("tool_use"))
    return _digest(sources, tuple(sorted(tokenizer.special_tokens.items())))


@lru_cache(64)  # one process renders the same template for many engines
def _digest(sources: tuple[str | None, str | None], special_tokens: tuple[tuple[str, str], ...]) -> str:
    limits = TemplateLimits(wall_seconds=_WALL_SECONDS)
    template = ChatTemplate(sources[0], dict(special_tokens), tool_source=sources[1], limits=limits)
    try:
        texts = [_render(template, arguments) for arguments in _CONVERSATIONS]
    finally:
        template.close()
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _render(template: ChatTemplate, arguments: Mapping[str, Any]) -> str | None:
    """None where the template refuses: many take no system message or no tools."""
    try:
        return template.render(**arguments)
    except (TemplateError, InvalidRequest):
        return None
