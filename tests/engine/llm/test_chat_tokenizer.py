"""The tokenizer that `get_tokenizer` returns, beside the one of transformers."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM
from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
from holdfast.errors import InvalidRequest
from holdfast.text.tokenizer import open_tokenizer
from support.tiny import EOS, IM_END

TALK = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "the dog"}]
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.fixture(scope="module")
def pair(tiny_llama: Path) -> tuple[ChatTokenizer, Any]:
    from transformers import AutoTokenizer

    return ChatTokenizer(open_tokenizer(tiny_llama)), AutoTokenizer.from_pretrained(tiny_llama)


def test_encode_and_decode_are_those_of_transformers(pair: tuple[ChatTokenizer, Any]) -> None:
    ours, theirs = pair
    ids = ours.encode("the quick fox")
    assert ids == theirs.encode("the quick fox")
    assert ours.decode([*ids, EOS]) == theirs.decode([*ids, EOS])
    assert ours.decode([*ids, EOS], skip_special_tokens=True) == "the quick fox"
    assert ours.decode(ids[0]) == theirs.decode(ids[0])
    assert ours.batch_decode([ids, ids[:1]]) == theirs.batch_decode([ids, ids[:1]])
    assert ours("the fox")["input_ids"] == theirs("the fox")["input_ids"]
    assert ours(["the fox", "a"])["input_ids"] == theirs(["the fox", "a"])["input_ids"]
    assert (ours.eos_token, ours.eos_token_id) == (theirs.eos_token, theirs.eos_token_id)
    assert (ours.bos_token_id, ours.pad_token_id) == (theirs.bos_token_id, theirs.pad_token_id)
    assert len(ours) == ours.vocab_size == len(theirs)
    assert IM_END in ours.all_special_ids and ours.special_tokens_map["eos_token"] == ours.eos_token


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}])
def test_chat_template_is_that_of_transformers(
    pair: tuple[ChatTokenizer, Any], options: dict[str, bool]
) -> None:
    ours, theirs = pair
    talks: list[Any] = [TALK, [TALK, [*TALK, *TALK]]]
    for talk in talks:
        text = ours.apply_chat_template(talk, tokenize=False, **options)
        assert text == theirs.apply_chat_template(talk, tokenize=False, **options)
        assert ours.apply_chat_template(talk, **options) == (
            ours.encode(text, add_special_tokens=False)
            if isinstance(text, str)
            else [ours.encode(each, add_special_tokens=False) for each in text]
        )


def test_tools_reach_a_template_that_takes_them(tiny_llama: Path) -> None:
    source = (
        "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{{ messages[0].content }}{{ x }}"
    )
    tokenizer = ChatTokenizer(open_tokenizer(tiny_llama).adapted(source))
    assert tokenizer.apply_chat_template(TALK, TOOLS, tokenize=False, x="!") == "add;the fox!"
    assert tokenizer.apply_chat_template(TALK, [], tokenize=False, x=1) == "the fox1"
    tokenizer.close()


def test_llm_has_its_tokenizer(auto_llm: LLM) -> None:
    tokenizer = auto_llm.get_tokenizer()
    assert tokenizer is auto_llm.get_tokenizer()
    assert auto_llm.chat_tokens(TALK) == tokenizer.apply_chat_template(TALK, add_generation_prompt=True)
    continued = auto_llm.chat(TALK, continue_final_message=True)
    assert continued.prompt is not None and continued.prompt.endswith("assistant\nthe dog")
    with pytest.raises(InvalidRequest, match="does not take tools"):
        tokenizer.apply_chat_template(TALK, TOOLS)
