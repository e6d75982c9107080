"""How models write tool calls. A format is data; the readers of `auto_calls` and `forced_calls` know no model.

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>          Hermes, Qwen, and whoever is told so
    llama3    <|python_tag|>{"name": ..., "parameters": {...}}                  Llama 3
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]              Mistral

A marker may be a special token, and those are no part of an answer's text. So a call is also seen where its JSON stands at
the beginning of the answer, or right behind another call, without its marker.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class CallFrame:
    """What stands around the calls of a forced answer, letter for letter:

    before + opening + name + middle + arguments + closing [+ between + opening ...] + behind
    """

    before: str
    opening: str
    middle: str
    closing: str
    between: str
    behind: str


_PLAIN_LIST = CallFrame("[", '{"name": "', '", "arguments": ', "}", ", ", "]")


@dataclass(frozen=True)
class ToolFormat:
    """opening and closing are the markers around a call; without a closing one a call ends where its JSON ends.

    frame: how a forced call is written. many: whether a forced answer may hold several. short_ids: Mistral's templates take
    nothing but nine letters and digits as the id of a call.
    """

    name: str
    opening: str
    closing: str
    frame: CallFrame
    many: bool = True
    short_ids: bool = False

    def __post_init__(self) -> None:
        # So a marker that breaks off can only begin again where it broke off, and looking for it never goes back.
        assert self.opening.count(self.opening[0]) == 1


HERMES = ToolFormat(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    CallFrame("", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", ""),
)
# Llama 3's own templates refuse a conversation with two calls in a message.
LLAMA3 = ToolFormat(
    "llama3", "<|python_tag|>", "", CallFrame("", '{"name": "', '", "parameters": ', "}", "", ""), many=False
)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", _PLAIN_LIST, short_ids=True)
# A model whose <tool_call> is a special token cannot be made to write it; the JSON alone it can.
_HIDDEN_HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", _PLAIN_LIST)


def choose_format(chat_template: str | None, special_tokens: Collection[str] = ()) -> ToolFormat:
    """By what the template says; special_tokens are the texts of the tokens that are left out of answers."""
    template = chat_template or ""
    if HERMES.opening in template:
        return _HIDDEN_HERMES if HERMES.opening in special_tokens else HERMES
    if MISTRAL.opening in template:
        return MISTRAL
    if LLAMA3.opening in template or "ipython" in template:
        return LLAMA3
    return HERMES
