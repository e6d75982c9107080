"""What ids write: the same as the tokenizer says, for every kind of tokenizer, and nothing for what is no text."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import WordPiece

from holdfast.bench.tiny import byte_tokenizer
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_worker import open_trie
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.vocabulary import read_vocabulary
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from holdfast.text.tokenizer_data import TokenizerData
from support.grammar_walks import BENCHES, BenchMaker, needs_llguidance
from support.tiny import write_tokenizer


def sentencepiece(*, drops_space: bool = True) -> Tokenizer:
    """Byte fallback; a blank and a line break are tokens twice over."""
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
        assert trie.decode_bytes([id_]) == text or not text
        if id_ >= tokenizer.vocab_size or id_ in tokenizer.special_ids or id_ in eos_ids:
            assert text == b""
        elif not text.startswith(b"\xff") and tokenizer.token_bytes(id_) != b"\xff":
            assert text == tokenizer.token_bytes(id_)
        assert vocabulary.may_follow(id_) == (bool(text) or id_ in eos_ids)


@needs_llguidance
@pytest.mark.parametrize("make", BENCHES)
def test_texts(make: BenchMaker) -> None:
    bench = make()
    check_texts(bench.tokenizer, bench.vocab_size, bench.eos_ids)


@needs_llguidance
def test_texts_of_other_tokenizers(tmp_path: Path) -> None:
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
def test_tokens_of_the_same_text_are_allowed_together() -> None:
    tokenizer = sentencepiece()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({2}))
    (mask,) = compiler.compile(StructuredOutput(choice=["\n"])).masks((), 1)
    assert mask is not None
    found = [id_ for id_ in range(tokenizer.vocab_size) if mask[id_ // 8] >> id_ % 8 & 1]
    assert [tokenizer.token_bytes(id_) for id_ in found] == [b"\n", b"\n"]
    compiler.close()


def test_an_endless_token_is_left_out(tmp_path: Path) -> None:
    added = [{"content": "x" * 5000, "special": False}, {"content": "y" * 900, "special": False}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = from_folder(
        tmp_path, added_tokens=[{"id": 300 + index, **one, **flags} for index, one in enumerate(added)]
    )
    texts = read_vocabulary(tokenizer, 400, frozenset({0})).texts
    assert texts[300] == b"" and texts[301] == b"y" * 900


@pytest.mark.parametrize("eos_ids", [frozenset(), frozenset({600}), frozenset({-1})])
def test_an_answer_must_be_able_to_end(eos_ids: frozenset[int]) -> None:
    with pytest.raises(InvalidRequest, match="ends the answer"):
        read_vocabulary(byte_tokenizer(), 512, eos_ids)


def test_a_tokenizer_that_is_not_byte_wise_is_refused() -> None:
    backend = Backend(WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InvalidRequest, match="token by token"):
        read_vocabulary(Tokenizer(TokenizerData(backend, 3, lambda: b"")), 3, frozenset({0}))
