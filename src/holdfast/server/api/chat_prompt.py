"""Renders a conversation to prompt tokens, and plans how its tools and structured output constrain
the choices.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.cancel_token import CancelToken
from holdfast.core.structured_output import StructuredOutput
from holdfast.server.api.response_format import parse_structured_output
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage, TokenizeRequest
from holdfast.server.errors import ApiError
from holdfast.server.prompts import Prompts
from holdfast.server.reasoning.chat_format import AnswerParser, AnswerStart, ChatFormat
from holdfast.server.tools.plan import ToolPlan, plan_tools
from holdfast.server.tools.template_fallback import describe_tools
from holdfast.server.tools.tool_config import Tool, ToolConfig, parse_tools
from holdfast.text.chat_content import Conversation
from holdfast.text.chat_template import supports_tools


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt's tokens, and how its choices are constrained and parsed.

    skip_special_tokens: whether the client wants special tokens left out of the text.
    """

    ids: list[int]
    plan: ToolPlan
    chat_format: ChatFormat
    start: AnswerStart
    skip_special_tokens: bool = True

    @property
    def structured(self) -> StructuredOutput | None:
        """The constraint of its choices."""
        return self.chat_format.constrain(self.plan, self.start)

    @property
    def reads_special_tokens(self) -> bool:
        """Whether its parsers must see special tokens, so that the engine may not leave them out."""
        return bool(self.chat_format.controls(self.plan))

    def parsers(self, seed: int, num_choices: int) -> list[AnswerParser]:
        """The parser of each choice. The same prompt and seed give the same tool call ids."""
        key = b""
        if self.plan.config.callable:
            key = hashlib.sha256(json.dumps([self.ids, seed]).encode()).digest()
        return [
            self.chat_format.parser(
                self.plan,
                self.start,
                key,
                choice,
                prompt_ids=self.ids,
                skip_special_tokens=self.skip_special_tokens,
            )
            for choice in range(num_choices)
        ]

    def explain(self, message: str) -> str:
        """The engine's error message, in terms of what the client sent."""
        return self.chat_format.explain(self.plan, self.start, message)


class ChatPrompts:
    """Renders conversations for one model."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._format = prompts.chat_format
        tokenizer = prompts.tokenizer
        default = tokenizer.chat_template or ""
        with_tools = tokenizer.chat_templates.get("tool_use", default)
        self._templates = {False: default, True: with_tools}  # by whether the request has tools
        self._supports_tools = {has_tools: supports_tools(one) for has_tools, one in self._templates.items()}

    @property
    def has_reasoning(self) -> bool:
        """Whether the model's thinking is separated from its answers."""
        return self._format.has_reasoning

    def tokenize(self, body: TokenizeRequest, token: CancelToken | None = None) -> list[int]:
        """The token ids of a conversation, the same as `plan` gives. Slow: call it in a thread."""
        return self._render(body, parse_tools(body.tools), {}, token or CancelToken(), whole=True)

    def plan(self, body: ChatCompletionRequest, token: CancelToken, *, whole: bool = False) -> ChatPrompt:
        """The prompt of a chat completion request. A prompt that does not fit the context is refused,
        unless `whole`. Slow: call it in a thread. Raises `HoldfastError` if it is invalid.
        """
        config = parse_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        plan = plan_tools(config, self._format.tool_format, parse_structured_output(body))
        ids = self._render(
            body, config, _variables(body), token, whole or body.truncate_prompt_tokens is not None
        )
        continued = _text_of(body.messages[-1]) if body.continue_final_message else None
        start = self._format.start_of_answer(ids, continued)
        return ChatPrompt(ids, plan, self._format, start, body.skip_special_tokens is not False)

    def _render(
        self,
        body: ChatCompletionRequest | TokenizeRequest,
        config: ToolConfig,
        variables: dict[str, Any],
        token: CancelToken,
        whole: bool,
    ) -> list[int]:
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message continues the last message and add_generation_prompt starts another; "
                "only one of them can be true",
                param="continue_final_message",
                code="invalid_value",
            )
        tools = [tool.template_dict() for tool in config.visible]
        conversation = Conversation(
            [self._format.adapt_message(_template_message(message)) for message in body.messages or ()],
            tools or None,
            variables | (body.chat_template_kwargs or {}),
        )
        return self._prompts.render(
            conversation,
            prepare=self._describe_tools,
            add_generation_prompt=body.add_generation_prompt is not False and not continues,
            continue_final_message=continues,
            token=token,
            whole=whole,
        )

    def _describe_tools(self, conversation: Conversation) -> Conversation:
        """The conversation for the template: tools in the messages, if it does not support them."""
        has_tools = conversation.tools is not None
        if self._supports_tools[has_tools]:
            return conversation
        tools = tuple(map(Tool.from_template_dict, conversation.tools or ()))
        messages = describe_tools(conversation.messages, tools, self._templates[has_tools])
        return replace(conversation, messages=messages, tools=None)


def _variables(body: ChatCompletionRequest) -> dict[str, Any]:
    """The effort of thinking as template variables. No effort turns it off where a template can."""
    if body.reasoning_effort is None:
        return {}
    off = thinking_variables(False) if body.reasoning_effort == "none" else {}
    return {"reasoning_effort": body.reasoning_effort, **off}


def thinking_variables(is_on: bool) -> dict[str, bool]:
    """Thinking on or off, by the names that templates have for it."""
    return {"enable_thinking": is_on, "thinking": is_on}


def _text_of(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "\n".join(part.text or "" for part in content)


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """The message in the shape templates expect.

    OpenAI's role developer is called system in templates.
    """
    plain = message.model_dump(exclude_unset=True)
    return {**plain, "role": "system"} if message.role == "developer" else plain
