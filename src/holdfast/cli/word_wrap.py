"""Wraps streamed text at word boundaries, for a terminal.

A terminal breaks a line that is too long inside a word. Here the line break is put before the word
instead. The last word is held back until it is known to be complete, so text appears one word late
and never has to be moved. Lines of code (indented by four columns, or between fences) are not
wrapped: a line break would change them.
"""

import re
import shutil
from collections.abc import Callable

_PIECES = re.compile(r"\n|[^\S\n]+|[^\s]+")
_FENCE = "```"
_CODE_INDENT = 4


class WordWrap:
    """Calls write with the text, wrapped to the terminal's width."""

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
        """Write all that is held back."""
        self._put_word()
        self._put(self._space)
        self._space = ""

    def advance(self, num_cells: int) -> None:
        """Something else was written in this line."""
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
    """The columns that a terminal shows it in."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
