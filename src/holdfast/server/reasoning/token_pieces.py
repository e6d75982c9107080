"""Splits the text of an answer at its tokens, as it arrives from the engine.

A format may be written in special tokens. In the text they look like the same characters written by
ordinary tokens, which are content; only the ids tell them apart. The engine sends ids and text, but
text may come later than its tokens: a character may be unfinished, or the text may become a stop
string. `TokenPieces` detokenises the ids again and hands out of each token's text what the engine
has shown. Text that a stop string cut off, and the text of a token that ended the answer, are never
shown.

    ids      <|channel|>  analysis  <|message|>  We  ...
    pieces   control      text      control      text
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.results import Delta
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """Text of one token. control: it is one of the format's special tokens.

    num_tokens: 1 where a token begins, 0 for the rest of its text.
    """

    text: str
    control: bool = False
    num_tokens: int = 1


class _Pending(NamedTuple):
    text: str
    control: bool
    is_dropped: bool  # a special token that is not part of the text
    num_tokens: int


class TokenPieces:
    """The pieces of one answer.

    controls: the format's special tokens, their text by id. skip_special_tokens: leave out all
    others, as the client asked; the engine does it itself if there are no controls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        controls: Mapping[int, str],
        *,
        skip_special_tokens: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._controls = controls
        self._skips = skip_special_tokens
        in_engine = skip_special_tokens and not controls
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=in_engine)
        self._pending: deque[_Pending] = deque()

    @property
    def has_controls(self) -> bool:
        return bool(self._controls)

    def split(self, delta: Delta) -> list[Piece]:
        """Return the pieces that this delta shows."""
        for token_id in delta.token_ids:
            self._push(token_id)
        if delta.finish_reason is not None and (rest := self._detokenizer.flush()):
            self._pending.append(_Pending(rest, False, False, 0))
        pieces = self._take(delta.text)
        if delta.finish_reason is not None:
            pieces += [Piece("", num_tokens=one.num_tokens) for one in self._pending]
            self._pending.clear()
        return pieces

    def _push(self, token_id: int) -> None:
        text = self._detokenizer.push(token_id)
        is_control = token_id in self._controls
        is_special = is_control or (bool(self._controls) and token_id in self._tokenizer.special_ids)
        if not is_special:
            self._pending.append(_Pending(text, False, False, 1))
            return
        name = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        before = text.removesuffix(name)  # an unfinished character
        if before:
            self._pending.append(_Pending(before, False, False, 0))
        is_dropped = self._skips and not is_control
        self._pending.append(_Pending(text[len(before) :], is_control, is_dropped, 1))

    def _take(self, shown: str) -> list[Piece]:
        pieces: list[Piece] = []
        at = 0
        while self._pending:
            text, control, is_dropped, num_tokens = self._pending[0]
            part = shown[at : at + len(text)]
            if not text.startswith(part):  # not the engine's text: nothing is known about its tokens
                self._pending.clear()
                break
            at += len(part)
            if len(part) == len(text):
                self._pending.popleft()
                pieces.append(Piece("" if is_dropped else text, control, num_tokens))
                continue
            if part:  # a stop string may begin here
                self._pending[0] = _Pending(text[len(part) :], False, is_dropped, 0)
                pieces.append(Piece("" if is_dropped else part, False, num_tokens))
            break
        return [*pieces, Piece(shown[at:], num_tokens=0)] if at < len(shown) else pieces
