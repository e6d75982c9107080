"""An answer on its way to the terminal, and what a model that thinks wrote while it read.

stdout is the answer's alone, to the letter: thoughts go to stderr. Where both are terminals they are one text to the eye, and
a thought stands in its place, dimmed; elsewhere each has a line of its own, behind the text it read. Trivial thoughts are not
shown.

    inline      the coin is heads, flip it ‹tails› and again ‹heads›
                heads
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.cli.show import note, stderr
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM

_STYLE = "dim italic"


class PromptText(Protocol):
    """A prompt as text, read from its beginning to its end."""

    def until(self, length: int) -> str:
        """The text of its first length tokens, but for what was read before."""
        ...

    def __len__(self) -> int: ...


class Writer:
    """Writes one answer as it comes, with thoughts or without."""

    def __init__(self, *, with_thoughts: bool = False, prompt: PromptText | None = None) -> None:
        """prompt: shown before the answer, for its thoughts to stand in."""
        self._with_thoughts = with_thoughts
        self._prompt = prompt if with_thoughts else None
        self.inline = with_thoughts and sys.stdout.isatty() and stderr().is_terminal
        self._answering = False
        self._line_is_open = False  # inline, before the answer
        self._read = ""  # elsewhere: since the last thought

    def take(self, text: str, thoughts: Iterable[Thought] = ()) -> None:
        """The next piece. Its thoughts came before its text."""
        if self._with_thoughts:
            for thought in thoughts:
                if thought.token_ids:
                    self._think(thought)
        if text:
            self._begin_answer()
            if self._with_thoughts and not self.inline:
                self._read += text
            sys.stdout.write(text)
            sys.stdout.flush()

    def end(self) -> None:
        """The answer is complete."""
        self._begin_answer()
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _think(self, thought: Thought) -> None:
        if self._prompt is not None and thought.position < len(self._prompt):
            self._show(self._prompt.until(thought.position + 1))
        elif self._prompt is not None:
            self._begin_answer()
        self._mark(thought)

    def _begin_answer(self) -> None:
        """Show what is left of the prompt, once."""
        if self._answering:
            return
        self._answering = True
        if self._prompt is not None:
            self._show(self._prompt.until(len(self._prompt)))
        if self._line_is_open:
            stderr().print()
        elif not self.inline and self._read.strip():
            _print_line(self._read)
        self._read = ""

    def _show(self, text: str) -> None:
        """A piece of the prompt."""
        if not self.inline:
            self._read += text
        elif text:
            from rich.text import Text

            stderr().print(Text(text), end="")
            self._line_is_open = not text.endswith("\n")

    def _mark(self, thought: Thought) -> None:
        mark = f"‹{spell(thought)}›"
        if not self.inline:
            _print_line(self._read, mark)
            self._read = ""
            return
        from rich.text import Text

        sys.stdout.flush()
        starts_line = not self._answering and not self._line_is_open
        stderr().print(Text(mark if starts_line else f" {mark}", style=_STYLE), end="")
        self._line_is_open = not self._answering


def has_thoughts(llm: "LLM", params: SamplingParams) -> bool:
    """Whether there will be any; says why not."""
    if not llm.engine.limits.max_thought:
        note("this model does not think: there are no thoughts to show")
    elif not params.think:
        note("without thinking there are no thoughts to show")
    return llm.engine.limits.max_thought > 0 and params.think


class NewThoughts:
    """In a conversation all of it is read again, turn by turn; what was thought of it in the last turn was shown then."""

    def __init__(self) -> None:
        self._last: list[Thought] = []
        self._turn: list[Thought] = []
        self._is_new = False

    def begin_turn(self) -> None:
        self._last, self._turn, self._is_new = self._turn, [], False

    def forget(self) -> None:
        self._turn = []

    def take(self, thoughts: Sequence[Thought]) -> list[Thought]:
        """Those from the first on that the last turn did not have."""
        new = []
        for thought in thoughts:
            at = len(self._turn)
            self._turn.append(thought)
            self._is_new = self._is_new or at >= len(self._last) or self._last[at] != thought
            if self._is_new:
                new.append(thought)
        return new


def spell(thought: Thought) -> str:
    """A thought on one line; tokens that have no text by their ids."""
    return " ".join(thought.text.split()) or " ".join(f"#{token_id}" for token_id in thought.token_ids)


def _print_line(read: str, mark: str = "") -> None:
    from rich.text import Text

    words = " ".join(read.split())
    stderr().print(Text.assemble(f"{words} " if words and mark else words, (mark, _STYLE)))
