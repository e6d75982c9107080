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
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from holdfast.core.sampling_params import is_unicode
from holdfast.errors import InvalidRequest, TemplateError
from holdfast.sandbox.template_sandbox import TemplateLimits, TemplateSandbox
from holdfast.text.chat_messages import check_json, check_messages
from holdfast.text.tokenizer import Tokenizer

FIXED_DATE = datetime.date(2024, 7, 26)

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")


class ChatTemplate:
    """Renders messages. A model may have a second template for requests with tools."""

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
        """A model's own template. If it has none, `render` raises."""
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
        """The prompt's text. It has its special tokens: encode it without adding them."""
        checked = check_messages(messages)
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
        text = self._choose(tools is not None).render(context, date=(date or FIXED_DATE).isoformat())
        if not is_unicode(text):
            raise TemplateError("the chat template wrote a lone surrogate, which is not valid Unicode")
        return text

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
        """SHA-256 over everything that decides a rendering besides its arguments."""
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
