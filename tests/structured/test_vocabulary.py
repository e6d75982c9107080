"""The bytes of token ids: those of the tokenizer, for every kind of tokenizer, and none for ids
that are not text."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import WordPiece

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_worker import open_trie
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.vocabulary import read_vocabulary
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer
from holdfast.text.tokenizer_data import TokenizerData
from support.grammar_walks import HARNESSES, HarnessFactory, needs_llguidance
from support.tiny import write_tokenizer


def sentencepiece(*, drops_space: bool = True) -> Tokenizer:
    """Byte fallback; a space and a line break each have two tokens."""
    letters = [*"abcdefghijklmnopqrstuvwxyz{}:,0123456789é", "▁", '"', "▁{", '":', "\n", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *letters]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(letters)],
        "scores": [-float(rank) for rank in range(len(tokens))],
        "add_space_prefix": drops_space,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return open_tokenizer(Path("unused.gguf"), metadata=metadata)


def from_folder(folder: Path, **changes: Any) -> Tokenizer:
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        content[name] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    return open_tokenizer(folder)


def check_texts(tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> None:
    vocabulary = read_vocabulary(tokenizer, vocab_size, eos_ids)
    trie = open_trie(vocabulary.texts, sorted(vocabulary.eos_ids))
    assert trie.vocab_size == vocab_size == len(vocabulary.texts)
    assert set(trie.eos_tokens) == vocabulary.eos_ids
    for id_, text in enumerate(vocabulary.texts):
        assert trie.decode_bytes([id_]) == text.removeprefix(b"\xff") or not text
        if id_ >= tokenizer.vocab_size or id_ in eos_ids:
            assert text == b""
        elif id_ in tokenizer.special_ids:
            assert text == b"\xff" + tokenizer.token_bytes(id_)
        elif not text.startswith(b"\xff") and tokenizer.token_bytes(id_) != b"\xff":
            assert text == tokenizer.token_bytes(id_)
        assert vocabulary.is_known(id_) == (bool(text) or id_ in eos_ids)


@needs_llguidance
@pytest.mark.parametrize("make", HARNESSES)
def test_token_bytes_match_the_tokenizer(make: HarnessFactory) -> None:
    harness = make()
    check_texts(harness.tokenizer, harness.vocab_size, harness.eos_ids)


@needs_llguidance
def test_token_bytes_of_other_tokenizers(tmp_path: Path) -> None:
    for tokenizer in (sentencepiece(), sentencepiece(drops_space=False), from_folder(tmp_path)):
        check_texts(tokenizer, 512, frozenset({2}))
        check_texts(tokenizer, 100, frozenset({2, 50, 400}) - {400})  # fewer logits than tokens


@needs_llguidance
@pytest.mark.parametrize("kind", ["sentencepiece", "folder"])
def test_json_over_other_tokenizers(kind: str, tmp_path: Path) -> None:
    tokenizer = sentencepiece() if kind == "sentencepiece" else from_folder(tmp_path)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + 3, frozenset({2}))
    grammar = compiler.compile(StructuredOutput(json_schema={"enum": ["a  b", {"ké": "\n"}]}))
    context = tokenizer.encode("a", add_special_tokens=False)
    for text in ('"a  b"', '{"ké": "\\n"}'):
        ids = tokenizer.encode("a" + text, add_special_tokens=False)[len(context) :]
        assert grammar.count_valid([*ids, 2]) == len(ids) + 1
    compiler.close()


@needs_llguidance
def test_tokens_with_equal_bytes_are_allowed_together() -> None:
    tokenizer = sentencepiece()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({2}))
    (mask,) = compiler.compile(StructuredOutput(choice=["\n"])).masks((), 1)
    assert mask is not None
    found = [id_ for id_ in range(tokenizer.vocab_size) if mask[id_ // 8] >> id_ % 8 & 1]
    assert [tokenizer.token_bytes(id_) for id_ in found] == [b"\n", b"\n"]
    compiler.close()


def test_overlong_token_is_excluded(tmp_path: Path) -> None:
    added = [{"content": "x" * 5000, "special": False}, {"content": "y" * 900, "special": False}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = from_folder(
        tmp_path, added_tokens=[{"id": 300 + index, **one, **flags} for index, one in enumerate(added)]
    )
    texts = read_vocabulary(tokenizer, 400, frozenset({0})).texts
    assert texts[300] == b"" and texts[301] == b"y" * 900


@pytest.mark.parametrize("eos_ids", [frozenset(), frozenset({600}), frozenset({-1})])
def test_vocabulary_without_eos_is_refused(eos_ids: frozenset[int]) -> None:
    with pytest.raises(InvalidRequest, match="end-of-text token"):
        read_vocabulary(byte_tokenizer(), 512, eos_ids)


def test_tokenizer_without_byte_tokens_is_refused() -> None:
    backend = Backend(WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InvalidRequest, match="byte sequences"):
        read_vocabulary(Tokenizer(TokenizerData(backend, 3, lambda: b"")), 3, frozenset({0}))
