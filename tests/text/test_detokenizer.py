"""Incremental text equals the text decoded at once, and no part ends inside a character."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import BPE, WordLevel, WordPiece

from holdfast.models.locate import locate
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from holdfast.text.tokenizer_data import TokenizerData, TokenizerIdentity, find_special_ids

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "▁the", "▁cat", "s", "é", "你", "▁▁", ".", "�"]
SENTENCEPIECE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "strip": decoders.Sequence([*SENTENCEPIECE, decoders.Strip(" ", 1, 0)]),
    "keep": decoders.Sequence(SENTENCEPIECE),
    "metaspace": decoders.Metaspace(),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
    "backwards": decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")]),
}


def wrap(backend: Backend) -> Tokenizer:
    size = backend.get_vocab_size()
    special = find_special_ids(backend)
    return Tokenizer(
        TokenizerData(
            backend=backend, vocab_size=size, identity=TokenizerIdentity(bytes), special_ids=special
        )
    )


@cache
def sentencepiece(kind: str) -> Tokenizer:
    vocab = {piece: id_ for id_, piece in enumerate(PIECES)}
    backend = Backend(BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = DECODERS[kind]
    backend.add_special_tokens(PIECES[:3])
    return wrap(backend)


@cache
def smollm2() -> Tokenizer:
    return open_tokenizer(locate(None).path)


def stream(tokenizer: Tokenizer, ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> str:
    """The concatenated results; `text` must equal them after every push, and so must tokens pushed together."""
    detokenizer = Detokenizer(tokenizer, prompt_ids)
    whole = ""
    for id_ in ids:
        whole += detokenizer.push(id_)
        assert detokenizer.text == whole
    whole += detokenizer.flush()
    assert detokenizer.text == whole
    assert detokenizer.flush() == ""
    together, half = Detokenizer(tokenizer, prompt_ids), len(ids) // 2
    assert together.extend(ids[:half]) + together.extend(ids[half:]) + together.flush() == whole
    return whole


@pytest.mark.smollm2
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300)), max_size=40))
def test_smollm2_stream_matches_the_library(ids: list[int]) -> None:
    tokenizer = smollm2()
    text = stream(tokenizer, ids)
    assert text == tokenizer.decode(ids)
    assert text == tokenizer.decode_window([id_ for id_ in ids if id_ not in tokenizer.special_ids])


@pytest.mark.smollm2
@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=30))
def test_smollm2_stream_yields_whole_characters(text: str) -> None:
    tokenizer = smollm2()
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected = tokenizer.decode(ids)  # a few bytes are not in the vocabulary, so it may differ from `text`
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(id_) for id_ in ids]
    if "\ufffd" not in expected:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == expected


@pytest.mark.parametrize("kind", DECODERS)
def test_sentencepiece_stream_matches_decode(kind: str) -> None:
    tokenizer = sentencepiece(kind)

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(st.one_of(st.integers(0, len(PIECES) - 1), st.integers(259, len(PIECES) - 1)), max_size=25)
    )
    def compare(ids: list[int]) -> None:
        text = stream(tokenizer, ids)
        kept = [id_ for id_ in ids if id_ > 2]
        if kind in ("strip", "keep"):
            assert text == tokenizer.decode(ids)
        if not any(
            3 <= id_ < 259 for id_ in ids
        ):  # the library decodes invalid bytes differently: see `Tokenizer`
            assert text == tokenizer.decode_window(kept)

    compare()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=20))
def test_valid_byte_runs_match_the_library(text: str) -> None:
    for kind in ("strip", "keep", "backwards"):
        tokenizer = sentencepiece(kind)
        ids = [3 + byte for byte in text.encode()]
        assert stream(tokenizer, ids) == tokenizer.decode_window(ids)


def test_character_is_returned_with_its_last_byte() -> None:
    for kind in ("strip", "backwards"):
        detokenizer = Detokenizer(sentencepiece(kind))
        assert [detokenizer.push(3 + byte) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]
        assert detokenizer.flush() == ""


def test_invalid_bytes_are_not_held_back() -> None:
    tokenizer = sentencepiece("strip")
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(3 + 0xF0) == ""
    assert detokenizer.push(3 + 0x9F) == ""
    assert detokenizer.push(3 + 0x41) == "\ufffdA"
    assert detokenizer.push(3 + 0xFF) == "\ufffd"
    assert detokenizer.push(3 + 0xE4) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.text == "\ufffdA\ufffd\ufffd"


@pytest.mark.parametrize("kind", ["strip", "metaspace"])
def test_answer_after_a_prompt_keeps_its_leading_space(kind: str) -> None:
    tokenizer = sentencepiece(kind)
    the, cat = PIECES.index("▁the"), PIECES.index("▁cat")
    assert stream(tokenizer, [the, cat]) == "the cat"
    assert stream(tokenizer, [the, cat], prompt_ids=[1]) == "the cat"
    assert stream(tokenizer, [the, cat], prompt_ids=[1, cat]) == " the cat"
    assert stream(tokenizer, [2, the, cat], prompt_ids=[1, cat, 2]) == " the cat"


def test_special_tokens_are_shown_on_request() -> None:
    detokenizer = Detokenizer(sentencepiece("strip"), skip_special_tokens=False)
    assert [detokenizer.push(id_) for id_ in (1, PIECES.index("▁the"))] == ["<s>", " the"]


def test_id_without_token_has_no_text() -> None:
    for kind in ("strip", "backwards"):
        assert stream(sentencepiece(kind), [10**6, PIECES.index("s"), 10**6]) == "s"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=20), st.sampled_from(["wordpiece", "none"]))
def test_other_decoders_are_decoded_over_windows(ids: list[int], kind: str) -> None:
    words = ["[UNK]", "play", "##ing", ".", "a", "##s", "'", "do"]
    vocab = {word: id_ for id_, word in enumerate(words)}
    if kind == "wordpiece":
        backend = Backend(WordPiece(vocab, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece(cleanup=False)
    else:
        backend = Backend(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer = wrap(backend)
    assert not tokenizer.is_bytewise
    assert stream(tokenizer, ids) == tokenizer.decode(ids)
    if ids:
        prompt = [1]
        behind = tokenizer.decode(prompt + ids)[len(tokenizer.decode(prompt)) :]
        assert stream(tokenizer, ids, prompt_ids=prompt) == behind


def test_byte_wise_decoders_are_recognised() -> None:
    assert {kind for kind in DECODERS if sentencepiece(kind).is_bytewise} == {"strip", "keep"}
    assert {kind for kind in DECODERS if sentencepiece(kind).drops_first_space} == {"strip"}
