"""A conversation as the model reads it, and what its tools and forms ask of the answer."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from holdfast.core.structured import StructuredOutput
from holdfast.server.prompts import Prompts
from holdfast.server.response_format import form_of
from holdfast.server.schemas import ChatBody, ChatMessage
from holdfast.server.tool_calls import AnswerReader
from holdfast.server.tool_formats import choose_format
from holdfast.server.tool_plan import ToolPlan, plan_tools
from holdfast.server.tool_prompt import describe_tools, knows_tools
from holdfast.server.tools import ToolUse, read_tools


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt's tokens, and how its answers are held to a form and read."""

    ids: list[int]
    plan: ToolPlan

    @property
    def form(self) -> StructuredOutput | None:
        return self.plan.form

    def reader(self, seed: int, choice: int) -> AnswerReader:
        """Reads one answer. The same prompt and seed give the same ids of calls."""
        key = hashlib.sha256(json.dumps([self.ids, seed]).encode()).digest()
        return self.plan.reader(key, choice)


class ChatPrompts:
    """Reads conversations for one model."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        tokenizer = prompts.tokenizer
        plain = tokenizer.chat_template or ""
        with_tools = tokenizer.chat_templates.get("tool_use", plain)
        self._templates = {False: plain, True: with_tools}  # by whether there are tools
        self._know_tools = {has_tools: knows_tools(one) for has_tools, one in self._templates.items()}
        special = [prompts.token_text(one) for one in tokenizer.special_ids]
        self._format = choose_format(with_tools, special)

    async def read(self, body: ChatBody) -> ChatPrompt:
        """Raises what is wrong with it."""
        return await self._prompts.apart(lambda: self._read(body))

    def _read(self, body: ChatBody) -> ChatPrompt:
        use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        plan = plan_tools(use, self._format, form_of(body))
        knows = self._know_tools[bool(use.offered)]
        variables = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", body.reasoning_effort)
        ids = self._prompts.render(
            self._messages(body, use),
            tools=[tool.shown() for tool in use.offered] if use.offered and knows else None,
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=variables,
        )
        return ChatPrompt(ids, plan)

    def _messages(self, body: ChatBody, use: ToolUse) -> list[dict[str, Any]]:
        """The conversation as its template can show it."""
        messages = [_plain(message) for message in body.messages]
        has_tools = bool(use.offered)
        if self._know_tools[has_tools]:
            return messages
        return describe_tools(messages, use, self._templates[has_tools])


def _plain(message: ChatMessage) -> dict[str, Any]:
    """As templates know it: OpenAI's developer is what models were taught to call system."""
    plain = message.model_dump(exclude_unset=True)
    return {**plain, "role": "system"} if message.role == "developer" else plain
