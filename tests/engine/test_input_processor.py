"""The input processor: bad words as tokens."""

import pytest

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.input_processor import _bad_words
from holdfast.text.tokenizer import byte_tokenizer


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        (["no"], [b"no", b" no"]),
        ([" no"], [b" no"]),
        (["no", " no"], [b"no", b" no"]),
        (["\n"], [b"\n"]),  # and not the space
        (["\t", "\nno", " "], [b"\t", b"\nno", b" "]),
        (["\u2003x"], ["\u2003x".encode()]),
    ],
)
def test_bad_words_are_also_spelled_after_a_space(words: list[str], spelled: list[bytes]) -> None:
    params = SamplingParams(bad_words=words)
    tokenizer = byte_tokenizer()
    found = _bad_words(tokenizer, params.bad_texts)
    assert [b"".join(map(tokenizer.token_bytes, ids)) for ids in found] == spelled
