"""What the grammar library does: its version, and a digest of its masks for fixed grammars.

A mask decides which tokens an answer may have, so another llguidance may give another answer. A
receipt of a structured answer names the library, and a replay compares both parts. The version
stands for what the probes do not show; the digest shows a library that was changed under the same
version. Both are the same on every CPU.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from holdfast.core.structured_output import StructuredOutput
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.spec import require_llguidance, write_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_WORDS = (
    *('{"', '"}', '":', '": ', '", "', '"],', "[[", "]]", "}}", "\\n", "\\u", "\\\\", "//", '""'),
    *(" ", "  ", "\n", "true", "false", "null", "12", "-1", "1e", ".5", "00", "2024-", "T1", ":0"),
    *("a", "ab", "abc", "cat", "dog", "red", "name", "size", "é", "\u6771\u4eac", "\U0001f680"),
)
# The 256 bytes, some longer tokens, and the end of the text.
_TEXTS = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in _WORDS), b""]
_EOS_ID = len(_TEXTS) - 1
_NUM_WALKS = 3
_WALK_LEN = 20

_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "size": {"type": "integer", "minimum": -3, "maximum": 120},
        "red": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": "dog"}]},
        "abc": {"type": "array", "items": {"enum": ["cat", "dog", 3]}, "minItems": 1, "maxItems": 3},
        "when": {"type": "string", "format": "date-time"},
        "more": {"$ref": "#/$defs/more"},
    },
    "required": ["name", "abc"],
    "$defs": {"more": {"type": "object", "additionalProperties": {"type": "number"}}},
}
_PROBES = (
    StructuredOutput(json_schema=_SCHEMA),
    StructuredOutput(json_schema=_SCHEMA, json_rules=1),
    StructuredOutput(json_schema={"type": "string", "pattern": "^(ab|c)+[^a-z]?$"}),
    StructuredOutput(json_schema={"oneOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}),
    StructuredOutput(json_schema=True),
    StructuredOutput(json_object=True),
    StructuredOutput(regex=r"(cat|dog)s? [^\x00-\x1f\"]*\w\S."),
    StructuredOutput(regex=r"\d{2,4}(\.[05])?(ab)*|x+?y"),
    StructuredOutput(regex=r"(?i:é+)[\p{Lu}\p{Nd}]|\p{Greek}{1,3}"),
    StructuredOutput(choice=["red", "reddish", "cat", "\u6771\u4eac"]),
    StructuredOutput(lark='start: "[" [item ("," item)*] "]"\nitem: start | WORD\nWORD: /[a-d]+/ & /.{2,5}/'),
    StructuredOutput(lark='start: a | start "+" a\na: "(" start ")" | /[0-9]+/ | "ab"i\n%ignore / +/'),
)


class GrammarLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """llguidance is its version, masks the digest of what it allows in fixed grammars."""

    llguidance: Annotated[str, Meta(min_length=1, max_length=64)]
    masks: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@cache
def grammar_library() -> GrammarLibrary:
    """Return the installed library. The first call imports it and takes about 50 ms more."""
    from importlib import metadata

    require_llguidance()
    return GrammarLibrary(metadata.version("llguidance"), digest_masks())


def digest_masks() -> str:
    """Return the SHA-256 over the masks along some walks through each of the fixed grammars."""
    trie = open_trie(_TEXTS, [_EOS_ID])
    digest = hashlib.sha256()
    for probe in _PROBES:
        for mask in _masks(trie, probe):
            digest.update(len(mask).to_bytes(4, "little"))
            digest.update(mask)
    return digest.hexdigest()


def _masks(trie: "LLTokenizer", probe: StructuredOutput) -> Iterator[bytes]:
    """Yield the mask before each token of a few fixed walks; an empty one where the library gives
    an error.
    """
    start = open_matcher(trie, write_grammar(probe), is_lark=probe.kind == "lark")
    for walk in range(_NUM_WALKS):
        matcher = start.deep_copy()
        for step in range(_WALK_LEN):
            mask = b"" if matcher.is_error() else bytes(matcher.compute_bitmask())
            yield mask
            allowed = _allowed(mask)
            if not allowed:
                break
            matcher.consume_token(allowed[(walk * 61 + step * 29) % len(allowed)])


def _allowed(mask: bytes) -> list[int]:
    """Return the allowed token ids but the end of the text."""
    bits = int.from_bytes(mask, "little")
    return [id_ for id_ in range(_EOS_ID) if bits >> id_ & 1]
