"""Tokenizers whose patterns or replacements run without end: refused at load, an error at run time."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from holdfast.errors import ModelError, TokenizerError, UnsupportedModel
from holdfast.sandbox.tokenizer_sandbox import require_bounded
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from holdfast.text.tokenizer_data import TokenizerData, TokenizerIdentity
from support.tiny import write_tokenizer


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


HOSTILE = {
    "exponential-pattern": ({"pre_tokenizer": split("(x+x+)+y")}, "tried with"),
    "rare-letter": ({"pre_tokenizer": split("(?:ʘ+ʘ+)+z")}, "tried with"),
    "word": ({"pre_tokenizer": split("(?:(?:dog)+(?:dog)+)+z")}, "tried with"),
    "pattern-of-normalizer": (normalizers(replace({"Regex": "(a|a|aa)+$"}, "")), "tried with"),
    "doubling": (normalizers(*[replace({"String": "a"}, "aa")] * 40), "times as long"),
    "long-content": (normalizers(replace({"Regex": "."}, "a" * 1000)), "times as long"),
    "many-steps": (normalizers(*[{"type": "NFC"}] * 100), "steps"),
    "doubling-decoder": (
        {"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "aa")] * 40}},
        "times as long",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizer_is_refused_at_load(name: str, tmp_path: Path) -> None:
    change, message = HOSTILE[name]
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UnsupportedModel, match=message):
        open_tokenizer(tmp_path)


def test_unknown_harmless_pattern_is_accepted() -> None:
    require_bounded(None, json.dumps(split(r"\p{Lu}?\p{Ll}+|\p{N}{1,2}|[^\s\p{L}\p{N}]+|\s+")), None)


def test_broken_file_is_a_model_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(
        '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}'
    )
    with pytest.raises(ModelError, match="is not a tokenizer"):
        open_tokenizer(tmp_path)


def test_panic_at_run_time_is_an_error_of_the_request() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "x": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    tokenizer = Tokenizer(TokenizerData(backend, 2, TokenizerIdentity(lambda: b"test")))
    with pytest.raises(TokenizerError, match="tokenizer failed at this text"):
        tokenizer.encode("x" * 60)
    assert tokenizer.encode("xax") == [1, 0, 1]
