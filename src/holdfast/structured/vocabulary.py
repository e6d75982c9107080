"""The bytes of every token id, as grammars need them.

The invariant: for ids that are text, the concatenated bytes are `Tokenizer.decode`'s text after a
prompt. A special token has the byte 0xFF and its name, llguidance's notation: 0xFF is never part of
UTF-8, so a grammar allows the token only where it names it, and never as text. Ids that end an
answer have no bytes. Neither have ids beyond the tokenizer's vocabulary, nor the few tokens that
llguidance cannot represent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidRequest
from holdfast.text.tokenizer import Tokenizer

_MAX_TOKEN_BYTES = 1000  # llguidance's trie breaks at 1024
_SPECIAL = b"\xff"  # before the name of a special token


@dataclass(frozen=True)
class Vocabulary:
    """The bytes by token id, as many as the model has logits, and the ids that end an answer."""

    texts: Sequence[bytes]
    eos_ids: frozenset[int]

    def is_known(self, token_id: int) -> bool:
        """Return whether a grammar can ever allow this token."""
        if token_id in self.eos_ids:
            return True
        return 0 <= token_id < len(self.texts) and bool(self.texts[token_id])


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> Vocabulary:
    """Return the vocabulary of a model with `vocab_size` logits."""
    if not tokenizer.is_bytewise:
        raise InvalidRequest(
            "structured output needs a tokenizer whose tokens are byte sequences (byte-level or byte-fallback); "
            "this model's is not"
        )
    known_eos_ids = frozenset(id_ for id_ in eos_ids if 0 <= id_ < vocab_size)
    if not known_eos_ids:
        raise InvalidRequest(
            "structured output needs an end-of-text token, and this model has none; "
            "set eos_token_id in its configuration"
        )
    texts = [_text(tokenizer, id_, known_eos_ids) for id_ in range(tokenizer.vocab_size)]
    texts += [b""] * (vocab_size - len(texts))
    return Vocabulary(tuple(texts[:vocab_size]), known_eos_ids)


def _text(tokenizer: Tokenizer, id_: int, eos_ids: frozenset[int]) -> bytes:
    raw = tokenizer.token_bytes(id_)
    if id_ in eos_ids or len(raw) > _MAX_TOKEN_BYTES:
        return b""
    if id_ in tokenizer.special_ids:
        return _SPECIAL + raw if raw else b""
    return b"" if raw[:1] == _SPECIAL else raw
