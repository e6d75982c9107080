"""Grammars of answers that come after thinking.

A grammar constrains every token of an answer. A model that thinks before it answers would be kept
from thinking, so that its thinking is part of the grammar: any text up to the closing tag, then the
structured output or the calls. Where the prompt has opened the thinking, the grammar begins inside
it; where the model may begin it, the grammar allows both; where the prompt has closed it, or the
answer continues a message, the answer follows at once.
"""

from dataclasses import dataclass

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.tools.forced_calls import grammar_error, json_in_lark, quote
from holdfast.server.tools.formats import ToolFormat
from holdfast.structured.spec import KIND_NAMES, choice_in_lark, regex_in_lark

_ANY_TEXT = r"/(.|\n)*/"
_GAP = r"/\n{0,2}/"  # after a closing tag


@dataclass(frozen=True)
class ThinkingGrammar:
    """What comes before an answer, in Lark. start: for the start rule; rules: further rules.

    head: the fixed text before an answer that is no call. names_tokens: special tokens are named.
    """

    start: str
    rules: str
    head: str = ""
    names_tokens: bool = False


def tagged_thinking(opening: str, closing: str, *, is_open: bool, names_tokens: bool) -> ThinkingGrammar:
    """Return the grammar of thinking between two tags, which are texts or the names of special tokens."""
    if names_tokens:
        rules = f"thinking: {_ANY_TEXT} {closing} {_GAP}"
    else:  # it ends with the first closing tag
        ending = regex_in_lark(f"(.|\\n)*{_escape(closing)}")
        rules = f"thinking: thought {_GAP}\nthought[lazy]: {ending}"
        opening = quote(opening)
    start = "thinking" if is_open else f"({opening} thinking)?"
    return ThinkingGrammar(start, rules, names_tokens=names_tokens)


def harmony_thinking(tool_format: ToolFormat) -> ThinkingGrammar:
    """Return the grammar of a message of the channel analysis, if the model writes one."""
    rules = f'thinking: <|channel|> "analysis" <|message|> {_ANY_TEXT} <|end|> <|start|> "assistant"'
    head = quote(tool_format.answer_head, tool_format.special)
    return ThinkingGrammar("thinking?", rules, head, names_tokens=True)


def after_thinking(
    output: StructuredOutput, thinking: ThinkingGrammar, *, is_tool_grammar: bool
) -> StructuredOutput:
    """Return the grammar of the thinking and the answer. A tool grammar has its start rule in line 1."""
    if is_tool_grammar:
        start, _, rest = (output.lark or "").partition("\n")
        answer = start.removeprefix("start: ")
        lark = f"start: {thinking.start} ({answer})\n{rest}"
    else:
        lark = f"start: {thinking.start} {thinking.head} answer\n{_answer_rule(output)}"
    names_tokens = output.special_tokens or thinking.names_tokens
    return StructuredOutput(lark=f"{lark}\n{thinking.rules}", special_tokens=names_tokens)


def explain_after_thinking(message: str, output: StructuredOutput) -> str:
    """Return the compiler's error for a grammar of `after_thinking`, in terms of the structured output."""
    cause = message.partition("cannot be used: ")[2]
    if not cause:
        return message
    return f"the {KIND_NAMES[output.kind]} cannot be used: {grammar_error(cause)[1]}"


def _answer_rule(output: StructuredOutput) -> str:
    if output.kind in ("json_schema", "json_object"):
        return f"answer: {json_in_lark(output)}"
    if output.kind == "regex":
        return f"answer: {regex_in_lark(output.regex or '')}"
    if output.kind == "choice":
        return f"answer: ANSWER\nANSWER: {choice_in_lark(output.texts)}"
    return f"answer: %lark {{\n{output.lark}\n}}"


def _escape(text: str) -> str:
    return "".join(f"\\{one}" if one in r"\.+*?()|[]{}^$" else one for one in text)
