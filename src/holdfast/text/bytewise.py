"""How ids become text, one id at a time.

A decoder is *byte-wise* if the text is the bytes of its tokens, one behind the other, read as UTF-8: then
each token's bytes are known once and for all, and a text can be decoded as it grows. Nearly every model is
so:

    ByteLevel                                           each character of a token stands for a byte
    Replace(▁ → " "), ByteFallback, Fuse [, Strip(" ")]   sentencepiece; Strip: the text's first space goes

`read_bytewise` recognises these shapes exactly; any other decoder is left to the tokenizer library, over
windows.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Bytewise:
    """The bytes of each token, and whether a text loses the one space it begins with."""

    token_bytes: Callable[[str], bytes]
    drops_first_space: bool


def read_bytewise(decoder_json: str | None) -> Bytewise | None:
    """The byte-wise reading of a decoder, or None if it has none."""
    decoder = json.loads(decoder_json) if decoder_json else None
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Bytewise(_byte_level, drops_first_space=False)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _replaces_space(steps[0]):
        if len(steps) == 3:
            return Bytewise(_sentencepiece, drops_first_space=False)
        if len(steps) == 4 and steps[3] == {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return Bytewise(_sentencepiece, drops_first_space=True)
    return None


def _replaces_space(step: dict[str, Any]) -> bool:
    return bool(step.get("pattern") == {"String": "▁"} and step.get("content") == " ")


@cache
def _alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be seen."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    return letters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def _byte_level(token: str) -> bytes:
    alphabet = _alphabet()
    if all(letter in alphabet for letter in token):
        return bytes([alphabet[letter] for letter in token])
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
