"""From a conversation to the one text the model reads.

A chat template sees what transformers would show it (messages, tools, documents, the named special tokens)
and is rendered in a process of its own (`template_sandbox`). The invariant: the text depends on the
arguments of `render` and on nothing else. So there is no clock. A template that asks for today
(`strftime_now`) is told `date`, and without one `FIXED_DATE`, the day Llama's own templates fall back to:
the same request gives the same prompt tomorrow. Pass `date=datetime.date.today()` to tell a model the real
date.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from holdfast.core.sampling_params import is_unicode
from holdfast.errors import InvalidRequest, TemplateError
from holdfast.sandbox.template_sandbox import TemplateLimits, TemplateSandbox
from holdfast.text.chat_messages import check_json, check_messages
from holdfast.text.tokenizer import Tokenizer

FIXED_DATE = datetime.date(2024, 7, 26)

_OURS = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")


class ChatTemplate:
    """Renders conversations. A model may bring a second template for when there are tools."""

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
        """The template a model comes with; one that is missing says so when it is asked to render."""
        tool_source = tokenizer.chat_templates.get("tool_use")
        return cls(tokenizer.chat_template, tokenizer.special_tokens, tool_source=tool_source, limits=limits)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        date: datetime.date | None = None,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> str:
        """The prompt's text. Encode it with `add_special_tokens=False`: the template wrote them already."""
        checked = check_messages(messages)
        if tools is not None and (isinstance(tools, str | bytes) or not isinstance(tools, Sequence)):
            raise InvalidRequest("tools must be a list of objects")
        taken = sorted(set(variables) & set(_OURS))
        if taken:
            raise InvalidRequest(
                f"a template variable may not be called {taken[0]!r}; that name has a meaning"
            )
        shown = {
            **self._special_tokens,
            **check_json("a template variable", dict(variables)),
            "messages": checked,
            "tools": check_json("tools", None if tools is None else list(tools)),
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        text = self._choose(tools is not None).render(shown, date=(date or FIXED_DATE).isoformat())
        if not is_unicode(text):
            raise TemplateError("the chat template wrote a lone surrogate, which is no valid Unicode")
        return text

    def warm(self) -> None:
        """Start what rendering needs, without waiting: for the time in which weights are loaded."""
        if self._plain is not None:
            self._plain.warm()

    def close(self) -> None:
        """End the processes; a later rendering starts them again."""
        for sandbox in (self._plain, self._tools):
            if sandbox is not None:
                sandbox.close()

    def digest(self) -> str:
        """SHA-256 over all that decides a rendering besides its arguments."""
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
