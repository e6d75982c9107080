"""Builds the messages of a chat from the items or blocks of another API."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.server.api.schema.requests import ChatMessage


@dataclass
class _Draft:
    """A message that may still grow: copying it for every part would take quadratic time."""

    role: str
    texts: list[str] | None
    calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    thoughts: list[str] = field(default_factory=list)


class Conversation:
    """Messages in the order they were added."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._thoughts: list[str] = []  # of the assistant's next message

    @property
    def is_empty(self) -> bool:
        return not self._drafts

    @property
    def ends_with_calls(self) -> bool:
        return not self.is_empty and bool(self._drafts[-1].calls)

    def add(self, role: str, texts: Iterable[str], *, tool_call_id: str | None = None) -> None:
        """A new message. Texts are joined with a line break, as the parts of a chat message."""
        self._append(_Draft(role, list(texts), tool_call_id=tool_call_id))

    def add_text(self, role: str, texts: Iterable[str]) -> None:
        """More text of the last message if it has this role and no calls, else a new message."""
        last = self._drafts[-1] if self._drafts else None
        if last is None or last.role != role or last.calls or last.texts is None or self._thoughts:
            self.add(role, texts)
        else:
            last.texts += texts

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """A call in the last message if it is the assistant's, else in a new one."""
        if self.is_empty or self._drafts[-1].role != "assistant" or self._thoughts:
            self._append(_Draft("assistant", None))
        function = {"name": name, "arguments": arguments}
        self._drafts[-1].calls.append({"id": call_id, "type": "function", "function": function})

    def add_reasoning(self, text: str) -> None:
        """Thinking before the assistant's next text or call. Without one it is dropped."""
        self._thoughts.append(text)

    def _append(self, draft: _Draft) -> None:
        if draft.role == "assistant":
            draft.thoughts = self._thoughts
        self._thoughts = []
        self._drafts.append(draft)

    def messages(self) -> list[ChatMessage]:
        """The messages, with the fields that clients of chat completions send."""
        return [_message(draft) for draft in self._drafts]


def _message(draft: _Draft) -> ChatMessage:
    fields: dict[str, Any] = {"role": draft.role}
    fields["content"] = None if draft.texts is None else "\n".join(draft.texts)
    if draft.thoughts:
        fields["reasoning_content"] = "\n".join(draft.thoughts)
    if draft.calls:
        fields["tool_calls"] = draft.calls
    if draft.tool_call_id is not None:
        fields["tool_call_id"] = draft.tool_call_id
    return ChatMessage(**fields)
