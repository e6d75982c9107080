"""Makes of the body of a chat what the engine is asked and how its answers are read.

The prompt's tokens, the constraint of tools and structured output, the settings, and the parsers.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from holdfast.core.cancel_token import CancelToken
from holdfast.core.sampling_params import SamplingParams
from holdfast.server.api.sampling import (
    max_prompt_len,
    parse_structured_output,
    sampling_params,
    truncate_prompt,
)
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage
from holdfast.server.errors import invalid_value
from holdfast.server.frontend import Frontend
from holdfast.server.prompts import PromptReader
from holdfast.server.reasoning.chat_format import AnswerParser, AnswerStart, ChatFormat
from holdfast.server.tools.plan import ToolPlan, plan_tools
from holdfast.server.tools.template_fallback import describe_tools
from holdfast.server.tools.tool_config import Tool, parse_tools
from holdfast.text.chat_content import TemplateInput
from holdfast.text.chat_template import supports_tools
from holdfast.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatPlan:
    """The prompt's tokens and settings, and how its choices are parsed.

    skip_special_tokens: whether the client wants special tokens left out of the text.
    """

    ids: list[int]
    params: SamplingParams
    tools: ToolPlan
    chat_format: ChatFormat
    start: AnswerStart
    skip_special_tokens: bool = True

    def parsers(self, seed: int, num_choices: int) -> list[AnswerParser]:
        """Return the parser of each choice. The same prompt and seed give the same tool call ids."""
        key = b""
        if self.tools.config.callable:
            key = hashlib.sha256(json.dumps([self.ids, seed]).encode()).digest()
        return [
            self.chat_format.parser(
                self.tools,
                self.start,
                key,
                choice,
                prompt_ids=self.ids,
                skip_special_tokens=self.skip_special_tokens,
            )
            for choice in range(num_choices)
        ]

    def explain(self, message: str) -> str:
        """Return the engine's error message, in terms of what the client sent."""
        return self.chat_format.explain(self.tools, self.start, message)


def plan_chat(frontend: Frontend, body: ChatCompletionRequest, token: CancelToken) -> ChatPlan:
    """Plan a chat. Slow: call it in a thread. Raises `HoldfastError` or `ApiError` if it is invalid."""
    prompts = frontend.prompts
    ids, tools = render_chat(prompts, body, token, whole=body.truncate_prompt_tokens is not None)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = -1 if asked is None else asked
    ids = truncate_prompt(body, ids, max_prompt_len(frontend) - max(1, max_tokens))
    continued = _text_of(body.messages[-1]) if body.continue_final_message else None
    start = prompts.chat_format.start_of_answer(ids, continued)
    skips_special_tokens = body.skip_special_tokens is not False
    if prompts.chat_format.controls(tools):  # the parsers must see special tokens, and leave them out
        body = body.model_copy(update={"skip_special_tokens": False})
    elif tools.config.is_forced:  # nothing but calls is in the text, also no special token
        body = body.model_copy(update={"skip_special_tokens": True})
    params = sampling_params(
        body,
        frontend.config,
        max_tokens=max_tokens,
        structured=prompts.chat_format.constrain(tools, start),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    return ChatPlan(ids, params, tools, prompts.chat_format, start, skips_special_tokens)


def render_chat(
    prompts: PromptReader, body: ChatCompletionRequest, token: CancelToken, *, whole: bool = False
) -> tuple[list[int], ToolPlan]:
    """Return the prompt's tokens, and how tools constrain the answer. A prompt that does not fit the context is
    refused, unless `whole`. Slow: call it in a thread."""
    config = parse_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    plan = plan_tools(config, prompts.chat_format.tool_format, parse_structured_output(body))
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise invalid_value(
            "continue_final_message",
            "it continues the last message and add_generation_prompt starts another; only one of them can be true",
        )
    tools = [tool.template_dict() for tool in config.visible]
    messages = [prompts.chat_format.adapt_message(_template_message(one)) for one in body.messages]

    def render(conversation: TemplateInput) -> str:
        adapted = _describe_tools(prompts.tokenizer, conversation)
        return prompts.template.render(
            adapted.messages,
            tools=adapted.tools,
            add_generation_prompt=body.add_generation_prompt is not False and not continues,
            continue_final_message=continues,
            variables=adapted.variables or {},
            token=token,
        )

    variables = _variables(body) | (body.chat_template_kwargs or {})
    conversation = TemplateInput(messages, tools or None, variables)
    return prompts.render(conversation, render, token, whole=whole), plan


def _describe_tools(tokenizer: Tokenizer, conversation: TemplateInput) -> TemplateInput:
    """Return the conversation for the template: tools in the messages, if it does not support them."""
    plain, for_tools = tokenizer.rendered_templates
    template = plain or ""
    if conversation.tools is not None and for_tools is not None:
        template = for_tools
    if _supports_tools(template):
        return conversation
    tools = tuple(map(Tool.from_template_dict, conversation.tools or ()))
    messages = describe_tools(conversation.messages, tools, template)
    return replace(conversation, messages=messages, tools=None)


_supports_tools = cache(supports_tools)


def _variables(body: ChatCompletionRequest) -> dict[str, Any]:
    """Return the effort of thinking as template variables. No effort turns it off where a template can."""
    if body.reasoning_effort is None:
        return {}
    off = thinking_variables(False) if body.reasoning_effort == "none" else {}
    return {"reasoning_effort": body.reasoning_effort, **off}


def thinking_variables(is_on: bool) -> dict[str, bool]:
    """Return the variables that turn thinking on or off, by the names that templates have for it."""
    return {"enable_thinking": is_on, "thinking": is_on}


def _text_of(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "\n".join(part.text or "" for part in content)


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """Return the message in the shape templates expect.

    OpenAI's role developer is called system in templates.
    """
    plain = message.model_dump(exclude_unset=True)
    return {**plain, "role": "system"} if message.role == "developer" else plain
