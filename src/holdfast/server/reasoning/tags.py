"""Separates thinking between tags from the text after it.

The thinking is the beginning of the answer: the prompt may have opened it, or the answer begins with
the opening tag. It ends at the first closing tag; without one, all of it is thinking. White space
around the tags is dropped. Tags anywhere else are text. What comes after the thinking goes to
another parser, for tool calls.

Invariant: the merged deltas do not depend on how the text was split into chunks. Text that may be
the beginning of a tag is held back until that is decided.
"""

from collections.abc import Iterable
from enum import Enum, auto

from holdfast.server.reasoning.formats import ReasoningTags
from holdfast.server.reasoning.token_pieces import Piece
from holdfast.server.tools.deltas import ChoiceDelta, ReasoningDelta, ToolParser, merge_texts

_SPACE = " \t\n\r"


class TagState(Enum):
    """Where an answer is. At its beginning: what the prompt says."""

    MAY_THINK = auto()  # before an opening tag, or text without thinking
    THINKING = auto()
    CLOSED = auto()  # after the closing tag, before text
    ANSWERING = auto()


class TagParser:
    """Parses one choice. `rest` parses what comes after the thinking."""

    def __init__(self, tags: ReasoningTags, state: TagState, rest: ToolParser) -> None:
        self._tags = tags
        self._state = state
        self._rest = rest
        self._space: list[str] = []  # white space held back: before a tag it is dropped
        self._marker = ""  # the beginning of a tag
        self._has_reasoning = False  # whether the thinking has text
        self._num_held_tokens = 0  # while it is not known whether they are thinking
        self.num_reasoning_tokens = 0
        self.num_hidden_tokens = 0

    @property
    def rest_of_answer(self) -> ToolParser | None:
        """The parser of what follows, once the answer has begun: from then on all is text."""
        return self._rest if self._state is TagState.ANSWERING else None

    def feed(self, pieces: Iterable[Piece]) -> list[ChoiceDelta]:
        deltas: list[ChoiceDelta] = []
        for piece in pieces:
            self._count(piece.num_tokens)
            if piece.text:
                deltas += self._feed(piece.text)
        return merge_texts(deltas)

    def _count(self, num_tokens: int) -> None:
        if self._state is TagState.MAY_THINK:
            self._num_held_tokens += num_tokens
        elif self._state is TagState.THINKING:
            self.num_reasoning_tokens += num_tokens
            self.num_hidden_tokens += num_tokens

    def finish(self) -> list[ChoiceDelta]:
        if self._state is TagState.THINKING:
            held = "".join((*self._space, self._marker))
            self._space, self._marker = [], ""
            return [*self._think(held), *self._rest.finish()]
        if self._state is TagState.MAY_THINK:
            return merge_texts([*self._answer(), *self._rest.finish()])
        return self._rest.finish()

    def _feed(self, text: str) -> list[ChoiceDelta]:
        if self._state is TagState.MAY_THINK:
            return self._find_opening(text)
        if self._state is TagState.THINKING:
            return self._find_closing(text)
        if self._state is TagState.CLOSED:
            text = text.lstrip(_SPACE)
            if not text:
                return []
            self._state = TagState.ANSWERING
        return self._rest.feed(text)

    def _find_opening(self, text: str) -> list[ChoiceDelta]:
        if not self._marker:
            begin = text.lstrip(_SPACE)
            self._space.append(text[: len(text) - len(begin)])
            text = begin
        self._marker += text
        opening = self._tags.opening
        if self._marker.startswith(opening):
            rest = self._marker.removeprefix(opening)
            self._state, self._space, self._marker = TagState.THINKING, [], ""
            self._count(self._num_held_tokens)
            return self._find_closing(rest)
        return [] if opening.startswith(self._marker) else self._answer()

    def _answer(self) -> list[ChoiceDelta]:
        """Return what was held back, as text: there is no thinking."""
        text = "".join((*self._space, self._marker))
        self._state, self._space, self._marker = TagState.ANSWERING, [], ""
        return self._rest.feed(text)

    def _find_closing(self, new: str) -> list[ChoiceDelta]:
        text, closing = self._marker + new, self._tags.closing
        found = text.find(closing)
        if found >= 0:
            self._state, self._marker = TagState.CLOSED, ""
            deltas = self._think(text[:found].rstrip(_SPACE))
            return [*deltas, *self._feed(text[found + len(closing) :])]
        end = text.rfind(closing[0], max(0, len(text) - len(closing) + 1))
        if end < 0 or not closing.startswith(text[end:]):
            end = len(text)
        self._marker = text[end:]
        stripped = text[:end].rstrip(_SPACE)
        deltas = self._think(stripped)
        self._space.append(text[len(stripped) : end])
        return deltas

    def _think(self, text: str) -> list[ChoiceDelta]:
        if not text:
            return []
        text = "".join((*self._space, text)) if self._has_reasoning else text.lstrip(_SPACE)
        self._space = []
        self._has_reasoning = self._has_reasoning or bool(text)
        return [ReasoningDelta(text)] if text else []
