"""Write an answer to the terminal as it is streamed, with the thoughts of a thinking model.

stdout gets the answer only, byte for byte; in a terminal it is wrapped between words. Thoughts go
to stderr. If both are terminals, each thought is shown dimmed after the text it is about. Otherwise
each thought is a line of its own, after the text that was read since the last one. Trivial thoughts
are not shown.

    inline      the coin is heads, flip it ‹tails› and again ‹heads›
                heads
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.console import note, stderr
from holdfast.cli.word_wrap import WordWrap
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM
    from holdfast.text.tokenizer import Tokenizer

_STYLE = "dim italic"


class PromptText:
    """The text of a prompt, taken in order, up to a number of tokens.

    No piece of it ends inside a character.
    """

    def __init__(self, tokenizer: "Tokenizer", prompt: str | Sequence[int]) -> None:
        from holdfast.text.detokenizer import Detokenizer

        self._ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._text = Detokenizer(tokenizer)
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._ids)

    def take_until(self, length: int) -> str:
        """The text up to this number of tokens, from where the last call ended."""
        pieces = [self._text.push(token_id) for token_id in self._ids[self._num_taken : length]]
        self._num_taken = max(self._num_taken, length)
        return "".join(pieces) + (self._text.flush() if self._num_taken >= len(self._ids) else "")


class AnswerWriter:
    """Writes one answer as it arrives.

    With a prompt, the prompt is shown first, with its thoughts.
    """

    def __init__(self, *, with_thoughts: bool = False, prompt: PromptText | None = None) -> None:
        self._with_thoughts = with_thoughts
        self._prompt = prompt if with_thoughts else None
        self.inline = with_thoughts and sys.stdout.isatty() and stderr().is_terminal
        self._answering = False
        self._line_is_open = False  # inline, before the answer
        self._unshown = ""  # not inline: text since the last thought
        self._wrap = WordWrap(sys.stdout.write) if sys.stdout.isatty() else None

    def write(self, text: str, thoughts: Iterable[Thought] = ()) -> None:
        """Write the next text. The thoughts are those before it."""
        if self._with_thoughts:
            for thought in thoughts:
                if thought.token_ids:
                    self._write_thought(thought)
        if text:
            self._begin_answer()
            if self._with_thoughts and not self.inline:
                self._unshown += text
            (sys.stdout if self._wrap is None else self._wrap).write(text)
            sys.stdout.flush()

    def write_reasoning(self, text: str) -> None:
        """Write thinking before the answer, dimmed, to stderr."""
        if not text or not self._with_thoughts:
            return
        from rich.text import Text

        sys.stdout.flush()
        stderr().print(Text(text, style=_STYLE), end="")
        self._line_is_open = not self._answering

    def end(self) -> None:
        """The answer is complete."""
        self._begin_answer()
        if self._wrap is not None:
            self._wrap.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _write_thought(self, thought: Thought) -> None:
        if self._prompt is not None and thought.position < len(self._prompt):
            self._show_prompt(self._prompt.take_until(thought.position + 1))
        elif self._prompt is not None:
            self._begin_answer()
        mark = f"‹{thought_line(thought)}›"
        if not self.inline:
            _print_line(self._unshown, mark)
            self._unshown = ""
            return
        from rich.text import Text

        starts_line = not self._answering and not self._line_is_open
        shown = Text(mark if starts_line else f" {mark}", style=_STYLE)
        if self._wrap is not None and self._answering:
            self._wrap.flush()
            self._wrap.advance(shown.cell_len)
        sys.stdout.flush()
        stderr().print(shown, end="")
        self._line_is_open = not self._answering

    def _begin_answer(self) -> None:
        """Show the rest of the prompt, once."""
        if self._answering:
            return
        self._answering = True
        if self._prompt is not None:
            self._show_prompt(self._prompt.take_until(len(self._prompt)))
        if self._line_is_open:
            stderr().print()
        elif not self.inline and self._unshown.strip():
            _print_line(self._unshown)
        self._unshown = ""

    def _show_prompt(self, text: str) -> None:
        if not self.inline:
            self._unshown += text
        elif text:
            from rich.text import Text

            stderr().print(Text(text), end="")
            self._line_is_open = not text.endswith("\n")


def has_thoughts(llm: "LLM", params: SamplingParams) -> bool:
    """Whether this model thinks with these settings; a note says why not."""
    if not llm.engine.limits.max_thought:
        note("this model does not think: there are no thoughts to show")
    elif not params.think:
        note("without thinking there are no thoughts to show")
    return llm.engine.limits.max_thought > 0 and params.think


class NewThoughts:
    """Selects the thoughts that the last turn did not show.

    Every turn reads the whole conversation again.
    """

    def __init__(self) -> None:
        self._last: list[Thought] = []
        self._turn: list[Thought] = []
        self._is_new = False

    def begin_turn(self) -> None:
        self._last, self._turn, self._is_new = self._turn, [], False

    def forget(self) -> None:
        self._turn = []

    def select(self, thoughts: Sequence[Thought]) -> list[Thought]:
        """These thoughts, from the first on that differs from the last turn's."""
        new = []
        for thought in thoughts:
            at = len(self._turn)
            self._turn.append(thought)
            self._is_new = self._is_new or at >= len(self._last) or self._last[at] != thought
            if self._is_new:
                new.append(thought)
        return new


def thought_line(thought: Thought) -> str:
    """A thought on one line; the token ids if they have no text."""
    return " ".join(thought.text.split()) or " ".join(f"#{token_id}" for token_id in thought.token_ids)


def _print_line(text: str, mark: str = "") -> None:
    from rich.text import Text

    words = " ".join(text.split())
    stderr().print(Text.assemble(f"{words} " if words and mark else words, (mark, _STYLE)))
