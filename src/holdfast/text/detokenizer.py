"""An answer's text, as its tokens come in.

The invariant: all that `push` and `flush` gave, put together, is `Tokenizer.decode` of the ids pushed, and
no piece ends inside a character. Bytes that may still become a character wait; bytes that no longer can
become U+FFFD.

Byte-wise tokenizers (`token_text`) go through an incremental UTF-8 reader: constant work for each token.
Any other decoder is asked about a short window, once with and once without the new tokens: the difference
is the new text.
"""

import codecs
from collections.abc import Sequence

from holdfast.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_HELD = 5  # a character has at most four bytes, so more tokens than that never wait for one


class Detokenizer:
    """One answer's text. Behind `prompt_ids` that hold any text, an answer keeps the space it begins with."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        # From the end: the last tokens of a prompt nearly always settle it.
        context = next((id_ for id_ in reversed(prompt_ids) if id_ not in self._skipped), None)
        self._reader: _ByteReader | _WindowReader
        if tokenizer.is_bytewise:
            self._reader = _ByteReader(tokenizer, at_start=context is None)
        else:
            self._reader = _WindowReader(tokenizer, context)
        self._pieces: list[str] = []

    def push(self, token_id: int) -> str:
        """The text that this token completes; often a word, sometimes nothing yet."""
        if token_id in self._skipped:
            return ""
        return self._keep(self._reader.push(token_id))

    def flush(self) -> str:
        """What is left when no more tokens will come."""
        return self._keep(self._reader.flush())

    @property
    def text(self) -> str:
        """All text given so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def _keep(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece


class _ByteReader:
    """Joins the bytes of tokens; only the bytes of one unfinished character wait."""

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._drops_space = at_start and tokenizer.drops_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        raw = self._token_bytes(token_id)
        if self._drops_space and raw:
            self._drops_space = False
            raw = raw.removeprefix(b" ")
        return self._utf8.decode(raw)

    def flush(self) -> str:
        piece = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return piece


class _WindowReader:
    """Decodes a window of the last tokens twice, without and with those that wait.

    settled: the tokens of the last piece given (or the prompt's last), which decide how the next ones begin
    waiting: tokens whose text ends in an unfinished character
    """

    def __init__(self, tokenizer: Tokenizer, context: int | None) -> None:
        self._decode = tokenizer.decode_window
        self._settled: list[int] = [] if context is None else [context]
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        self._waiting.append(token_id)
        piece = self._difference()
        if not piece and len(self._waiting) >= _MAX_HELD:  # tokens without text have nothing to wait for
            self._settled, self._waiting = (self._settled + self._waiting)[-_MAX_HELD:], []
        if not piece or (piece.endswith(_REPLACEMENT) and len(self._waiting) < _MAX_HELD):
            return ""
        self._settled, self._waiting = self._waiting, []
        return piece

    def flush(self) -> str:
        piece = self._difference() if self._waiting else ""
        self._settled, self._waiting = self._settled + self._waiting, []
        return piece

    def _difference(self) -> str:
        before = self._decode(self._settled) if self._settled else ""
        return self._decode(self._settled + self._waiting)[len(before) :]
