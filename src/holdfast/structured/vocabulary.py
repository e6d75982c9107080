"""What every token id writes, as grammars need it: the bytes of the text, nothing for what is no text.

The invariant: for ids that write something, these bytes one behind the other are `Tokenizer.decode`'s text behind a
prompt. Special tokens write nothing, though they have a name, nor do ids that end an answer, ids behind the tokenizer's
vocabulary, and the odd token that llguidance cannot hold. So none of them is ever allowed as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidRequest
from holdfast.text.tokenizer import Tokenizer

_MAX_TOKEN_BYTES = 1000  # llguidance's trie breaks at 1024
_NO_TEXT_BYTE = 0xFF  # never part of UTF-8; llguidance marks special tokens with it


@dataclass(frozen=True)
class Vocabulary:
    """The texts by id, as many as the model has logits, and the ids that end an answer."""

    texts: Sequence[bytes]
    eos_ids: frozenset[int]

    def may_follow(self, token_id: int) -> bool:
        """Whether a grammar can know this token at all."""
        if token_id in self.eos_ids:
            return True
        return 0 <= token_id < len(self.texts) and bool(self.texts[token_id])


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> Vocabulary:
    """The vocabulary of a model whose logits are vocab_size."""
    if not tokenizer.is_bytewise:
        raise InvalidRequest(
            "structured output needs a tokenizer that writes its text token by token (byte-level or byte-fallback); "
            "this model's does not"
        )
    ends = frozenset(id_ for id_ in eos_ids if 0 <= id_ < vocab_size)
    if not ends:
        raise InvalidRequest(
            "structured output needs a token that ends the answer, and this model has none; "
            "set eos_token_id in its configuration"
        )
    silent = tokenizer.special_ids | ends
    texts = [
        b"" if id_ in silent else _text(tokenizer.token_bytes(id_)) for id_ in range(tokenizer.vocab_size)
    ]
    texts += [b""] * (vocab_size - len(texts))
    return Vocabulary(tuple(texts[:vocab_size]), ends)


def _text(raw: bytes) -> bytes:
    if len(raw) > _MAX_TOKEN_BYTES or raw[:1] == bytes([_NO_TEXT_BYTE]):
        return b""
    return raw
