"""A prompt's tokens as text, from its beginning on: `PromptText` for the `Writer` of an answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.text.tokenizer import Tokenizer


class TokenText:
    """No piece ends inside a character: one that is cut in two by a chunk's end comes with the next piece."""

    def __init__(self, tokenizer: "Tokenizer", prompt: str | Sequence[int]) -> None:
        from holdfast.text.detokenizer import Detokenizer

        self._ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._text = Detokenizer(tokenizer)
        self._num_read = 0

    def __len__(self) -> int:
        return len(self._ids)

    def until(self, length: int) -> str:
        pieces = [self._text.push(token_id) for token_id in self._ids[self._num_read : length]]
        self._num_read = max(self._num_read, length)
        return "".join(pieces) + (self._text.flush() if self._num_read >= len(self._ids) else "")
