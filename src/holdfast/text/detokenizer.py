"""Incremental detokenisation: the text of an answer, token by token.

The invariant: the concatenated results of `push` and `flush` are `Tokenizer.decode` of the pushed
ids, and no result ends inside a character. Bytes that may still become a character are held back;
bytes that cannot are replaced by U+FFFD.

Byte-wise tokenizers (`bytewise`) go through an incremental UTF-8 decoder: constant work for each
token. Any other decoder is applied to a short window, with and without the new tokens; the
difference is the new text.

`tokenizers.decoders.DecodeStream` cannot keep the invariant:

- It has no flush. Text that ends in an unfinished or invalid character is never returned: of random
  single bytes, two streams in five lost their end.
- With byte-fallback decoders (sentencepiece) it raises "Invalid prefix encountered", as soon as a
  byte token changes how the tokens before it decode. In random ids with byte tokens no stream was
  right.
- It knows no prompt: the first token of an answer after a prompt would lose its leading space.
"""

import codecs
from collections.abc import Sequence

from holdfast.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_HELD = 5  # a character has at most four bytes, so no token is held back longer


class Detokenizer:
    """One answer's text. After `prompt_ids` with any text, the answer keeps its leading space."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        # Search from the end: the last token of a prompt nearly always has text.
        context = next((id_ for id_ in reversed(prompt_ids) if id_ not in self._skipped), None)
        self._reader: _ByteReader | _WindowReader
        if tokenizer.is_bytewise:
            self._reader = _ByteReader(tokenizer, at_start=context is None)
        else:
            self._reader = _WindowReader(tokenizer, context)
        self._texts: list[str] = []

    def push(self, token_id: int) -> str:
        """Return the text that this token completes. It is empty while a character is unfinished."""
        if token_id in self._skipped:
            return ""
        return self._keep(self._reader.push(token_id))

    def extend(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete: the same as `push` for each of them."""
        return self._keep(self._reader.extend([one for one in token_ids if one not in self._skipped]))

    @property
    def gains_by_batching(self) -> bool:
        """Whether many tokens at once cost less than one by one."""
        return isinstance(self._reader, _ByteReader)

    def flush(self) -> str:
        """Return the text still held back, at the end of the answer."""
        return self._keep(self._reader.flush())

    @property
    def text(self) -> str:
        """All text returned so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    def _keep(self, text: str) -> str:
        if text:
            self._texts.append(text)
        return text


class _ByteReader:
    """Concatenates the bytes of tokens. Holds back the bytes of one unfinished character."""

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._drops_space = at_start and tokenizer.drops_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decode(self._token_bytes(token_id))

    def extend(self, token_ids: Sequence[int]) -> str:
        return self._decode(b"".join(map(self._token_bytes, token_ids)))

    def _decode(self, raw: bytes) -> str:
        if self._drops_space and raw:
            self._drops_space = False
            raw = raw.removeprefix(b" ")
        return self._utf8.decode(raw)

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _WindowReader:
    """Decode a window of the last tokens twice, without and with the held-back ones.

    settled   tokens of the text returned last (or the prompt's last token): they decide how the
              next text begins
    held      tokens whose text ends in an unfinished character
    """

    def __init__(self, tokenizer: Tokenizer, context: int | None) -> None:
        self._decode = tokenizer.decode_window
        self._settled: list[int] = [] if context is None else [context]
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._difference()
        if not text and len(self._held) >= _MAX_HELD:  # tokens without text
            self._settled, self._held = (self._settled + self._held)[-_MAX_HELD:], []
        if not text or (text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD):
            return ""
        self._settled, self._held = self._held, []
        return text

    def extend(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        text = self._difference() if self._held else ""
        self._settled, self._held = self._settled + self._held, []
        return text

    def _difference(self) -> str:
        before = self._decode(self._settled) if self._settled else ""
        return self._decode(self._settled + self._held)[len(before) :]
