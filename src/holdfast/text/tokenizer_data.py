"""What a tokenizer is made of, whatever file it was read from.

Readers (a model folder, a GGUF file) make one `TokenizerData`; `Tokenizer` works from nothing else. The
invariant: `identity` covers everything that decides which ids a text gets and which text ids get, and
nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class Framing:
    """The ids put before and behind a text when special tokens are asked for."""

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenizerData:
    """A tokenizer as its file describes it. `framing` is None where the backend itself frames."""

    backend: tokenizers.Tokenizer
    vocab_size: int
    identity: Callable[[], bytes]
    framing: Framing | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def find_special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids the backend itself calls special."""
    return frozenset(id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special)
