"""What a tokenizer consists of, independent of the file it was read from.

The readers (a model folder, a GGUF file) make a `TokenizerData`; `Tokenizer` uses nothing else. The
invariant: `identity` covers everything that decides the ids of a text and the text of ids, and
nothing else.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import tokenizers

from holdfast.errors import HoldfastError, TokenizerError

DEFAULT_CLASS = "PreTrainedTokenizerFast"
_MAX_REASON_CHARS = 200
HARMONY_ENDS = ("<|return|>", "<|call|>")  # in gpt-oss <|end|> ends a message of a longer answer


@dataclass(frozen=True)
class TextAffixes:
    """The special tokens added before and after a text."""

    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()


class TokenizerIdentity:
    """The digest of what `describe` returns. It is made once, and then what it was made of is dropped: a
    vocabulary takes megabytes."""

    def __init__(self, describe: Callable[[], bytes]) -> None:
        self._describe: Callable[[], bytes] | None = describe
        self._digest = ""
        self._lock = threading.Lock()

    def digest(self) -> str:
        """Return SHA-256 in hexadecimal."""
        with self._lock:
            if self._describe is not None:
                self._digest = hashlib.sha256(self._describe()).hexdigest()
                self._describe = None
            return self._digest


@dataclass(frozen=True)
class TokenizerData:
    """A tokenizer as read. `affixes` is None if the backend adds special tokens itself."""

    backend: tokenizers.Tokenizer
    vocab_size: int
    identity: TokenizerIdentity
    affixes: TextAffixes | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    controls_in_content: bool = False  # special tokens typed in messages and tools are not text
    class_name: str = DEFAULT_CLASS  # the class in transformers that reads the same files


def find_special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids that the backend marks as special."""
    return frozenset(id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special)


def find_harmony_ends(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids that end an answer of gpt-oss, if these are its special tokens. config.json names only
    the first of them."""
    special = {
        token.content: id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
    }
    is_harmony = all(text in special for text in HARMONY_ENDS)
    return frozenset(special[text] for text in HARMONY_ENDS) if is_harmony else frozenset()


@contextmanager
def guard_backend() -> Iterator[None]:
    """Raise errors of the `tokenizers` library as errors of one request.

    A pattern that backtracks without end is stopped by the library's pattern engine after a fixed
    number of steps. That is a panic, which is a `BaseException`.
    """
    try:
        yield
    except HoldfastError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error)[:_MAX_REASON_CHARS] or type(error).__name__
        raise TokenizerError(f"the model's tokenizer failed at this text: {reason}") from None
