"""Untrusted tokenizers: replacements that grow a text and ids or texts that differ each time are refused at load, a
pattern that backtracks without end is an error of the request.
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


def write_model(folder: Path, **changes: Any) -> None:
    write_tokenizer(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocab = model["vocab"] | changes.pop("vocab", {})
    write_changed(folder, {"model": {**model, "vocab": vocab, **changes}})


def test_random_tokens_are_refused_at_load(tmp_path: Path) -> None:
    write_model(tmp_path, dropout=0.1)
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json has model\.dropout = 0\.1: "):
        open_tokenizer(tmp_path)
    write_model(tmp_path, dropout=0.0)
    open_tokenizer(tmp_path)


def test_two_tokens_with_one_id_are_refused_at_load(tmp_path: Path) -> None:
    write_model(tmp_path, vocab={"q": 92, "z": 92})
    with pytest.raises(ModelError, match="the tokens 'q' and 'z' both have the id 92"):
        open_tokenizer(tmp_path)


def test_added_token_with_the_id_of_a_word_is_refused_at_load(tmp_path: Path) -> None:
    """The library gives a new token the number of words as its id, which may be one's after a gap."""
    write_tokenizer(tmp_path)
    vocab = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    write_model(tmp_path, vocab={"gap": len(vocab) + 1})
    assert open_tokenizer(tmp_path).vocab_size == len(vocab) + 2
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"7": {"content": "<new>"}}}')
    with pytest.raises(ModelError, match="the tokens '<new>' and 'gap' both have the id"):
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
