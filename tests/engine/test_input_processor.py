"""The input processor: bad prompts and settings are refused; bad words become tokens."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.input_processor import _bad_words
from holdfast.engine.llm.llm import LLM
from holdfast.errors import HoldfastError, InvalidRequest, PromptTooLong
from holdfast.text.tokenizer import byte_tokenizer
from support.tiny import VOCAB_SIZE

GOOD = SamplingParams(max_tokens=8, temperature=0)

BAD_PROMPTS: list[tuple[Any, type[HoldfastError], str]] = [
    ("", InvalidRequest, "empty"),
    ([VOCAB_SIZE], InvalidRequest, f"token id {VOCAB_SIZE} is not in the vocabulary of {VOCAB_SIZE}"),
    ([-1], InvalidRequest, "token id -1"),
    ([10**5000], InvalidRequest, "a number of 16610 bits is not in the vocabulary"),
    ([5] * 505, PromptTooLong, "505 tokens and max_tokens is 8, together more than the context of 512"),
    ("fox " * 100_000, PromptTooLong, "context of 512"),
    ([None], InvalidRequest, "None is not a token id"),
    (bytearray(b"the fox"), InvalidRequest, "not bytearray"),
    ("\ud800", InvalidRequest, "surrogate"),
]


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [pytest.param(*case, id=f"{n}-{case[2][:20]}") for n, case in enumerate(BAD_PROMPTS)],
)
def test_bad_prompt_is_refused(llm: LLM, prompt: Any, kind: type[HoldfastError], message: str) -> None:
    with pytest.raises(kind, match=message):
        llm.engine.prepare(prompt, GOOD)


@pytest.mark.parametrize(
    "ids",
    [
        {"stop_token_ids": [VOCAB_SIZE]},
        {"bad_token_ids": [VOCAB_SIZE]},
        {"allowed_token_ids": [VOCAB_SIZE]},
        {"logit_bias": {VOCAB_SIZE: 1.0}},
        {"stop_token_ids": [10**6]},
    ],
    ids=str,
)
def test_settings_outside_the_vocabulary_are_refused(llm: LLM, ids: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{next(iter(ids))}: token id \d+ is not in the vocabulary"):
        llm.engine.prepare("the fox", SamplingParams(**ids))


@pytest.mark.parametrize(
    "settings", [{"max_tokens": 512}, {"max_tokens": 1 << 24, "min_tokens": 1 << 24}], ids=str
)
def test_max_tokens_beyond_the_context_are_refused(llm: LLM, settings: dict[str, int]) -> None:
    with pytest.raises(PromptTooLong, match="lower max_tokens"):
        llm.engine.prepare("the fox", SamplingParams(**settings))  # type: ignore[arg-type]


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


def test_max_tokens_none_is_the_rest_of_the_context(llm: LLM) -> None:
    rest: Any = None
    params = SamplingParams(max_tokens=rest, temperature=0, ignore_eos=True, deterministic=True)
    assert llm.engine.prepare([5] * 500, replace(params, seed=7)).request.params.max_tokens == 12
    result = llm.generate([[5] * 500], params)[0]
    assert len(result.token_ids) == 12 and result.finish_reason == "length"
    assert result.receipt is not None and result.receipt["settings"]["max_tokens"] == 12
    with pytest.raises(PromptTooLong, match="512 tokens and max_tokens is 1"):
        llm.engine.prepare([5] * 512, params)
    copied = pickle.loads(pickle.dumps(params))
    assert llm.engine.prepare([5] * 3, copied).request.params.max_tokens == 509
