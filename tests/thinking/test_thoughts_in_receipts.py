"""Thoughts in results, receipts and replay; invalid thoughts in receipts and requests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as edit

from holdfast import LLM, SamplingParams
from holdfast.core.sampling_params import score_params
from holdfast.engine.replay import replay
from holdfast.errors import InvalidRequest
from holdfast.receipts.compare import compare
from holdfast.receipts.reader import parse_receipt
from support.receipts import resealed
from support.thinking_models import thinker_folder

PROMPT = tuple(range(20, 50))
PARAMS = SamplingParams(max_tokens=9, temperature=0, deterministic=True, ignore_eos=True)
_TOO_MANY = 400  # ids of the model; the tokenizer has fewer


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = thinker_folder(tmp_path_factory.mktemp("wide"), sizes={"vocab_size": _TOO_MANY})
    return LLM(str(folder), dtype="fp32", max_num_seqs=4)


def test_thought_text_handles_unknown_token_ids(llm: LLM) -> None:
    known = llm.engine.tokenizer.vocab_size
    assert known < _TOO_MANY
    results = llm.generate([PROMPT[at:] for at in range(12)], PARAMS)
    written = [thought for result in results for thought in result.thoughts]
    assert any(max(thought.token_ids, default=0) >= known for thought in written)
    (forced,) = llm.generate([PROMPT], replace(PARAMS, forced_thoughts={1: (_TOO_MANY - 1, 70)}))
    assert forced.thoughts[1].token_ids == (_TOO_MANY - 1, 70)
    assert forced.thoughts[1].text == llm.engine.tokenizer.decode([70]).strip()


def test_receipt_holds_thoughts_and_replay_compares_them(llm: LLM) -> None:
    (result,) = llm.generate([PROMPT], PARAMS)
    receipt = parse_receipt(json.loads(json.dumps(result.receipt)))
    (choice,) = receipt.choices
    told = tuple((thought.chunk, thought.token_ids) for thought in result.thoughts if thought.token_ids)
    assert choice.thoughts == told != ()
    assert replay(llm, receipt, num_neighbours=2).difference is None
    (chunk, ids), *rest = told
    for others in (rest, [(chunk, (*ids[:-1], ids[-1] - 1)), *rest], [*told, (chunk + 500, ids)]):
        other = edit(receipt, choices=(edit(choice, thoughts=tuple(others)),))
        found = compare(other, receipt, str)
        assert found is not None and "thought" in found.what
    left = edit(choice, thoughts=told[:1], finish_reason="abort")
    assert compare(edit(receipt, choices=(left,)), edit(receipt, choices=(left,)), str) is None
    unaware = edit(receipt, choices=(edit(choice, thoughts=None),))
    assert compare(unaware, receipt, str) is None
    assert "thoughts" not in unaware.as_dict()["choices"][0]


@pytest.mark.parametrize("read_len", [1, 9, 22])
@pytest.mark.parametrize(
    "thinking", [{"while_answering": False}, {"carry": True, "reset_ids": (30, 31)}], ids=["reads", "resets"]
)
def test_score_is_replayed_as_a_score(tmp_path: Path, thinking: dict[str, Any], read_len: int) -> None:
    """What is read as a prompt is thought about, and ends a state; what was scored after it is not."""
    llm = LLM(str(thinker_folder(tmp_path, sizes={"vocab_size": _TOO_MANY}, **thinking)), dtype="fp32")
    prompt, completion = PROMPT[:read_len], (*PROMPT[read_len:], 30, 31, *PROMPT)
    request = llm.engine.prepare(prompt, score_params(deterministic=True), completion=completion)
    (result,) = llm.run_requests([request])
    receipt = parse_receipt(json.loads(json.dumps(result.receipt)))
    assert receipt.read_len == read_len
    assert replay(llm, receipt, num_neighbours=1).difference is None
    read = replace(PARAMS, max_tokens=0, prompt_logprobs=0)
    (whole,) = llm.generate([(*prompt, *completion)], read)
    scores = (whole.prompt_logprobs or ())[read_len:]
    assert [one and one.logprob for one in scores] != [
        one.logprob for one in result.prompt_logprobs or () if one is not None
    ]
    older = edit(receipt, read_len=None)
    assert replay(llm, older).same == (read_len > 1)


@pytest.mark.parametrize("read_len", [0, -1, "3", 4, 31, 400])
def test_receipt_with_an_invalid_read_len_is_refused(llm: LLM, read_len: object) -> None:
    request = llm.engine.prepare(PROMPT[:3], score_params(deterministic=True), completion=PROMPT[3:])
    (scored,), (answered,) = llm.run_requests([request]), llm.generate([PROMPT], PARAMS)
    for made, given in ((scored.receipt, read_len), (answered.receipt, 3)):
        with pytest.raises(InvalidRequest, match="read_len"):
            parse_receipt(resealed({**json.loads(json.dumps(made)), "read_len": given}))


def test_invalid_forced_thoughts_are_refused(llm: LLM) -> None:
    assert llm.engine.limits.thinking is not None
    end = llm.engine.limits.thinking.end_id
    for forced, message in (
        ({0: (end,)}, "which ends a thought"),
        ({0: (70,) * 4}, "at most 3 tokens"),
        ({0: (_TOO_MANY,)}, "not in the vocabulary"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            llm.generate([PROMPT], replace(PARAMS, forced_thoughts=forced))
