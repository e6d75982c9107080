"""Text to token ids and back.

`Tokenizer` wraps the `tokenizers` library. One thing differs: for byte-wise decoders (`bytewise`)
text is made from the bytes of the tokens, whether they come one by one or all at once, so a
streamed answer and a complete one are the same text. Each invalid UTF-8 sequence becomes one
U+FFFD, as in any UTF-8 decoder. (The library, for byte-fallback tokens, replaces every byte of a
run if one of them is invalid.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from holdfast.core.cancel_token import CancelToken, in_slices
from holdfast.errors import InvalidRequest, ModelNotFound
from holdfast.models.checkpoint import find_gguf
from holdfast.models.gguf.reader import GgufFile
from holdfast.text.bytewise import read_bytewise
from holdfast.text.folder_tokenizer import read_folder_tokenizer
from holdfast.text.gguf_tokenizer import read_gguf_tokenizer
from holdfast.text.special_tokens import Span, SpecialTokens
from holdfast.text.token_bounds import SLICE_CHARS, TokenBounds
from holdfast.text.tokenizer_data import TokenizerData, TokenizerIdentity, guard_backend


def open_tokenizer(path: Path, *, metadata: Mapping[str, object] | None = None) -> "Tokenizer":
    """Return the tokenizer of a model folder or a GGUF file. With a GGUF file's `metadata` the file is not
    read again."""
    if metadata is not None:
        return Tokenizer(read_gguf_tokenizer(metadata))
    if not path.exists():
        raise ModelNotFound(f"there is no model at {path}")
    gguf_file = path if path.is_file() else find_gguf(path)
    if gguf_file is None:
        return Tokenizer(read_folder_tokenizer(path))
    return Tokenizer(read_gguf_tokenizer(GgufFile(gguf_file).metadata))


class Tokenizer:
    """Encode and decode. Immutable.

    vocab_size: one more than the largest id; a model may have more logits than that.
    eos_token_ids: every id that ends an answer.
    special_ids: ids that are not text: left out of answers.
    special_tokens: the named ones, "bos_token" and so on, as chat templates expect them.
    chat_templates: all chat templates by name.
    class_name: the name of the class in transformers that reads the same files.
    controls_in_content: whether special tokens typed in messages and tools control the model.
    is_bytewise: whether a text is the concatenated bytes of its tokens.
    drops_first_space: whether decoding drops the leading space of a text (byte-wise decoders only).
    """

    def __init__(self, data: TokenizerData) -> None:
        self._data = data
        decoder = data.backend.decoder
        state = None if decoder is None else cast("bytes", decoder.__getstate__()).decode()
        self._bytewise = read_bytewise(state)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size: Final = data.vocab_size
        self.bos_token_id: Final = data.bos_token_id
        self.eos_token_ids: Final = data.eos_token_ids
        self.special_ids: Final = data.special_ids
        self.special_tokens: Final[Mapping[str, str]] = MappingProxyType(dict(data.special_tokens))
        self.chat_templates: Final[Mapping[str, str]] = MappingProxyType(dict(data.chat_templates))
        self.class_name: Final = data.class_name
        self.controls_in_content: Final = data.controls_in_content
        self.is_bytewise: Final = self._bytewise is not None
        self.drops_first_space: Final = self._bytewise is not None and self._bytewise.drops_first_space

    def added_id(self, text: str) -> int | None:
        """Return the id of the added token with this text, special or not, or None if there is none."""
        return self._added_ids.get(text)

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token with this text, or None if there is none."""
        found = self.added_id(text)
        return found if found in self.special_ids else None

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {one.content: id_ for id_, one in self._data.backend.get_added_tokens_decoder().items()}

    @property
    def chat_template(self) -> str | None:
        """The chat template's source: the only one, or the one called "default"."""
        if len(self.chat_templates) == 1:
            return next(iter(self.chat_templates.values()))
        return self.chat_templates.get("default")

    @property
    def rendered_templates(self) -> tuple[str | None, str | None]:
        """The sources for requests without and with tools, if the latter have their own. Other templates
        decide nothing."""
        return self.chat_template, self.chat_templates.get("tool_use")

    @cached_property
    def control_tokens(self) -> SpecialTokens:
        """The special tokens as strings that a client could type."""
        data = self._data
        return SpecialTokens(data.backend, data.special_ids, [one for one in self.rendered_templates if one])

    def encode(
        self, text: str, *, add_special_tokens: bool = True, content: Sequence[Span] = ()
    ) -> list[int]:
        """Return the ids of a text. A rendered template already has its special tokens.

        content: spans of the text in which special tokens are ordinary text.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"a prompt is a string or a list of token ids, not {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text is not valid Unicode: a lone surrogate at {error.start}"
            ) from error
        affixes = self._data.affixes
        with guard_backend():
            ids = self.control_tokens.encode(text, content) if content else None
            if ids is None:
                adds = affixes is None and add_special_tokens
                ids = self._data.backend.encode_batch([text], add_special_tokens=adds)[
                    0
                ].ids  # without the GIL
        if affixes is None or not add_special_tokens:
            return list(ids)
        return [*affixes.prefix_ids, *ids, *affixes.suffix_ids]

    @cached_property
    def bounds(self) -> TokenBounds:
        """What can be said about the tokens of a text before it is tokenised. Slow the first time."""
        data = self._data
        return TokenBounds(data.backend, self.vocab_size, self.token_bytes if self.is_bytewise else None)

    def encode_slices(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        token: CancelToken | None = None,
        slice_chars: int = SLICE_CHARS,
    ) -> list[int]:
        """Return the ids of a text, as `encode`, made in slices. Stops after more than `max_tokens`.

        Raises `Cancelled` before the next slice once the token is cancelled.
        """
        slices = list(self.bounds.slices(text, slice_chars)) if len(text) > slice_chars else [text]
        around = self._special_around if add_special_tokens else ((), ())
        if len(slices) == 1 or around is None:
            return self.encode(text, add_special_tokens=add_special_tokens)
        ids = list(around[0])
        for part in slices:
            if token is not None:
                token.check()
            ids += self.encode(part, add_special_tokens=False)
            if max_tokens is not None and len(ids) > max_tokens:
                return ids
        return [*ids, *around[1]]

    @cached_property
    def _special_around(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The special tokens added before and after a text; None if they depend on the text."""
        plain, whole = self.encode("a", add_special_tokens=False), self.encode("a")
        for at in range(len(whole) - len(plain) + 1):
            if whole[at : at + len(plain)] == plain:
                return tuple(whole[:at]), tuple(whole[at + len(plain) :])
        return None

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens. Many short texts take one call."""
        with guard_backend():
            found = self._data.backend.encode_batch(list(texts), add_special_tokens=False)
        return [list(one.ids) for one in found]

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = True, token: CancelToken | None = None
    ) -> str:
        """Return the text of ids. An id below `vocab_size` without a token has no text.

        Raises `Cancelled` soon after the token is cancelled.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        kept: list[int] = []
        parts: list[bytes] = []
        for part in in_slices(ids, token):
            self._require_ids(part)
            if not skipped.isdisjoint(part):
                part = [id_ for id_ in part if id_ not in skipped]
            if self._bytewise is None:
                kept.extend(part)
            else:
                parts.append(self._join_bytes(part))
        if self._bytewise is None:
            return self.decode_window(kept)
        raw = b"".join(parts)
        if self.drops_first_space:
            raw = raw.removeprefix(b" ")
        return raw.decode("utf-8", "replace")

    def _join_bytes(self, ids: Sequence[int]) -> bytes:
        try:
            return b"".join(map(self._bytes.__getitem__, ids))
        except KeyError:  # some are not known yet
            return b"".join(map(self.token_bytes, ids))

    def _require_ids(self, ids: Sequence[int]) -> None:
        if {*map(type, ids)} <= {int} and (not ids or (min(ids) >= 0 and max(ids) < self.vocab_size)):
            return
        for id_ in ids:
            if not isinstance(id_, int) or not 0 <= id_ < self.vocab_size:
                raise InvalidRequest(f"token id {id_!r} is outside the vocabulary of {self.vocab_size}")

    def decode_window(self, ids: Sequence[int]) -> str:
        """Return the `tokenizers` library's own decoding, special tokens included."""
        with guard_backend():
            return str(self._data.backend.decode(list(ids), skip_special_tokens=False))

    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token. A special token has its name, an id without a token has none."""
        known = self._bytes.get(id_)
        if known is None:
            known = self._bytes[id_] = self._find_bytes(id_)
        return known

    def adapted(self, chat_template: str | None = None, *, controls_in_content: bool = False) -> "Tokenizer":
        """Return the same tokenizer with other settings.

        chat_template: the source of a template that replaces the model's own.
        controls_in_content: special tokens that clients type in messages and tools control the model.
        """
        data = replace(self._data, controls_in_content=controls_in_content)
        if chat_template is not None:
            data = replace(data, chat_templates={"default": chat_template})
        return Tokenizer(data)

    def digest(self) -> str:
        """Return SHA-256 over everything that decides tokens, independent of the file's formatting."""
        return self._data.identity.digest()

    def _find_bytes(self, id_: int) -> bytes:
        token = self._data.backend.id_to_token(id_) if 0 <= id_ < self.vocab_size else None
        if token is None:
            return b""
        if self._bytewise is not None:
            return self._bytewise.token_bytes(token)
        return self.decode_window([id_]).encode()


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer for models without one: a token for each byte. Other ids have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerData(backend, len(alphabet), TokenizerIdentity(lambda: b"bytes")))
