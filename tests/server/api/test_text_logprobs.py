"""Logprobs in the format of completions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.response_fields import TextLogprobs
from holdfast.server.prompts import PromptReader
from holdfast.text.tokenizer import open_tokenizer
from support.tiny import EOS, write_tokenizer


@pytest.fixture
def prompts(tmp_path: Path) -> Iterator[PromptReader]:
    write_tokenizer(tmp_path)
    prompts = PromptReader(open_tokenizer(tmp_path))
    yield prompts
    prompts.close()


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_offsets_are_places_in_the_text(prompts: PromptReader, skip_special_tokens: bool) -> None:
    encode = prompts.tokenizer.encode
    fox, word, b = encode("🦊"), encode("é"), encode("b")
    assert (len(fox), len(word), len(b)) == (4, 2, 1)
    writer = TextLogprobs(prompts, 0, (5,), skip_special_tokens=skip_special_tokens)
    ids = [*fox, *word, EOS, *b]
    written = [writer.write([TokenLogprob(one, -1.0, ())]) for one in ids]
    end = 2 if skip_special_tokens else 2 + len("<|end|>")
    assert [one.text_offset[0] for one in written] == [0, 0, 0, 0, 1, 1, 2, end]


def test_echoed_text_has_the_special_tokens_that_were_typed(prompts: PromptReader) -> None:
    (b,) = prompts.tokenizer.encode("b")
    ids = [EOS, b, EOS, b]  # the tokenizer added the first
    written = TextLogprobs(prompts, 0).write([TokenLogprob(one, -1.0, ()) for one in ids], echoed="b<|end|>b")
    assert written.text_offset == [0, 0, 1, 8]


def test_token_keeps_its_own_logprob_beside_others_with_the_same_text(prompts: PromptReader) -> None:
    first, second, third, _ = prompts.tokenizer.encode("🦊")
    (b,) = prompts.tokenizer.encode("b")
    top = ((first, -0.5), (second, -1.0), (b, -2.0), (third, -3.0))
    written = TextLogprobs(prompts, 4).write([TokenLogprob(first, -0.5, top), TokenLogprob(b, -2.0, top)])
    assert written.top_logprobs == [{"\ufffd": -0.5, "b": -2.0}, {"b": -2.0, "\ufffd": -0.5}]
