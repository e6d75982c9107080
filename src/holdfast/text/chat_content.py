"""Check the messages of a chat, and find out what in their rendering is content, so that special tokens in
it stay text.

A chat template writes special tokens around contents, and a client may type the same strings in a
content, a role, a name, a tool's description or an argument. Both look alike in the rendered text.
They are told apart by rendering twice:

1. The conversation as it is. This is the prompt's text, and nothing else is done if no content
   holds a special token.
2. The same with every special token in the contents masked: each of its characters replaced by a
   private-use character. Where both renderings agree but for the masks, the masked places are
   content. Templates trim, join, change case and escape; the masks go along.
3. If they do not agree, the template has looked at a special token in a content (`'</think>' in
   content`). Then the conversation is rendered with marks beside the special tokens, which such a
   test does not see. If that rendering has the same special tokens in the same order as the first,
   those with a mark are content.
4. If it does not, the masked rendering is the prompt, with the masks undone: the template has then
   treated the special tokens in contents as any other text.

In an assistant's message only tokens that are marked special count. Further markup, such as <think>
or <tool_call>, is what the model itself wrote, and stays as it is.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import InvalidRequest, TemplateError
from holdfast.text.special_tokens import Span, SpecialTokens
from holdfast.text.tokenizer import Tokenizer

_ROLES = {"system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "tools"}
_MAX_REMEMBERED = 64  # characters
_PRIVATE = range(0xF0000, 0xFFFFE)
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages, normalised. `InvalidRequest` says which message is wrong, and how.

    The result is plain JSON: a list of objects with a `role` and a `content` that is one string (or None in
    a message with tool calls). Text parts are joined with a line break. Tool arguments in JSON text are
    parsed, and reasoning is copied to each of its usual names: templates differ in what they read.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidRequest("messages must be a list of objects with a role and a content")
    if not messages:
        raise InvalidRequest("messages is empty; at least one message is required")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def check_json(name: str, value: object) -> Any:
    """Return a value as plain JSON, or raise `InvalidRequest`."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode: it contains a lone surrogate") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} cannot be written as JSON: {error}") from None
    return json.loads(text)


def _check_message(index: int, message: object) -> dict[str, Any]:
    name = f"messages[{index}]"
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise InvalidRequest(f"{name} must be an object with a role and a content, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f'{name}.role must be a string such as "user", not {_kind(role)}')
    plain: dict[str, Any] = check_json(name, dict(message))
    plain["content"] = _check_content(name, plain)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_parse_arguments(call) for call in _check_calls(name, plain["tool_calls"])]
    return _copy_reasoning(plain)


def _check_content(name: str, message: dict[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return None
    if content is None and reasoning_of(message) is not None:
        return ""
    if not isinstance(content, list):
        raise InvalidRequest(f"{name}.content must be a string or a list of text parts, not {_kind(content)}")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f'{name}.content may only contain parts like {{"type": "text", "text": "..."}}'
            )
        parts.append(part["text"])
    return "\n".join(parts)


def _check_calls(name: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest(f"{name}.tool_calls must be a list of objects")
    return calls


def _parse_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _copy_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = reasoning_of(message)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def reasoning_of(message: Mapping[str, Any]) -> Any:
    """Return the thinking in a message under any of its names, or None if it has none."""
    return next((message[key] for key in _REASONING_NAMES if message.get(key) is not None), None)


def without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message without its thinking."""
    return {key: value for key, value in message.items() if key not in _REASONING_NAMES}


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


@dataclass(frozen=True)
class TemplateInput:
    """What a client sends and a template reads."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PromptText:
    """The text of a prompt, and where in it special tokens are text."""

    text: str
    content: tuple[Span, ...] = ()


def render_conversation(
    conversation: TemplateInput, render: Callable[[TemplateInput], str], tokenizer: Tokenizer
) -> PromptText:
    """Render a conversation. `render` gives the text of one, and may raise."""
    text, special = render(conversation), tokenizer.control_tokens
    if tokenizer.controls_in_content or not special:
        return PromptText(text)
    found = _Finder(special)
    _rewrite(conversation, found.look)
    if not found.characters:
        return PromptText(text)
    private = _unused(conversation, text)
    masker = _Masker(special, {character: next(private) for character in sorted(found.characters)})
    masked = _attempt(render, _rewrite(conversation, masker.mask))
    if isinstance(masked, str) and masker.agree(text, masked):
        return PromptText(text, masker.spans(masked))
    if not found.has_whole:
        return PromptText(text)
    marker = _Marker(special, next(private), next(private))
    marked = _attempt(render, _rewrite(conversation, marker.mark))
    spans = marker.spans(text, marked) if isinstance(marked, str) else None
    if spans is not None:
        return PromptText(text, spans)
    if not isinstance(masked, str):
        raise masked
    return PromptText(masker.undo(masked), masker.spans(masked))


def _attempt(render: Callable[[TemplateInput], str], conversation: TemplateInput) -> str | TemplateError:
    try:
        return render(conversation)
    except TemplateError as error:
        return error


class _Finder:
    """The special tokens in contents: their characters, and whether one is whole."""

    def __init__(self, special: SpecialTokens) -> None:
        self._special = special
        self.characters: set[str] = set()
        self.has_whole = False
        self._seen: set[tuple[str, _Kind]] = set()  # keys and roles are the same in every message

    def look(self, text: str, kind: "_Kind") -> str:
        if len(text) <= _MAX_REMEMBERED:
            if (text, kind) in self._seen:
                return text
            self._seen.add((text, kind))
        whole = self._special.find_in_content(text, with_markup=kind.has_markup)
        self.has_whole = self.has_whole or bool(whole)
        for start, stop in _hidden_spans(self._special, text, kind):
            self.characters.update(text[start:stop])
        return text


class _Masker:
    """Replace the characters of special tokens in contents by private-use characters."""

    def __init__(self, special: SpecialTokens, mask: Mapping[str, str]) -> None:
        self._special = special
        self._mask = {ord(character): masked for character, masked in mask.items()}
        self._undo = {ord(masked): character for character, masked in mask.items()}
        self._runs = re.compile(f"[{''.join(mask.values())}]+")

    def mask(self, text: str, kind: "_Kind") -> str:
        spans = _hidden_spans(self._special, text, kind)
        return _replace(
            text, [(start, stop, text[start:stop].translate(self._mask)) for start, stop in spans]
        )

    def undo(self, masked: str) -> str:
        return masked.translate(self._undo)

    def spans(self, masked: str) -> tuple[Span, ...]:
        """Return where the masks are."""
        return tuple(run.span() for run in self._runs.finditer(masked))

    def agree(self, text: str, masked: str) -> bool:
        """Return whether two renderings are the same but for the masks."""
        if len(text) != len(masked):
            return False
        return self._runs.split(masked) == _without(text, self.spans(masked))


class _Marker:
    """Put a mark after a special token in a content, or before the one that ends the content."""

    def __init__(self, special: SpecialTokens, after: str, before: str) -> None:
        self._special = special
        self._after, self._before = after, before

    def mark(self, text: str, kind: "_Kind") -> str:
        end = len(text.rstrip())
        spans = self._special.find_in_content(text, with_markup=kind.has_markup)
        return _replace(
            text,
            [(a, a, self._before) if b >= end else (b, b, self._after) for a, b in spans],
        )

    def spans(self, text: str, marked: str) -> tuple[Span, ...] | None:
        """Return the special tokens of the text that have a mark, or None if the two have different ones."""
        plain, others = self._special.scan(text), self._special.scan(marked)
        if [text[a:b] for a, b in plain] != [marked[a:b] for a, b in others]:
            return None
        has_mark = [
            marked[stop : stop + 1] == self._after or marked[max(start - 1, 0) : start] == self._before
            for start, stop in others
        ]
        return tuple(span for span, one in zip(plain, has_mark, strict=True) if one)


@dataclass(frozen=True)
class _Kind:
    has_markup: bool = True  # markup that is not marked special counts
    is_role: bool = False


# Of a message's fields and of its role, by whether its author's markup counts.
_KINDS = {yes: (_Kind(has_markup=yes), _Kind(has_markup=yes, is_role=True)) for yes in (False, True)}


def _hidden_spans(special: SpecialTokens, text: str, kind: _Kind) -> list[Span]:
    """Return the special tokens of a content, and its ends that could become one beside another."""
    if kind.is_role and text not in _ROLES and special.is_inside(text):
        return [(0, len(text))]
    whole = special.find_in_content(text, with_markup=kind.has_markup)
    spans: list[Span] = []
    for start, stop in sorted(whole + special.open_ends(text)):
        if spans and start < spans[-1][1]:  # an end that is open and whole
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return spans


def _replace(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """Return the text with spans replaced. Edits are in order and do not touch."""
    pieces: list[str] = []
    at = 0
    for start, stop, new in edits:
        pieces += [text[at:start], new]
        at = stop
    return "".join([*pieces, text[at:]])


def _rewrite(conversation: TemplateInput, change: Callable[[str, _Kind], str]) -> TemplateInput:
    """Return the conversation with every string changed, keys of objects too."""
    messages = [_rewrite_message(message, change) for message in conversation.messages]
    tools, variables = (_map(one, change, _Kind()) for one in (conversation.tools, conversation.variables))
    return replace(conversation, messages=messages, tools=tools, variables=variables)


def _rewrite_message(message: Mapping[str, Any], change: Callable[[str, _Kind], str]) -> dict[str, Any]:
    kind, role_kind = _KINDS[message.get("role") != "assistant"]
    return {
        change(key, kind): change(value, role_kind) if key == "role" else _map(value, change, kind)
        for key, value in message.items()
    }


def _map(value: Any, change: Callable[[str, _Kind], str], kind: _Kind) -> Any:
    if isinstance(value, str):
        return change(value, kind)
    if isinstance(value, Mapping):
        return {
            change(key, kind) if isinstance(key, str) else key: _map_field(key, one, change, kind)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map(one, change, kind) for one in value]
    return value


def _map_field(key: Any, value: Any, change: Callable[[str, _Kind], str], kind: _Kind) -> Any:
    """Change a field.

    Arguments of a call are JSON text: escapes may hide a special token until they are parsed.
    """
    changed = _map(value, change, kind)
    if key != "arguments" or not isinstance(changed, str) or "\\" not in changed:
        return changed
    try:
        parsed = json.loads(changed)
    except (ValueError, RecursionError):
        return changed
    rewritten = _map(parsed, change, kind)
    if rewritten == parsed:
        return changed
    return json.dumps(rewritten, ensure_ascii=False)


def _unused(conversation: TemplateInput, text: str) -> Iterator[str]:
    """Yield private-use characters that are neither in the conversation nor in its rendering."""
    parts = [list(conversation.messages), conversation.tools, conversation.variables, text]
    used = {character for character in json.dumps(parts, ensure_ascii=False) if ord(character) in _PRIVATE}
    yield from (chr(code) for code in _PRIVATE if chr(code) not in used)
    raise InvalidRequest("the messages use every private-use character of Unicode; leave some out")


def _without(text: str, spans: Sequence[Span]) -> list[str]:
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    return [text[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
