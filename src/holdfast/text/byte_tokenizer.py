"""A tokenizer for models that have none: one token a byte. Ids behind the bytes have no text."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from holdfast.text.tokenizer import Tokenizer
from holdfast.text.tokenizer_parts import TokenizerParts


def byte_tokenizer() -> Tokenizer:
    """One token a byte; the ids behind them have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerParts(backend, len(alphabet), lambda: b"bytes"))
