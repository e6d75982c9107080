"""Chat templates: from messages to the text of the prompt.

A template gets the variables that transformers gives it (messages, tools, documents, special
tokens) and is rendered in a worker process (`template_sandbox`). The invariant: the text is a
function of `render`'s arguments. So there is no clock: `strftime_now` in a template gives `date`,
or else `FIXED_DATE`, the default of Llama's own templates. The same request gives the same prompt
tomorrow. Pass `date=datetime.date.today()` to give a model the real date.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from holdfast.core.cancel_token import CancelToken
from holdfast.core.sampling_params import is_unicode
from holdfast.errors import InvalidRequest, TemplateError
from holdfast.sandbox.template_sandbox import TemplateLimits, TemplateSandbox
from holdfast.text.chat_content import check_json, check_messages
from holdfast.text.tokenizer import Tokenizer

FIXED_DATE = datetime.date(2024, 7, 26)

_STRING = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_TOOLS = re.compile(r"(?<![.\w])tools\b")
_BLOCK_ENDS = {"{%": "%}", "{{": "}}", "{#": "#}"}
_BLOCK = re.compile(r"\{[%{#]")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")


class ChatTemplate:
    """Render messages. A model may have a second template for requests with tools."""

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        *,
        tool_source: str | None = None,
        limits: TemplateLimits | None = None,
    ) -> None:
        self._sources = (source, tool_source)
        self._special_tokens = dict(special_tokens)
        self._plain = None if source is None else TemplateSandbox(source, limits)
        self._tools = None if tool_source is None else TemplateSandbox(tool_source, limits)

    @classmethod
    def of(cls, tokenizer: Tokenizer, limits: TemplateLimits | None = None) -> "ChatTemplate":
        """Return a model's own template. If it has none, `render` raises."""
        source, tool_source = tokenizer.rendered_templates
        return cls(source, tokenizer.special_tokens, tool_source=tool_source, limits=limits)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        date: datetime.date | None = None,
        variables: Mapping[str, object] = MappingProxyType({}),
        token: CancelToken | None = None,
    ) -> str:
        """Return the prompt's text. It has its special tokens: encode it without adding them.

        With continue_final_message it ends where the content of the last message ends, so that the
        answer continues that message. Raises `Cancelled` soon after the token is cancelled.
        """
        checked = check_messages(messages)
        mark = _mark_end(checked, add_generation_prompt) if continue_final_message else None
        if tools is not None and (isinstance(tools, str | bytes) or not isinstance(tools, Sequence)):
            raise InvalidRequest("tools must be a list of objects")
        reserved = sorted(set(variables) & set(_RESERVED))
        if reserved:
            raise InvalidRequest(
                f"a template variable may not be called {reserved[0]!r}; that name is reserved"
            )
        context = {
            **self._special_tokens,
            **check_json("a template variable", dict(variables)),
            "messages": checked,
            "tools": check_json("tools", None if tools is None else list(tools)),
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        text = self._choose(tools is not None).render(
            context, date=(date or FIXED_DATE).isoformat(), token=token
        )
        if not is_unicode(text):
            raise TemplateError("the chat template wrote a lone surrogate, which is not valid Unicode")
        return text if mark is None else _cut_at(mark, text)

    def warm(self) -> None:
        """Start the worker process without waiting, while the weights are loaded."""
        if self._plain is not None:
            self._plain.warm()

    def close(self) -> None:
        """End the processes; a later rendering starts them again."""
        for sandbox in (self._plain, self._tools):
            if sandbox is not None:
                sandbox.close()

    def digest(self) -> str:
        """Return SHA-256 over everything that decides a rendering besides its arguments."""
        identity = json.dumps([self._sources, self._special_tokens], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()

    def _choose(self, with_tools: bool) -> TemplateSandbox:
        sandbox = self._tools if with_tools and self._tools is not None else self._plain
        if sandbox is None:
            raise TemplateError(
                "this model has no chat template; send a plain prompt (completions), or put a "
                "chat_template.jinja into the model's folder"
            )
        return sandbox


def _mark_end(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    """Append a mark to the content of the last message: text that no message has."""
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message continues the last message and add_generation_prompt starts another; "
            "set one of them"
        )
    last = messages[-1]
    if not last["content"]:
        raise InvalidRequest(
            "continue_final_message needs a last message with text; leave it out, or give the text to continue"
        )
    mark, text = "\ue000", json.dumps(messages, ensure_ascii=False)
    while mark in text:
        mark += "\ue000"
    last["content"] += mark
    return mark


def _cut_at(mark: str, text: str) -> str:
    before, found, _ = text.rpartition(mark)
    if not found:
        raise TemplateError(
            "the chat template does not write the last message's content, so it cannot be continued; "
            "leave continue_final_message out"
        )
    return before.replace(mark, "")


def text_parts(tokenizer: Tokenizer) -> dict[str, str | None]:
    """Return the fingerprint's parts that decide prompts and the text of answers."""
    template = ChatTemplate.of(tokenizer).digest() if tokenizer.chat_templates else None
    return {"tokenizer": tokenizer.digest(), "chat_template": template}


def supports_tools(template: str) -> bool:
    """Return whether a chat template uses the variable `tools`."""
    at = 0
    while (block := _BLOCK.search(template, at)) is not None:
        end = template.find(_BLOCK_ENDS[block[0]], block.end())
        if end < 0:
            return False
        if block[0] != "{#" and _TOOLS.search(_STRING.sub("", template[block.end() : end])):
            return True
        at = end + 2
    return False


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
    """Return SHA-256 over renderings of fixed messages by the model's own template.

    So the fingerprint knows what the template library does here: two versions of it that render the same
    text give the same digest.
    """
    return _digest(tokenizer.rendered_templates, tuple(sorted(tokenizer.special_tokens.items())))


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
    """Return None if the template refuses: many take no system message or no tools."""
    try:
        return template.render(**arguments)
    except (TemplateError, InvalidRequest):
        return None
