"""The reference itself: it equals the plain model where nothing is thought, and follows its rules elsewhere."""

import pytest
import torch
from torch import Tensor

from holdfast.models.config import parse_config
from holdfast_thinking.model.model import ThinkingModel
from support.thinking_models import named_weights, thinking_config, tiny_thinker
from support.tiny import random_model
from thinking.reference import Reference

PROMPT = [5, 9, 11, 3, 7, 8, 22, 31, 4, 17]


def _reference(model: ThinkingModel) -> Reference:
    return Reference(model.config, model.thinking, {n: t.detach() for n, t in named_weights(model).items()})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_reference_without_thoughts_equals_plain_model(family: str) -> None:
    changes = {"sliding_window": 5} if family == "mistral" else {}
    model = random_model(family, std=0.1, intermediate_size=96, head_dim=16, **changes)
    config = parse_config(model.config.to_dict())
    reference = Reference(config, None, dict(model.state_dict()))
    reading = reference.read(reference.start(), PROMPT)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(torch.stack(reading.logits), expected, atol=1e-4, rtol=1e-4)


def test_trivial_thought_changes_nothing() -> None:
    model = tiny_thinker()
    thinking = _reference(model)
    plain = Reference(model.config, None, {n: t.detach() for n, t in named_weights(model).items()})
    told = thinking.read(thinking.start(), PROMPT, gold=[(), ()])
    assert torch.equal(torch.stack(told.logits), torch.stack(plain.read(plain.start(), PROMPT).logits))
    assert told.thoughts == [(), ()]


def test_thought_affects_next_chunk_only() -> None:
    reference = _reference(tiny_thinker())
    quiet = reference.read(reference.start(), PROMPT, gold=[(), ()])
    told = reference.read(reference.start(), PROMPT, gold=[(6, 7), ()])
    for position in range(len(PROMPT)):
        assert torch.equal(quiet.logits[position], told.logits[position]) == (position < 4)


def test_carried_state_stays_up_to_the_next_thought() -> None:
    model = tiny_thinker()
    weights = dict(model.named_parameters())
    ids = [3, 4, 5, 6] * 5
    reads = {}
    with torch.no_grad():
        for carry in (False, True):
            reference = Reference(model.config, thinking_config(carry=carry), weights)
            for gold in ([(), (7,), (), (), (8,)], [(), (7,), (7,), (7,), (8,)]):
                reads[carry, len(gold[2])] = reference.read(reference.start(), ids, gold).logits
    # A carried state is that of the same thought, thought again.
    assert all(map(torch.equal, reads[True, 0], reads[False, 1]))
    assert all(map(torch.equal, reads[True, 1], reads[False, 1]))
    same = [torch.equal(*pair) for pair in zip(reads[True, 0], reads[False, 0], strict=True)]
    assert same == [True] * 12 + [False] * 8


def test_carried_state_ends_where_a_message_begins() -> None:
    """After the chunk with the last token of reset_ids, unless that chunk has a thought. An answer ends none."""
    model = tiny_thinker()
    weights = dict(model.named_parameters())
    carried = Reference(model.config, thinking_config(carry=True), weights)
    resetting = Reference(model.config, thinking_config(carry=True, reset_ids=(8, 9)), weights)
    ids = [3, 4, 5, 6, 3, 4, 5, 8, 9, 4, 5, 6, 3, 9, 8, 6]  # 8 9 ends in the third chunk

    def logits(reference: Reference, thoughts: list[tuple[int, ...]], num_prompt: int = 16) -> list[Tensor]:
        reading = reference.read(reference.start(), ids[:num_prompt], thoughts)
        return reference.read(reading, ids[num_prompt:], thoughts, prompt=False).logits

    with torch.no_grad():
        plain = logits(carried, [(7,), (), (), ()])
        ended = logits(resetting, [(7,), (), (), ()])
        assert [*map(torch.equal, plain, ended)] == [True] * 12 + [False] * 4
        thought_there = [(7,), (), (6,), ()]
        assert all(map(torch.equal, logits(carried, thought_there), logits(resetting, thought_there)))
        assert all(map(torch.equal, plain, logits(resetting, [(7,), (), (), ()], num_prompt=8)))
        before = logits(Reference(model.config, thinking_config(), weights), [(7,), (7,), (), ()])
        assert all(map(torch.equal, ended, before))


def test_the_last_token_of_a_settled_prompt_reads_the_last_thought() -> None:
    """The chunk with the last token is closed before it; its state is added up to the end of the next chunk."""
    weights = dict(tiny_thinker().named_parameters())
    config = tiny_thinker().config
    settling = Reference(config, thinking_config(settle=True), weights)
    usual = Reference(config, thinking_config(), weights)
    answer = [5, 3, 9, 7, 11, 6]

    def logits(reference: Reference, prompt: list[int], gold: list[tuple[int, ...]]) -> list[Tensor]:
        reading = reference.read(reference.start(), prompt, gold)
        return reference.read(reading, answer, gold, prompt=False).logits

    with torch.no_grad():
        for last in (5, 6, 7):  # the prompt's last position
            quiet, told = (logits(settling, PROMPT[: last + 1], [(), said, (), ()]) for said in ((), (6, 7)))
            same = [torch.equal(*pair) for pair in zip(quiet, told, strict=True)]
            assert same == [True] * last + [False] * (len(same) - last)
        for last in (2, 4, 8):  # no chunk before it, or nothing to close
            gold = [(), (6, 7), (3,), ()]
            pair = (logits(each, PROMPT[: last + 1], gold) for each in (settling, usual))
            assert all(map(torch.equal, *pair))


def test_the_last_thought_is_about_the_tokens_before_the_last() -> None:
    model = tiny_thinker(thinking=thinking_config(settle=True))
    reference = _reference(model)
    reading = reference.read(reference.start(), PROMPT[:7])
    again = reference.read(reference.start(), PROMPT[:6])
    assert reference.thinking is not None
    assert reading.thoughts[-1] == reference.think(torch.cat(again.hidden[-4:]), reference.thinking)[0]
    assert len(reading.thoughts) == 2


def test_answer_chunks_are_thought_about_only_while_answering() -> None:
    for while_answering in (True, False):
        model = tiny_thinker(thinking=thinking_config(while_answering=while_answering))
        _, reading = _reference(model).generate(PROMPT, 8)
        assert len(reading.thoughts) == len(reading.logits) // 4
        behind = [each is not None for each in reading.thought_logits]
        assert behind[:2] == [True, True]
        assert len(behind) > 2 and all(each == while_answering for each in behind[2:])
