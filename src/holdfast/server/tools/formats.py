"""The formats in which models write tool calls.

A format is data; the parsers have no code for single models.

    hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call>       Hermes, Qwen, and the default
    llama3_json  <|python_tag|>{"name": ..., "parameters": {...}}               Llama 3
    mistral      [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]           Mistral
    openai       <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}    gpt-oss

A call without its marker is also recognized at the beginning of the text and directly after another
call. Calls of the last format have a parser of their own (`server.reasoning.harmony`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "openai"]


@dataclass(frozen=True)
class CallFrame:
    """The fixed text around forced calls:

    before + opening + name + middle + arguments + closing [+ between + opening ...] + after
    """

    before: str
    opening: str
    middle: str
    closing: str
    between: str
    after: str


_PLAIN_LIST = CallFrame("[", '{"name": "', '", "arguments": ', "}", ", ", "]")


@dataclass(frozen=True)
class ToolFormat:
    """opening and closing are the markers around a call; without a closing marker a call ends with
    its JSON.

    frame: the text of a forced call. many: whether forced text may have several calls. short_ids:
    Mistral's templates accept only nine letters and digits as the id of a call. special: the special
    tokens in the frame and in answer_head, the text before an answer that is no call.
    """

    name: str
    opening: str
    closing: str
    frame: CallFrame
    many: bool = True
    short_ids: bool = False
    special: tuple[str, ...] = ()
    answer_head: str = ""

    def __post_init__(self) -> None:
        # The first character occurs once, so a failed partial match never contains the start of
        # another.
        assert self.opening.count(self.opening[0]) == 1


HERMES = ToolFormat(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    CallFrame("", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", ""),
)
# Llama 3's templates refuse a message with two calls.
LLAMA3 = ToolFormat(
    "llama3_json",
    "<|python_tag|>",
    "",
    CallFrame("", '{"name": "', '", "parameters": ', "}", "", ""),
    many=False,
)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", _PLAIN_LIST, short_ids=True)
OPENAI = ToolFormat(
    "openai",
    "<|channel|>",
    "",
    CallFrame("", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", "", ""),
    many=False,
    special=("<|channel|>", "<|constrain|>", "<|message|>"),
    answer_head="<|channel|>final<|message|>",
)
# If <tool_call> is a special token, a grammar cannot force its text; then only the JSON is forced.
_HERMES_WITHOUT_MARKERS = ToolFormat("hermes", "<tool_call>", "</tool_call>", _PLAIN_LIST)


_NAMED = {one.name: one for one in (LLAMA3, MISTRAL, OPENAI)}


def choose_format(
    chat_template: str | None, special_tokens: Collection[str] = (), name: str = "auto"
) -> ToolFormat:
    """Return the format by its name; "auto": by the markers in the chat template.

    special_tokens are the texts of the tokenizer's special tokens.
    """
    template = chat_template or ""
    if name in _NAMED:
        return _NAMED[name]
    if name == HERMES.name or HERMES.opening in template:
        return _HERMES_WITHOUT_MARKERS if HERMES.opening in special_tokens else HERMES
    if MISTRAL.opening in template:
        return MISTRAL
    if LLAMA3.opening in template or "ipython" in template:
        return LLAMA3
    return HERMES
