"""How a model writes answers: its thinking and its tool calls. Chosen once for a server.

A `ChatFormat` reads from the end of a prompt where the answer begins (`AnswerStart`), puts the
thinking before a grammar, and makes the parser of a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.results import Delta
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import ConfigError
from holdfast.server.reasoning.formats import (
    HARMONY,
    QWEN3,
    Harmony,
    ReasoningFormat,
    ReasoningParserName,
    ReasoningTags,
    choose_reasoning,
)
from holdfast.server.reasoning.harmony import HarmonyParser
from holdfast.server.reasoning.tags import TagParser, TagState
from holdfast.server.reasoning.token_pieces import Piece, TokenPieces
from holdfast.server.tools.deltas import ChoiceDelta, ToolCallIds, ToolParser
from holdfast.server.tools.forced_calls import grammar_error, json_in_lark, quote
from holdfast.server.tools.formats import OPENAI, ToolFormat, ToolParserName, choose_format
from holdfast.server.tools.plan import ToolPlan
from holdfast.structured.spec import KIND_NAMES, choice_in_lark, regex_in_lark
from holdfast.text.chat_content import reasoning_of, without_reasoning
from holdfast.text.tokenizer import Tokenizer

_TAIL = 32  # tokens at the end of a prompt: a tag, even spelled byte by byte, and white space
_ANY_TEXT = r"/(.|\n)*/"
_GAP = r"/\n{0,2}/"  # after a closing tag


@dataclass(frozen=True)
class ThinkingGrammar:
    """What comes before an answer that a grammar constrains, in Lark.

    Without it such a grammar would keep the model from thinking. Where the prompt has opened the thinking,
    the grammar begins inside it. Where the model may begin it, both are allowed.

    start: for the start rule. rules: further rules. head: the fixed text before an answer that is no call.
    names_tokens: special tokens are named.
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


@dataclass(frozen=True)
class AnswerStart:
    """Where an answer begins. state: with think tags. header: the pieces of harmony's open header."""

    state: TagState = TagState.ANSWERING
    header: tuple[Piece, ...] = ()


class AnswerParser:
    """Parses one choice.

    num_reasoning_tokens: the tokens of the thinking, its tags included. num_hidden_tokens: those and
    the markup before content; tokens that are not in any content.
    """

    def __init__(self, pieces: TokenPieces, parser: HarmonyParser | TagParser) -> None:
        self._pieces = pieces
        self._parser = parser
        self._rest = self._rest_of_answer()

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parser.num_reasoning_tokens

    @property
    def num_hidden_tokens(self) -> int:
        return self._parser.num_hidden_tokens

    def feed(self, delta: Delta) -> list[ChoiceDelta]:
        """Return the deltas that are certain after this delta of the engine."""
        if self._rest is not None:
            return self._rest.feed(delta.text)
        deltas = self._parser.feed(self._pieces.split(delta))
        self._rest = self._rest_of_answer()
        return deltas

    def finish(self) -> list[ChoiceDelta]:
        """Return the remaining deltas, at the end of the text."""
        return self._parser.finish()

    def _rest_of_answer(self) -> ToolParser | None:
        """Return the parser of the text that is left, once its tokens need not be known."""
        if isinstance(self._parser, HarmonyParser) or self._pieces.has_controls:
            return None
        return self._parser.rest_of_answer


@dataclass(frozen=True)
class ChatFormat:
    """The formats of one model. parses_calls: calls that are not forced are looked for."""

    tokenizer: Tokenizer
    reasoning: ReasoningFormat | None
    tool_format: ToolFormat
    parses_calls: bool = True

    @property
    def has_reasoning(self) -> bool:
        return self.reasoning is not None

    def controls(self, plan: ToolPlan) -> dict[int, str]:
        """Return the special tokens that the parsers of a request must see."""
        if isinstance(self.reasoning, Harmony):
            return self._special_ids(self.reasoning.tokens)
        texts: tuple[str, ...] = ()
        if self.reasoning is not None:
            texts = (self.reasoning.opening, self.reasoning.closing)
        if self.parses_calls and plan.config.callable and not plan.config.is_forced:
            texts += (self.tool_format.opening, self.tool_format.closing)
        return self._special_ids(texts)

    def start_of_answer(self, prompt_ids: Sequence[int], continued: str | None) -> AnswerStart:
        """Return where the answer to this prompt begins. continued: the message that it continues, if any."""
        if isinstance(self.reasoning, Harmony):
            return AnswerStart(header=tuple(self._read_header(self.reasoning, prompt_ids)))
        if self.reasoning is None:
            return AnswerStart()
        if continued is None:
            return AnswerStart(self._read_tags(self.reasoning, prompt_ids))
        tags = self.reasoning
        is_open = continued.rfind(tags.opening) > continued.rfind(tags.closing)
        return AnswerStart(TagState.THINKING if is_open else TagState.ANSWERING)

    def constrain(self, plan: ToolPlan, start: AnswerStart) -> StructuredOutput | None:
        """Return the constraint of an answer, with the thinking before it."""
        thinking = self._thinking_grammar(start)
        if plan.structured is None or thinking is None:
            return plan.structured
        return after_thinking(plan.structured, thinking, is_tool_grammar=plan.is_tool_grammar)

    def explain(self, plan: ToolPlan, start: AnswerStart, message: str) -> str:
        """Return the engine's error message, in terms of what the client sent."""
        if plan.is_tool_grammar or plan.structured is None or self._thinking_grammar(start) is None:
            return plan.explain(message)
        return explain_after_thinking(message, plan.structured)

    def adapt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the form that the template takes.

        gpt-oss's template refuses content beside thinking in a message with calls; both are then
        thinking.
        """
        content, reasoning = message.get("content"), reasoning_of(message)
        if not isinstance(self.reasoning, Harmony) or not message.get("tool_calls") or not content:
            return message
        if not isinstance(content, str):
            content = "\n".join(part.get("text") or "" for part in content)
        if not isinstance(reasoning, str) or not reasoning:
            return message
        return {**without_reasoning(message), "content": "", "reasoning_content": f"{reasoning}\n{content}"}

    def parser(
        self,
        plan: ToolPlan,
        start: AnswerStart,
        key: bytes,
        choice: int,
        *,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool,
    ) -> AnswerParser:
        """Return the parser of one choice. `key` is the key of `ToolCallIds`."""
        controls = self.controls(plan)
        pieces = TokenPieces(self.tokenizer, prompt_ids, controls, skip_special_tokens=skip_special_tokens)
        if isinstance(self.reasoning, Harmony):
            return AnswerParser(pieces, self._harmony_parser(plan, start, key, choice))
        calls = plan.parser(key, choice, looks_for_calls=self.parses_calls)
        if self.reasoning is None:
            return AnswerParser(pieces, TagParser(QWEN3, TagState.ANSWERING, calls))
        return AnswerParser(pieces, TagParser(self.reasoning, start.state, calls))

    def _harmony_parser(self, plan: ToolPlan, start: AnswerStart, key: bytes, choice: int) -> HarmonyParser:
        config = plan.config
        can_call = config.is_forced or self.parses_calls
        return HarmonyParser(
            [tool.name for tool in config.callable] if can_call else (),
            plan.ids(key, choice),
            header=start.header,
            parallel=config.parallel,
            is_forced=config.is_forced,
        )

    def _read_tags(self, tags: ReasoningTags, prompt_ids: Sequence[int]) -> TagState:
        """Return what the template wrote last. The same characters typed by a client are other tokens."""
        tail = list(prompt_ids[-_TAIL:])
        while tail and not self.tokenizer.token_bytes(tail[-1]).strip():
            tail.pop()
        text = self.tokenizer.decode(tail, skip_special_tokens=False)

        def ends_with(tag: str) -> bool:
            id_ = self.tokenizer.added_id(tag)
            return tail[-1:] == [id_] if id_ is not None else text.rstrip().endswith(tag)

        if ends_with(tags.closing):
            return TagState.CLOSED
        return TagState.THINKING if tags.starts_open or ends_with(tags.opening) else TagState.MAY_THINK

    def _read_header(self, harmony: Harmony, prompt_ids: Sequence[int]) -> list[Piece]:
        """Return the pieces after the last start of a message."""
        start = self.tokenizer.special_id(harmony.start)
        begin = next((at for at in reversed(range(len(prompt_ids))) if prompt_ids[at] == start), None)
        if begin is None:
            return []
        tail = prompt_ids[begin + 1 :]
        controls = self._special_ids(harmony.tokens)
        pieces = TokenPieces(self.tokenizer, (), controls, skip_special_tokens=False)
        text = self.tokenizer.decode(tail, skip_special_tokens=False)
        return pieces.split(Delta(text, tuple(tail)))

    def _special_ids(self, texts: Sequence[str]) -> dict[int, str]:
        ids = {self.tokenizer.special_id(text): text for text in texts}
        return {id_: text for id_, text in ids.items() if id_ is not None}

    def _thinking_grammar(self, start: AnswerStart) -> ThinkingGrammar | None:
        if isinstance(self.reasoning, Harmony):
            is_open = HarmonyParser((), ToolCallIds(b""), header=start.header).is_in_header
            return harmony_thinking(OPENAI) if is_open else None
        if self.reasoning is None or start.state not in (TagState.MAY_THINK, TagState.THINKING):
            return None
        tags = [self.reasoning.opening, self.reasoning.closing]
        ids = [self.tokenizer.special_id(tag) for tag in tags]
        names_tokens = None not in ids
        if names_tokens:
            tags = [f"<[{id_}]>" for id_ in ids]
        is_open = start.state is TagState.THINKING
        return tagged_thinking(*tags, is_open=is_open, names_tokens=names_tokens)


def choose_chat_format(
    tokenizer: Tokenizer, reasoning: ReasoningParserName = "auto", tools: ToolParserName = "auto"
) -> ChatFormat:
    """Return the format of a model, by its template and tokenizer or by the names of parsers. Raises
    `ConfigError` if they do not fit."""
    plain, for_tools = tokenizer.rendered_templates
    template = plain or ""
    with_tools = template if for_tools is None else for_tools
    if tools == OPENAI.name and reasoning == "auto":
        reasoning = "openai_gptoss"
    found = choose_reasoning(tokenizer, template, reasoning)
    if (found is HARMONY and tools not in ("auto", "none", OPENAI.name)) or (
        found is not HARMONY and tools == OPENAI.name
    ):
        raise ConfigError(
            f"--reasoning-parser {HARMONY.name} and --tool-call-parser {OPENAI.name} belong together, and no other "
            "parser can be combined with them"
        )
    if found is HARMONY:
        return ChatFormat(tokenizer, found, OPENAI, parses_calls=tools != "none")
    special = [tokenizer.token_bytes(one).decode("utf-8", "replace") for one in tokenizer.special_ids]
    tool_format = choose_format(with_tools, special, tools)
    return ChatFormat(tokenizer, found, tool_format, parses_calls=tools != "none")
