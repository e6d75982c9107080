"""Long texts: a lower bound of their number of tokens, and places where they can be cut.

The bound. A token of n bytes that contains a byte b tells that b lies in a token of at most
longest(b) >= n bytes. So the bytes of one token weigh at most n * (1 / n) = 1 if each weighs
1 / longest(b), and a text has at least as many tokens as its bytes weigh. It holds if the bytes of
the tokens are those of the text: for byte-wise BPE tokenizers that drop nothing.

The cuts. Where a space follows a visible character, all the pre-tokenizers listed here begin a new
word, whatever comes before or after. So the ids of a text are those of its slices, cut there.
"""

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer

from holdfast.core.cancel_token import CancelToken
from holdfast.text.gguf_tokenizer import CONTRACTIONS, LLAMA3, QWEN2

SLICE_CHARS = 1 << 16
_SPACES = frozenset(b" \t\n\v\f\r")
_SPELLED = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"  # CONTRACTIONS without a flag
# Patterns of which no match contains a visible character and a space after it.
_PATTERNS = {one.replace(CONTRACTIONS, each) for one in (LLAMA3, QWEN2) for each in (CONTRACTIONS, _SPELLED)}


class TokenBounds:
    """What can be said about the tokens of a text before it is tokenised."""

    def __init__(
        self, backend: Tokenizer, vocab_size: int, token_bytes: Callable[[int], bytes] | None
    ) -> None:
        """token_bytes is None if the decoder is not byte-wise."""
        normalizer, pre_tokenizer = _state(backend.normalizer), _state(backend.pre_tokenizer)
        added = backend.get_added_tokens_decoder().values()
        normal = {step["type"] for step in _steps(normalizer, "normalizers")}
        self._is_nfc = "NFC" in normal
        self._spells_space = "▁" in json.dumps(normalizer, ensure_ascii=False)
        keeps_bytes = type(backend.model).__name__ == "BPE" and _keeps_text(normalizer, pre_tokenizer)
        self._weights: dict[int, float] = {}
        if token_bytes is not None and keeps_bytes:
            self._weights = _weigh([token_bytes(id_) for id_ in range(vocab_size)])
            if any(one.lstrip or one.rstrip for one in added):  # such a token takes any number of spaces
                self._weights = {
                    byte: weight
                    for byte, weight in self._weights.items()
                    if byte < 128 and byte not in _SPACES
                }
        self.can_slice = (
            normal <= {"NFC"}
            and type(backend.model).__name__ == "BPE"
            and _cuts_at_spaces(pre_tokenizer)
            and not any(one.rstrip or re.search(r"\S ", one.content) for one in added)
        )

    def min_tokens(self, text: str, limit: int, token: CancelToken | None = None) -> int:
        """Return a number of tokens that the text has at least.

        Counts no further than just above `limit`.
        """
        if self._is_nfc and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        if self._spells_space:
            text = text.replace("▁", " ")
        weight = 0.0
        for start in range(0, len(text) if self._weights else 0, SLICE_CHARS):
            if token is not None:
                token.check()
            counts = Counter(text[start : start + SLICE_CHARS].encode("utf-8", "replace"))
            weight += sum(self._weights.get(byte, 0.0) * count for byte, count in counts.items())
            if weight > limit + 1:
                break
        return int(weight - 1e-6 * weight)

    def slices(self, text: str, num_chars: int = SLICE_CHARS) -> Iterator[str]:
        """Yield the text in slices whose ids, one after the other, are the ids of the text."""
        start = 0
        while self.can_slice and len(text) - start > num_chars:
            cut = _find_cut(text, start + num_chars)
            if cut is None:
                break
            yield text[start:cut]
            start = cut
        yield text[start:]


def _find_cut(text: str, start: int) -> int | None:
    """Return the first place from here on where a space follows a visible character."""
    cut = text.find(" ", start)
    while cut > 0:
        before = text[cut - 1]
        if before.isalnum() or before in string.punctuation:
            return cut
        cut = text.find(" ", cut + 1)
    return None


def _weigh(tokens: list[bytes]) -> dict[int, float]:
    """Return 1 / the length of the longest token with this byte, for bytes that are tokens themselves."""
    longest: dict[int, int] = {}
    for text in sorted(tokens, key=len, reverse=True):
        for byte in text:
            longest.setdefault(byte, len(text))
    single = {text[0] for text in tokens if len(text) == 1}
    return {byte: 1 / length for byte, length in longest.items() if byte in single}


def _state(component: Any) -> dict[str, Any] | None:
    state: dict[str, Any] | None = None if component is None else json.loads(component.__getstate__())
    return state


def _steps(state: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    steps: list[dict[str, Any]] = state[name] if state["type"] == "Sequence" else [state]
    return steps


def _keeps_text(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> bool:
    """Return whether every byte of a text, NFC, reaches the model; a space may be written as ▁."""
    for step in _steps(normalizer, "normalizers"):
        is_space = step.get("pattern") == {"String": " "} and step.get("content") == "▁"
        if step["type"] not in ("NFC", "Prepend") and not (step["type"] == "Replace" and is_space):
            return False
    for step in _steps(pre_tokenizer, "pretokenizers"):
        if step["type"] not in ("ByteLevel", "Digits", "Metaspace", "Split"):
            return False
        if step["type"] == "Split" and step["behavior"] == "Removed":
            return False
    return True


def _cuts_at_spaces(state: dict[str, Any] | None) -> bool:
    """Return whether a space after a visible character begins a word, as in GPT-2, Llama 3 and Qwen."""
    steps = _steps(state, "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel":
        return False
    is_split = bool(steps[-1]["use_regex"])
    for step in steps[:-1]:
        if step["type"] == "Split" and step["pattern"].get("Regex") in _PATTERNS:
            is_split = is_split or (step["behavior"] == "Isolated" and not step["invert"])
        elif step["type"] != "Digits":
            return False
    return is_split
