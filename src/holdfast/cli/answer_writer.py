"""Write an answer to the terminal as it is streamed, with the thoughts of a thinking model.

stdout gets the answer only, byte for byte; in a terminal it is wrapped between words. Thoughts go
to stderr. If both are terminals, each thought is shown dimmed after the text it is about. Otherwise
each thought is a line of its own, after the text that was read since the last one. Trivial thoughts
are not shown.

    inline      the coin is heads, flip it ‹tails› and again ‹heads›
                heads
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.console import note, stderr
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM
    from holdfast.text.tokenizer import Tokenizer

_STYLE = "dim italic"
_PIECES = re.compile(r"\n|[^\S\n]+|[^\s]+")
_FENCE = "```"
_CODE_INDENT = 4


class PromptText:
    """The text of a prompt, taken in order. No piece of it ends inside a character."""

    def __init__(self, tokenizer: "Tokenizer", prompt: str | Sequence[int]) -> None:
        from holdfast.text.detokenizer import Detokenizer

        self._ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._text = Detokenizer(tokenizer)
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._ids)

    def take_until(self, length: int) -> str:
        """Return the text up to this number of tokens, from where the last call ended."""
        pieces = [self._text.push(token_id) for token_id in self._ids[self._num_taken : length]]
        self._num_taken = max(self._num_taken, length)
        return "".join(pieces) + (self._text.flush() if self._num_taken >= len(self._ids) else "")


class AnswerWriter:
    """Write one answer as it arrives. A prompt is shown first, with its thoughts."""

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
        if not text or not self._with_thoughts:
            return
        from rich.text import Text

        sys.stdout.flush()
        stderr().print(Text(text, style=_STYLE), end="")
        self._line_is_open = not self._answering

    def end(self) -> None:
        """End the answer: write what is held back and a line break."""
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
    """Return whether this model thinks with these settings. A note says why not."""
    thinks = llm.engine.limits.thinking is not None
    if not thinks:
        note("this model does not think: there are no thoughts to show")
    elif not params.think:
        note("without thinking there are no thoughts to show")
    return thinks and params.think


class NewThoughts:
    """Select the thoughts that the last turn did not show. Every turn reads the conversation again."""

    def __init__(self, last: Sequence[Thought] = ()) -> None:
        self._last = last
        self._is_new = False
        self.turn: list[Thought] = []

    def select(self, thoughts: Sequence[Thought]) -> list[Thought]:
        """Return these thoughts, from the first on that differs from the last turn's."""
        new = []
        for thought in thoughts:
            at = len(self.turn)
            self.turn.append(thought)
            self._is_new = self._is_new or at >= len(self._last) or self._last[at] != thought
            if self._is_new:
                new.append(thought)
        return new


def thought_line(thought: Thought) -> str:
    """Return a thought on one line, or its token ids if they have no text."""
    return " ".join(thought.text.split()) or " ".join(f"#{token_id}" for token_id in thought.token_ids)


def _print_line(text: str, mark: str = "") -> None:
    from rich.text import Text

    words = " ".join(text.split())
    stderr().print(Text.assemble(f"{words} " if words and mark else words, (mark, _STYLE)))


class WordWrap:
    """Wrap streamed text at word boundaries, to the terminal's width.

    A terminal breaks a line that is too long inside a word. Here the line break is put before the word
    instead. The last word is held back until it is known to be complete, so text appears one word late
    and never has to be moved. Lines of code (indented by four columns, or between fences) are not
    wrapped: a line break would change them.
    """

    def __init__(self, write: Callable[[str], object], width: Callable[[], int] | None = None) -> None:
        self._write = write
        self._width = width or (lambda: shutil.get_terminal_size().columns)
        self._column = 0
        self._space = ""  # held back: it is dropped where a line is broken
        self._word = ""  # held back: it may go on
        self._is_inside = False  # a part of a word longer than a line has been written
        self._is_line_start = True
        self._in_fence = False
        self._is_code = False

    def write(self, text: str) -> None:
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._end_line()
            elif piece.isspace():
                self._put_word()
                self._space += piece
                self._is_inside = False
            else:
                self._add(piece)

    def flush(self) -> None:
        self._put_word()
        self._put(self._space)
        self._space = ""

    def advance(self, num_cells: int) -> None:
        self._column += num_cells

    def _add(self, piece: str) -> None:
        """Add to the last word. Between wide characters, as of Chinese, a line may be broken."""
        for character in piece:
            if _cells(character) > 1:
                self._put_word()
                self._word, self._is_inside = character, False
                self._put_word()
            else:
                self._word += character
        if _cells(self._word) >= self._width():  # longer than a line: the terminal breaks it
            self._put_word()
            self._is_inside = True

    def _put_word(self) -> None:
        if not self._word:
            return
        word, space, self._word, self._space = self._word, self._space, "", ""
        if self._is_line_start:
            self._is_line_start = False
            self._is_code = self._in_fence or _cells(space.expandtabs()) >= _CODE_INDENT
            if word.startswith(_FENCE):
                self._in_fence, self._is_code = not self._in_fence, True
        needed = self._column + _cells(space) + _cells(word)
        is_fixed = self._is_code or self._is_inside
        if self._column and not is_fixed and needed > self._width():
            self._write("\n")
            self._column, space = 0, ""
        self._put(space + word)

    def _end_line(self) -> None:
        self.flush()
        self._write("\n")
        self._column, self._is_line_start, self._is_inside = 0, True, False

    def _put(self, text: str) -> None:
        if text:
            self._write(text)
            self._column += _cells(text.expandtabs())


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
