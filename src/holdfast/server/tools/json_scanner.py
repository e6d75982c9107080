"""Follows JSON as it arrives, letter by letter, and says where it ends or breaks.

It is as strict as the standard: no NaN, no bare line break in a text, no comma too many. So what breaks is seen at once, and
whoever looks for JSON in a text of n letters does no more than some n steps, whatever the text is. It looks at each
letter once, and keeps nothing but brackets and an unfinished number.
"""

import re

MAX_DEPTH = 100

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_LETTERS = frozenset("+-.0123456789eE")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_CLOSES = {"{": "}", "[": "]"}


class JsonScanner:
    """One object or list, from its first bracket on. `ended`: it is complete; `broken`: it is no JSON, or too deep."""

    def __init__(self, max_depth: int | None = MAX_DEPTH) -> None:
        self.ended = False
        self.broken = False
        self._step = self._value
        self._max_depth = max_depth
        self._brackets: list[str] = []
        self._is_key = False
        self._digits = 0  # of \u, still to come
        self._number: list[str] = []
        self._word = ""  # the rest of true, false or null

    def feed(self, text: str, start: int = 0) -> int:
        """Takes letters until the value ends or breaks. Returns the place behind the last one taken."""
        at = start
        while at < len(text) and not self.ended and not self.broken:
            if self._step == self._text and (run := _PLAIN.match(text, at)):
                at = run.end()
                continue
            if self._step(text[at]):
                at += 1
        return at

    # Each step looks at one letter and says whether it took it; one it did not take is shown to the next step.

    def _value(self, letter: str) -> bool:
        if letter in _SPACE:
            return bool(self._brackets) or self._break()
        if letter in _CLOSES:
            return self._open(letter)
        if not self._brackets:
            return self._break()
        if letter == '"':
            self._is_key, self._step = False, self._text
        elif letter in _WORDS:
            self._word, self._step = _WORDS[letter][1:], self._rest_of_word
        elif letter == "-" or "0" <= letter <= "9":
            self._number, self._step = [letter], self._rest_of_number
        else:
            return self._break()
        return True

    def _open(self, letter: str) -> bool:
        if self._max_depth is not None and len(self._brackets) >= self._max_depth:
            return self._break()
        self._brackets.append(letter)
        self._step = self._first_key if letter == "{" else self._first_item
        return True

    def _close(self, letter: str) -> bool:
        if letter != _CLOSES[self._brackets.pop()]:
            return self._break()
        self._step = self._behind_value
        self.ended = not self._brackets
        return True

    def _first_key(self, letter: str) -> bool:
        return self._close(letter) if letter == "}" else self._key(letter)

    def _first_item(self, letter: str) -> bool:
        if letter in _SPACE:
            return True
        return self._close(letter) if letter == "]" else self._value(letter)

    def _key(self, letter: str) -> bool:
        if letter in _SPACE:
            return True
        if letter != '"':
            return self._break()
        self._is_key, self._step = True, self._text
        return True

    def _text(self, letter: str) -> bool:
        if letter == '"':
            self._step = self._colon if self._is_key else self._behind_value
        elif letter == "\\":
            self._step = self._escape
        elif letter < " ":
            return self._break()
        return True

    def _escape(self, letter: str) -> bool:
        if letter == "u":
            self._digits, self._step = 4, self._hexadecimal
        elif letter in '"\\/bfnrt':
            self._step = self._text
        else:
            return self._break()
        return True

    def _hexadecimal(self, letter: str) -> bool:
        if letter not in "0123456789abcdefABCDEF":
            return self._break()
        self._digits -= 1
        if not self._digits:
            self._step = self._text
        return True

    def _colon(self, letter: str) -> bool:
        if letter == ":":
            self._step = self._value
        elif letter not in _SPACE:
            return self._break()
        return True

    def _rest_of_word(self, letter: str) -> bool:
        if letter != self._word[0]:
            return self._break()
        self._word = self._word[1:]
        if not self._word:
            self._step = self._behind_value
        return True

    def _rest_of_number(self, letter: str) -> bool:
        if letter in _NUMBER_LETTERS:
            self._number.append(letter)
            return True
        if not _NUMBER.fullmatch("".join(self._number)):
            return self._break()
        self._step = self._behind_value
        return False

    def _behind_value(self, letter: str) -> bool:
        if letter in _SPACE:
            return True
        if letter == ",":
            self._step = self._key if self._brackets[-1] == "{" else self._value
            return True
        return self._close(letter) if letter in "}]" else self._break()

    def _break(self) -> bool:
        self.broken = True
        return False
