"""An incremental JSON scanner: says where a value ends, or that it is invalid, as the text arrives.

It is as strict as the standard: no NaN, no line break in a string, no trailing comma. An error is
found at the first wrong character, so a search for JSON in a text of n characters takes O(n) steps.
Each character is read once; only open brackets and an unfinished number are stored.
`json.JSONDecoder` would have to parse from the start for every new chunk.
"""

import re

MAX_DEPTH = 100

_SPACE = " \t\n\r"
_PLAIN_CHARS = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_CHARS = frozenset("+-.0123456789eE")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_CLOSES = {"{": "}", "[": "]"}


class JsonScanner:
    """Scans one object or list, from its first bracket.

    `ended`: it is complete. `failed`: it is invalid or too deep.
    """

    def __init__(self, max_depth: int | None = MAX_DEPTH) -> None:
        self.ended = False
        self.failed = False
        self._state = self._value
        self._max_depth = max_depth
        self._brackets: list[str] = []
        self._is_key = False
        self._digits = 0  # of \u, still missing
        self._number: list[str] = []
        self._word = ""  # the rest of true, false or null

    def feed(self, text: str, start: int = 0) -> int:
        """Consume characters until the value ends or fails.

        Returns the index after the last one consumed.
        """
        at = start
        while at < len(text) and not self.ended and not self.failed:
            if self._state == self._string and (run := _PLAIN_CHARS.match(text, at)):
                at = run.end()
                continue
            if self._state(text[at]):
                at += 1
        return at

    # Each state method sees one character and returns whether it consumed it; if not, the next
    # state sees it.

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return bool(self._brackets) or self._fail()
        if char in _CLOSES:
            return self._open(char)
        if not self._brackets:
            return self._fail()
        if char == '"':
            self._is_key, self._state = False, self._string
        elif char in _WORDS:
            self._word, self._state = _WORDS[char][1:], self._rest_of_word
        elif char == "-" or "0" <= char <= "9":
            self._number, self._state = [char], self._rest_of_number
        else:
            return self._fail()
        return True

    def _open(self, char: str) -> bool:
        if self._max_depth is not None and len(self._brackets) >= self._max_depth:
            return self._fail()
        self._brackets.append(char)
        self._state = self._first_key if char == "{" else self._first_item
        return True

    def _close(self, char: str) -> bool:
        if char != _CLOSES[self._brackets.pop()]:
            return self._fail()
        self._state = self._after_value
        self.ended = not self._brackets
        return True

    def _first_key(self, char: str) -> bool:
        return self._close(char) if char == "}" else self._key(char)

    def _first_item(self, char: str) -> bool:
        if char in _SPACE:
            return True
        return self._close(char) if char == "]" else self._value(char)

    def _key(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char != '"':
            return self._fail()
        self._is_key, self._state = True, self._string
        return True

    def _string(self, char: str) -> bool:
        if char == '"':
            self._state = self._colon if self._is_key else self._after_value
        elif char == "\\":
            self._state = self._escape
        elif char < " ":
            return self._fail()
        return True

    def _escape(self, char: str) -> bool:
        if char == "u":
            self._digits, self._state = 4, self._hexadecimal
        elif char in '"\\/bfnrt':
            self._state = self._string
        else:
            return self._fail()
        return True

    def _hexadecimal(self, char: str) -> bool:
        if char not in "0123456789abcdefABCDEF":
            return self._fail()
        self._digits -= 1
        if not self._digits:
            self._state = self._string
        return True

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._state = self._value
        elif char not in _SPACE:
            return self._fail()
        return True

    def _rest_of_word(self, char: str) -> bool:
        if char != self._word[0]:
            return self._fail()
        self._word = self._word[1:]
        if not self._word:
            self._state = self._after_value
        return True

    def _rest_of_number(self, char: str) -> bool:
        if char in _NUMBER_CHARS:
            self._number.append(char)
            return True
        if not _NUMBER.fullmatch("".join(self._number)):
            return self._fail()
        self._state = self._after_value
        return False

    def _after_value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char == ",":
            self._state = self._key if self._brackets[-1] == "{" else self._value
            return True
        return self._close(char) if char in "}]" else self._fail()

    def _fail(self) -> bool:
        self.failed = True
        return False
