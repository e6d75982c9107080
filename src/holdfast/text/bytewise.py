"""Byte-wise decoders: those whose text is the concatenated bytes of the tokens, read as UTF-8.

The bytes of each token are then independent of its neighbours, and text can be decoded
incrementally. Nearly every model has one of these:

    ByteLevel                                             each character of a token encodes a byte
    Replace(▁ → " "), ByteFallback, Fuse [, Strip(" ")]   sentencepiece; Strip drops the first space of a text

`read_bytewise` recognises exactly these. Any other decoder is left to the `tokenizers` library
(`detokenizer`).
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
    """The bytes of each token, and whether decoding drops the first space of a text."""

    token_bytes: Callable[[str], bytes]
    drops_first_space: bool


def read_bytewise(decoder_json: str | None) -> Bytewise | None:
    """Return a decoder as a byte-wise one, or None if it is not."""
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
    """Return the character that encodes each byte in a byte-level vocabulary."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def byte_level_symbols(text: str) -> list[str]:
    """Return the characters that encode the bytes of a text in a byte-level vocabulary."""
    symbols = {byte: character for character, byte in _alphabet().items()}
    return [symbols[byte] for byte in text.encode()]


def _byte_level(token: str) -> bytes:
    alphabet = _alphabet()
    if all(character in alphabet for character in token):
        return bytes([alphabet[character] for character in token])
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
