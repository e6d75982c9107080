"""Untrusted tokenizers: replacements that grow a text are refused at load, a pattern that backtracks without
end is an error of the request.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ModelError, TokenizerError, UnsupportedModel
from holdfast.text.tokenizer import open_tokenizer
from support.tiny import write_tokenizer


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


_TRIE = bytes([4, 0, 0, 0, 0, 0, 0, 0])
HOSTILE = {
    "doubling": normalizers(*[replace({"String": "a"}, "aa")] * 40),
    "long-content": normalizers(replace({"Regex": "."}, "a" * 1000)),
    "precompiled": {
        "normalizer": {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(_TRIE + b"b\0" + b"a" * 1000 + b"\0").decode(),
        }
    },
    "many-steps": normalizers(*[{"type": "NFC"}] * 100),
    "doubling-decoder": {"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "aa")] * 40}},
}


def write_changed(folder: Path, change: dict[str, Any]) -> None:
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize("name", HOSTILE)
def test_growing_tokenizer_is_refused_at_load(name: str, tmp_path: Path) -> None:
    write_changed(tmp_path, HOSTILE[name])
    with pytest.raises(UnsupportedModel, match="times as long"):
        open_tokenizer(tmp_path)


def test_broken_file_is_a_model_error(tmp_path: Path) -> None:
    write_changed(tmp_path, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}})
    with pytest.raises(ModelError, match="is not a tokenizer"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": split("(x+x+)+y|[a-z]")},
        normalizers(replace({"Regex": "(x|x|xx)+$"}, "a")),
    ],
)
def test_pattern_that_backtracks_is_an_error_of_the_request(change: dict[str, Any], tmp_path: Path) -> None:
    write_changed(tmp_path, change)
    tokenizer = open_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="tokenizer failed at this text"):
        tokenizer.encode("x" * 4000 + "y" * ("pre_tokenizer" not in change) + "!")
    assert tokenizer.encode("ab")
