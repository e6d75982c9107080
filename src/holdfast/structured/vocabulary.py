"""The bytes of every token id, as grammars need them; empty for ids that are not text.

The invariant: for ids with bytes, the concatenated bytes are `Tokenizer.decode`'s text after a
prompt. Special tokens have no bytes, though they have a name. Neither have ids that end an answer,
ids beyond the tokenizer's vocabulary, and the few tokens that llguidance cannot represent. So a
grammar never allows any of them as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidRequest
from holdfast.text.tokenizer import Tokenizer

_MAX_TOKEN_BYTES = 1000  # llguidance's trie breaks at 1024
_NO_TEXT_BYTE = 0xFF  # never part of UTF-8; llguidance marks special tokens with it


@dataclass(frozen=True)
class Vocabulary:
    """The bytes by token id, as many as the model has logits, and the ids that end an answer."""

    texts: Sequence[bytes]
    eos_ids: frozenset[int]

    def is_known(self, token_id: int) -> bool:
        """Whether a grammar can ever allow this token."""
        if token_id in self.eos_ids:
            return True
        return 0 <= token_id < len(self.texts) and bool(self.texts[token_id])


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> Vocabulary:
    """The vocabulary of a model with `vocab_size` logits."""
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
    no_text = tokenizer.special_ids | known_eos_ids
    texts = [
        b"" if id_ in no_text else _usable(tokenizer.token_bytes(id_)) for id_ in range(tokenizer.vocab_size)
    ]
    texts += [b""] * (vocab_size - len(texts))
    return Vocabulary(tuple(texts[:vocab_size]), known_eos_ids)


def _usable(raw: bytes) -> bytes:
    if len(raw) > _MAX_TOKEN_BYTES or raw[:1] == bytes([_NO_TEXT_BYTE]):
        return b""
    return raw
