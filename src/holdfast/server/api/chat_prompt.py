"""A conversation as the model reads it, and what its tools and forms ask of the answer."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.api.response_format import form_of
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage, TokenizeRequest
from holdfast.server.prompts import Prompts
from holdfast.server.tools.deltas import ToolParser
from holdfast.server.tools.formats import choose_format
from holdfast.server.tools.plan import ToolPlan, plan_tools
from holdfast.server.tools.template_fallback import describe_tools, knows_tools
from holdfast.server.tools.tool_config import ToolConfig, parse_tools


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt's tokens, and how its answers are held to a form and read."""

    ids: list[int]
    plan: ToolPlan

    @property
    def form(self) -> StructuredOutput | None:
        return self.plan.form

    def reader(self, seed: int, choice: int) -> ToolParser:
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

    async def read(self, body: ChatCompletionRequest) -> ChatPrompt:
        """Raises what is wrong with it."""
        return await self._prompts.run_in_thread(lambda: self._read(body))

    async def tokenize(self, body: TokenizeRequest) -> list[int]:
        """The ids of a conversation, as `read` would make them."""
        return await self._prompts.run_in_thread(
            lambda: self._render(
                body.messages or (),
                parse_tools(body.tools),
                add_generation_prompt=body.add_generation_prompt is not False,
                variables={},
            )
        )

    def _read(self, body: ChatCompletionRequest) -> ChatPrompt:
        use = parse_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        plan = plan_tools(use, self._format, form_of(body))
        variables = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", body.reasoning_effort)
        ids = self._render(
            body.messages,
            use,
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=variables,
        )
        return ChatPrompt(ids, plan)

    def _render(
        self,
        messages: Sequence[ChatMessage],
        use: ToolConfig,
        *,
        add_generation_prompt: bool,
        variables: dict[str, Any],
    ) -> list[int]:
        """A template that does not know tools is shown a conversation that tells of them."""
        plain = [_plain(message) for message in messages]
        has_tools = bool(use.offered)
        knows = self._know_tools[has_tools]
        return self._prompts.render(
            plain if knows else describe_tools(plain, use, self._templates[has_tools]),
            tools=[tool.shown() for tool in use.offered] if has_tools and knows else None,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )


def _plain(message: ChatMessage) -> dict[str, Any]:
    """As templates know it: OpenAI's developer is what models were taught to call system."""
    plain = message.model_dump(exclude_unset=True)
    return {**plain, "role": "system"} if message.role == "developer" else plain
