"""What a tokenizer consists of, independent of the file it was read from.

The readers (a model folder, a GGUF file) make a `TokenizerData`; `Tokenizer` uses nothing else. The
invariant: `identity` covers everything that decides the ids of a text and the text of ids, and
nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class TextAffixes:
    """The special tokens added before and after a text."""

    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenizerData:
    """A tokenizer as read. `affixes` is None if the backend adds special tokens itself."""

    backend: tokenizers.Tokenizer
    vocab_size: int
    identity: Callable[[], bytes]
    affixes: TextAffixes | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    class_name: str = "PreTrainedTokenizerFast"  # the class in transformers that reads the same files


def find_special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids that the backend marks as special."""
    return frozenset(id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special)
