"""The answer of a receipt is continued: the same bits as an answer that was never interrupted."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import GuaranteeLost, InvalidRequest, PromptTooLong
from holdfast.receipts.receipt import digest_logprobs, redact
from support.receipts import prompt_of, receipt_of, resealed
from support.thinking_models import thinker_folder

PROMPT = "the quick brown fox"
THOUGHT_ABOUT = "heads tails the coin is flips heads tails"
KINDS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 0.9},
    "logprobs": {"temperature": 0, "logprobs": 3, "repetition_penalty": 1.2},
    "choices": {"temperature": 1.0, "n": 4, "ignore_eos": False, "stop": ["e"], "min_tokens": 3},
    "regex": {"structured": StructuredOutput(regex="[a-z ]{40}"), "ignore_eos": False},
    "bytes": {"temperature": 2.0, "prompt_logprobs": 1, "echo": True},
}


def params_of(max_tokens: int, **changes: Any) -> SamplingParams:
    usual: dict[str, Any] = {"deterministic": True, "ignore_eos": True, "seed": 5, "temperature": 0.9}
    return SamplingParams(max_tokens=max_tokens, **{**usual, **changes})


def ask(llm: LLM, max_tokens: int, **changes: Any) -> dict[str, Any]:
    result = llm.generate(PROMPT, params_of(max_tokens, **changes), use_tqdm=False)[0]
    assert result.receipt is not None
    receipt: dict[str, Any] = result.receipt
    return receipt


@pytest.mark.parametrize("kind", KINDS)
def test_continued_answer_has_the_bits_of_an_uninterrupted_one(
    auto_llm: LLM, verify_llm: LLM, kind: str
) -> None:
    begun, whole = ask(auto_llm, 9, **KINDS[kind]), ask(auto_llm, 30, **KINDS[kind])
    assert begun["choices"] != whole["choices"]
    for llm in (auto_llm, verify_llm):
        result = llm.continue_answer(begun, max_tokens=30)
        assert result.error is None and result.determinism != "none" and result.receipt is not None
        for name in ("choices", "seed", "prompt_logprobs"):
            assert result.receipt[name] == whole[name]


@pytest.mark.parametrize(
    "while_answering",
    [
        pytest.param(True, id="while_answering"),
        pytest.param(False, id="while_reading", marks=pytest.mark.long),
    ],
)
def test_answer_of_a_thinking_model_continues(tmp_path: Path, while_answering: bool) -> None:
    model = thinker_folder(tmp_path, while_answering=while_answering)
    llm = LLM(str(model), dtype="fp32", max_num_seqs=2, max_pass_tokens=32, kv_memory="1MiB")
    for changes in ({}, {"forced_thoughts": {0: (5, 6), 2: ()}}, {"think": False}):
        whole = llm.generate(THOUGHT_ABOUT, params_of(30, **changes), use_tqdm=False)[0]
        for max_tokens in (1, 8, 9, 10, 11):
            begun = llm.generate(THOUGHT_ABOUT, params_of(max_tokens, **changes), use_tqdm=False)[0]
            assert begun.receipt is not None
            result = llm.continue_answer(begun.receipt, max_tokens=30)
            assert result.error is None and result.choices == whole.choices, (changes, max_tokens)


def test_answer_cut_off_while_its_prompt_is_read_continues(tmp_path: Path) -> None:
    """The receipt has only the first thoughts about the prompt."""
    llm = LLM(
        str(thinker_folder(tmp_path)), dtype="fp32", max_num_seqs=1, max_pass_tokens=32, kv_memory="1MiB"
    )
    prompt = " ".join([THOUGHT_ABOUT] * 16)
    params = params_of(20, n=2)
    whole = llm.generate(prompt, params, use_tqdm=False)[0]
    num_tokens = set()
    for num_steps in range(1, 40, 3):
        llm.engine.scheduler.prefix_cache.clear()
        receipt = aborted_after(llm, prompt, params, num_steps)
        num_tokens.add(tuple(len(choice["token_ids"]) for choice in receipt["choices"]))
        if all(choice["finish_reason"] != "abort" for choice in receipt["choices"]):
            break
        result = llm.continue_answer(receipt, max_tokens=20)
        assert result.error is None and result.choices == whole.choices, num_steps
    assert (0, 0) in num_tokens and any(first and not second for first, second in num_tokens)
    assert any(first == 20 and second < 20 for first, second in num_tokens)


def aborted_after(llm: LLM, prompt: str, params: SamplingParams, num_steps: int) -> dict[str, Any]:
    engine = llm.engine
    request = engine.prepare(prompt, params)
    engine.submit(request)
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    outputs += engine.abort(request.request_id)
    while engine.has_work:
        outputs += engine.step()
    (receipt,) = [each.result.receipt for each in outputs if each.result is not None]
    assert receipt is not None
    return dict(receipt)


def test_continuation_can_be_continued(auto_llm: LLM) -> None:
    receipt = ask(auto_llm, 3)
    for max_tokens in (4, 11, 30):
        receipt = auto_llm.continue_answer(receipt, max_tokens=max_tokens).receipt or {}
    assert receipt["choices"] == ask(auto_llm, 30)["choices"]


def edited(receipt: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The receipt after an edit, with digests and seal made anew."""
    content = copy.deepcopy(receipt)
    edit(content)
    for choice in content["choices"]:
        choice["logprobs"]["digest"] = digest_logprobs(choice["token_ids"], choice["logprobs"]["bits"])
    return resealed(content, prompt=prompt_of(content["prompt"]["token_ids"]))


def _edit_bits(receipt: dict[str, Any]) -> None:
    bits = receipt["choices"][0]["logprobs"]["bits"]
    bits[5] = f"{int(bits[5], 16) ^ 1:08x}"


def _edit_token(receipt: dict[str, Any]) -> None:
    receipt["choices"][0]["token_ids"][4] ^= 1


def _edit_prompt(receipt: dict[str, Any]) -> None:
    receipt["prompt"]["token_ids"][0] ^= 1


def _edit_settings(receipt: dict[str, Any]) -> None:
    receipt["settings"]["temperature"] = 0


EDITS = {"bits": _edit_bits, "token": _edit_token, "prompt": _edit_prompt, "settings": _edit_settings}


@pytest.mark.parametrize("what", EDITS)
def test_contradiction_is_an_error(auto_llm: LLM, what: str) -> None:
    receipt = edited(ask(auto_llm, 8), EDITS[what])
    result = auto_llm.continue_answer(receipt, max_tokens=16)
    assert result.error_code == GuaranteeLost.code and result.receipt is None
    auto_llm.engine.check()
    assert auto_llm.engine.revocation is None


def test_what_cannot_be_continued_is_refused(auto_llm: LLM) -> None:
    begun = ask(auto_llm, 8)
    ordinary = ask(auto_llm, 8, deterministic=False)
    complete = ask(auto_llm, 30, stop=["e"], ignore_eos=False)
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (begun, {"max_tokens": 8}, "ask for more tokens"),
        (begun, {"max_tokens": 1 << 20}, "context"),
        (begun, {"max_tokens": None}, "must be a number"),
        (begun, {"max_tokens": "16"}, "must be a number"),
        (ordinary, {"max_tokens": 16}, "ordinary"),
        (complete, {"max_tokens": 40}, "complete"),
        (redact(begun), {"max_tokens": 16}, "does not contain its prompt"),
        ({"format": "holdfast-receipt/2"}, {"max_tokens": 16}, "receipt"),
    ]
    assert complete["choices"][0]["finish_reason"] == "stop"
    for receipt, settings, message in cases:
        with pytest.raises((InvalidRequest, PromptTooLong), match=message):
            auto_llm.continue_answer(receipt, **settings)
    prompt = begun["prompt"]
    again = auto_llm.continue_answer(
        redact(begun), max_tokens=9, prompt_token_ids=prompt["token_ids"], prompt_salt=prompt["salt"]
    )
    assert again.error is None and len(again.token_ids) == 9


def test_tokens_after_the_end_are_refused(auto_llm: LLM) -> None:
    """Bits that are right for another request, which ignores the end, prove nothing for this one."""
    receipt = ask(auto_llm, 12)
    ids = receipt["choices"][0]["token_ids"]

    def stop_at_a_token(content: dict[str, Any]) -> None:
        content["settings"]["stop_token_ids"] = [ids[5]]

    def stop_at_a_text(content: dict[str, Any]) -> None:
        text = auto_llm.engine.tokenizer.decode([id_ for id_ in ids[:8] if id_ < 300])
        content["settings"]["stop"] = [text[-1]]

    for edit in (stop_at_a_token, stop_at_a_text):
        with pytest.raises(InvalidRequest, match="end"):
            auto_llm.continue_answer(edited(receipt, edit), max_tokens=20)


def test_other_fingerprint_is_refused_unless_forced(auto_llm: LLM) -> None:
    foreign = receipt_of(params_of(2))
    with pytest.raises(InvalidRequest, match="another engine"):
        auto_llm.continue_answer(foreign, max_tokens=10)
    assert auto_llm.continue_answer(foreign, max_tokens=10, force=True).error_code == GuaranteeLost.code
