"""Bounds and cuts of long texts: no text has fewer tokens than its bound, and slices give the same ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.text.token_bounds import _PATTERNS
from holdfast.text.tokenizer import Tokenizer
from holdfast.text.tokenizer_data import TokenizerData, TokenizerIdentity

MERGES = [("a", "a"), ("aa", "aa"), ("Ġ", "a"), ("Ġ", "Ġ"), ("b", "c"), ("1", "2"), ("12", "3"), (".", ".")]


def tokenizer_with(kind: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate([*alphabet, *("".join(pair) for pair in MERGES)])}
    backend = Backend(models.BPE(vocab, MERGES))
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt2":
        backend.pre_tokenizer = gpt2
    elif kind == "digits":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    else:
        split = pre_tokenizers.Split(Regex(sorted(_PATTERNS)[int(kind)]), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerData(backend, len(vocab), TokenizerIdentity(lambda: b"test")))


KINDS = ["gpt2", "digits", *map(str, range(len(_PATTERNS)))]
TOKENIZERS = {kind: tokenizer_with(kind) for kind in KINDS}
TEXTS = st.text(st.sampled_from("aaab  \n\t\r'ts.,!123é你。\u00a0\u2003\u0301/"), max_size=60)


@pytest.mark.parametrize("kind", KINDS)
@given(TEXTS)
def test_slices_give_the_ids_of_the_text(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.bounds.can_slice
    assert "".join(tokenizer.bounds.slices(text, 3)) == text
    assert tokenizer.encode_slices(text, slice_chars=3) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
@given(TEXTS)
def test_no_text_has_fewer_tokens_than_its_bound(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.bounds.min_tokens(text, 1 << 30) <= len(tokenizer.encode(text))


def test_bound_refuses_digits_without_tokenising() -> None:
    bounds = TOKENIZERS["digits"].bounds
    assert bounds.min_tokens("45" * 500, 1 << 30) >= 999
    assert bounds.min_tokens("a" * 1000, 1 << 30) >= 249  # the longest token of this letter has four


def test_unknown_pre_tokenizer_is_not_sliced() -> None:
    backend = Backend(models.BPE({"a": 0, " ": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("a a"), behavior="isolated")
    plain = Tokenizer(TokenizerData(backend, 2, TokenizerIdentity(lambda: b"x")))
    assert not plain.bounds.can_slice and list(plain.bounds.slices("a a a a", 1)) == ["a a a a"]
    assert plain.bounds.min_tokens("a" * 100, 1000) == 0


def test_tokenising_stops_when_full_or_cancelled() -> None:
    tokenizer, text = TOKENIZERS["gpt2"], "bcd " * 1000
    ids = tokenizer.encode_slices(text, max_tokens=50, slice_chars=100)
    assert 50 < len(ids) < 300 and ids == tokenizer.encode(text)[: len(ids)]
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        tokenizer.encode_slices(text, slice_chars=100, token=token)
