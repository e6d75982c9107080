"""Replay: a repeated answer is equal, and the first difference is located."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import SamplingParams
from holdfast.core.sampling_params import score_params
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.llm.llm import LLM
from holdfast.engine.replay import replay, require_prompt
from holdfast.errors import EngineStopped, InvalidRequest, PromptTooLong
from holdfast.receipts import receipt as receipt_module
from holdfast.receipts.compare import compare_engines
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import (
    digest_logprobs,
    logprob_bits,
    redact,
)
from holdfast.structured.behaviour import grammar_library
from support.receipts import ask, prompt_of, resealed
from support.stepping import Broken
from support.tiny import tiny_model

PROMPT = "the quick brown fox"


def settings(**changes: Any) -> SamplingParams:
    usual = {"max_tokens": 16, "temperature": 0.9, "deterministic": True, "ignore_eos": True}
    return SamplingParams(**{**usual, **changes})


def test_replay_is_equal_alone_in_a_batch_and_in_the_other_mode(auto_llm: LLM, verify_llm: LLM) -> None:
    for params in (settings(), settings(logprobs=4), settings(temperature=0)):
        receipt = parse_receipt(ask(auto_llm, PROMPT, params))
        for llm, load in ((auto_llm, 0), (verify_llm, 0), (auto_llm, 11), (verify_llm, 5)):
            again = replay(llm, receipt, num_neighbours=load)
            assert again.same, again.difference
            assert (again.num_choices, again.num_tokens, again.num_logprobs) == (1, 16, 16)
            assert again.mode == {"auto": "certified", "verify": "verified"}[llm.config.determinism]


def test_replay_of_several_choices_scores_and_echo(auto_llm: LLM, verify_llm: LLM) -> None:
    params = settings(n=3, prompt_logprobs=2, echo=True, logprobs=1, presence_penalty=0.5)
    receipt = parse_receipt(ask(auto_llm, PROMPT, params))
    for llm, load in ((auto_llm, 0), (verify_llm, 4)):
        again = replay(llm, receipt, num_neighbours=load)
        assert again.same, again.difference
        assert (again.num_choices, again.num_tokens, again.num_logprobs) == (
            3,
            48,
            48 + len(receipt.prompt.token_ids or ()) - 1,
        )


def test_replay_of_a_model_with_recurrent_states(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "qwen3_5_text", std=0.1)
    with LLM(
        str(folder), dtype="fp32", max_num_seqs=8, max_pass_tokens=64, certification="background"
    ) as llm:
        receipt = parse_receipt(ask(llm, PROMPT * 6, settings(n=2, logprobs=1, prompt_logprobs=0)))
        again = replay(llm, receipt, num_neighbours=5)
    assert again.same, again.difference


def score_of(llm: LLM) -> dict[str, Any]:
    completion = " jumps over the lazy dog"
    request = llm.engine.prepare(PROMPT, score_params(deterministic=True), completion=completion)
    (result,) = llm.run_requests([request])
    assert result.receipt is not None
    return result.receipt


def test_replay_of_a_score(auto_llm: LLM, verify_llm: LLM) -> None:
    receipt = parse_receipt(score_of(auto_llm))
    assert receipt.prompt_logprobs is not None and receipt.prompt.token_ids is not None
    num_prompt = len(auto_llm.engine.tokenizer.encode(PROMPT))
    assert receipt.prompt_logprobs.first == num_prompt and receipt.read_len is None
    again = replay(verify_llm, receipt)
    assert again.same and again.num_logprobs == len(receipt.prompt.token_ids) - num_prompt


def test_replay_uses_the_reported_seed(auto_llm: LLM) -> None:
    made = ask(auto_llm, PROMPT, settings(temperature=1.5))
    assert made["settings"]["seed"] is None
    assert replay(auto_llm, parse_receipt(made)).same
    other = replay(auto_llm, parse_receipt(resealed(made, seed=str(int(made["seed"]) ^ 1))))
    assert other.difference is not None
    assert "expected token" in other.difference.what


def test_changed_token_is_located(auto_llm: LLM) -> None:
    made = ask(auto_llm, PROMPT, settings())
    (choice,) = made["choices"]
    right = choice["token_ids"][7]
    choice["token_ids"][7] = wrong = 65 if right != 65 else 66
    choice["logprobs"]["digest"] = digest_logprobs(choice["token_ids"], choice["logprobs"]["bits"])
    difference = replay(auto_llm, parse_receipt(resealed(made))).difference
    assert difference is not None
    assert (difference.choice, difference.position) == (0, 7)
    decode = auto_llm.engine.tokenizer.token_bytes
    text = [decode(id_).decode("utf-8", "replace") for id_ in (wrong, right)]
    assert difference.what == f"expected token {wrong} {text[0]!r}, got {right} {text[1]!r}"


def test_replay_of_an_ordinary_request(auto_llm: LLM) -> None:
    receipt = parse_receipt(ask(auto_llm, PROMPT, settings(deterministic=False, temperature=0)))
    assert replay(auto_llm, receipt).mode == "none"


def test_omitted_prompt_must_be_given(auto_llm: LLM) -> None:
    made = ask(auto_llm, PROMPT, settings())
    ids = made["prompt"]["token_ids"]
    receipt = parse_receipt({**made, "prompt": {**made["prompt"], "token_ids": None}})
    with pytest.raises(InvalidRequest, match="does not contain its prompt"):
        replay(auto_llm, receipt)
    with pytest.raises(InvalidRequest, match="is not the receipt's"):
        replay(auto_llm, receipt, [*ids, 5])
    assert replay(auto_llm, receipt, ids).same
    redacted = parse_receipt(redact(made))
    with pytest.raises(InvalidRequest, match="does not contain the salt of its prompt"):
        replay(auto_llm, redacted, ids)
    with pytest.raises(InvalidRequest, match="is not the receipt's"):
        replay(auto_llm, redacted, ids, prompt_salt="0" * 32)
    assert replay(auto_llm, redacted, ids, prompt_salt=made["prompt"]["salt"]).same
    assert require_prompt(parse_receipt(made), ids) == ids
    with pytest.raises(InvalidRequest, match="is not the receipt's"):
        require_prompt(parse_receipt(made), [])


def test_request_the_engine_cannot_serve_is_refused(auto_llm: LLM) -> None:
    made = ask(auto_llm, PROMPT, settings())
    foreign = resealed(made, prompt=prompt_of([100_000]))
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        replay(auto_llm, parse_receipt(foreign))
    long = resealed(made, settings={**made["settings"], "max_tokens": 10_000})
    with pytest.raises(PromptTooLong):
        replay(auto_llm, parse_receipt(long))


def test_failed_replay_raises(auto_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = parse_receipt(ask(auto_llm, PROMPT, settings()))

    monkeypatch.setattr(auto_llm.engine, "runner", Broken())
    with pytest.raises(EngineStopped, match="a cosmic ray"):
        replay(auto_llm, receipt)


def difference_of(llm: LLM, receipt: dict[str, Any]) -> str:
    """The difference a replay of this receipt finds."""
    found = replay(llm, parse_receipt(resealed(receipt))).difference
    assert found is not None
    return found.what


def aborted_after(made: dict[str, Any], params: SamplingParams, num_tokens: int, llm: LLM) -> dict[str, Any]:
    """The receipt of the same request, aborted after so many tokens."""
    result = llm.generate([made["prompt"]["token_ids"]], replace(params, seed=int(made["seed"])))[0]
    (answer,) = made["choices"]
    ids, bits = answer["token_ids"][:num_tokens], answer["logprobs"]["bits"][:num_tokens]
    digest = (
        digest_logprobs(ids, bits)
        if result.logprobs is None
        else logprob_bits(result.logprobs[:num_tokens]).digest
    )
    choice = {"token_ids": ids, "finish_reason": "abort", "logprobs": {"bits": bits, "digest": digest}}
    return resealed(made, choices=[choice])


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_aborted_answer_is_compared_up_to_its_end(auto_llm: LLM, logprobs: int | None) -> None:
    params = settings(logprobs=logprobs)
    made = ask(auto_llm, PROMPT, params)
    for num_tokens in (0, 1, 15):
        aborted = aborted_after(made, params, num_tokens, auto_llm)
        assert replay(auto_llm, parse_receipt(aborted)).same
    aborted = aborted_after(made, params, 16, auto_llm)
    assert difference_of(auto_llm, aborted) == "expected the end to be 'abort', got 'length'"
    longer = settings(logprobs=logprobs, max_tokens=20, seed=int(made["seed"]))
    aborted = {
        **aborted_after(ask(auto_llm, PROMPT, longer), longer, 18, auto_llm),
        "settings": made["settings"],
    }
    assert difference_of(auto_llm, aborted) == "expected 18 tokens, got 16"


def test_top_logprobs_of_an_aborted_answer(auto_llm: LLM) -> None:
    params = settings(logprobs=3)
    aborted = aborted_after(ask(auto_llm, PROMPT, params), params, 5, auto_llm)
    aborted["choices"][0]["logprobs"]["digest"] = "0" * 64
    assert (
        difference_of(auto_llm, aborted) == "the logprobs of the chosen tokens agree, the top logprobs differ"
    )


def test_changed_score_is_found(auto_llm: LLM) -> None:
    made = score_of(auto_llm)
    ids, scores = made["prompt"]["token_ids"], made["prompt_logprobs"]
    hidden = {**made, "prompt": {**made["prompt"], "token_ids": None}}
    assert replay(auto_llm, parse_receipt(hidden), ids).same
    for changed, what in (
        ({**scores, "digest": "0" * 64}, "the top logprobs differ"),
        ({**scores, "first": scores["first"] + 1}, "the bits of the logprob of the prompt's token"),
        ({**scores, "bits": scores["bits"][:-1]}, "logprobs of the prompt's tokens, got"),
        ({**scores, "first": 9999}, "expected some logprobs of the prompt's tokens, got none"),
        (None, "expected no logprobs of the prompt's tokens, got some"),
    ):
        found = replay(auto_llm, parse_receipt(resealed(hidden, prompt_logprobs=changed)), ids).difference
        assert found is not None
        assert what in found.what


def test_replay_of_an_aborted_score(auto_llm: LLM) -> None:
    made = score_of(auto_llm)
    (choice,) = made["choices"]
    aborted = {**made, "choices": [{**choice, "finish_reason": "abort"}]}
    assert difference_of(auto_llm, aborted) == "expected the end to be 'abort', got 'length'"
    first, bits = made["prompt_logprobs"]["first"], made["prompt_logprobs"]["bits"][:2]
    digest = digest_logprobs(made["prompt"]["token_ids"][first : first + 2], bits)
    for part in ({"first": first, "bits": bits, "digest": digest}, None):
        again = replay(auto_llm, parse_receipt(resealed(aborted, prompt_logprobs=part)))
        assert again.same, again.difference


def test_replay_of_a_request_aborted_in_its_prompt(auto_llm: LLM) -> None:
    params = settings(prompt_logprobs=2)
    made = aborted_after(ask(auto_llm, PROMPT, params), params, 0, auto_llm)
    result = auto_llm.generate([PROMPT], params)[0]
    kept = logprob_bits([one for one in result.prompt_logprobs or () if one is not None][:2])
    part = {"first": 1, "bits": list(kept.bits), "digest": kept.digest}
    for scores in (made["prompt_logprobs"], part, None):
        again = replay(auto_llm, parse_receipt(resealed(made, prompt_logprobs=scores)))
        assert again.same, again.difference
    wrong = {**part, "digest": "0" * 64}
    assert "the top logprobs differ" in difference_of(auto_llm, {**made, "prompt_logprobs": wrong})


@pytest.mark.parametrize("part", ["llguidance", "masks"])
def test_another_grammar_library_is_named(auto_llm: LLM, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides structured answers, and no others."""
    pytest.importorskip("llguidance")
    plain = parse_receipt(ask(auto_llm, PROMPT, settings()))
    made = ask(
        auto_llm, PROMPT, settings(structured=StructuredOutput(choice=["red", "blue"]), ignore_eos=False)
    )
    structured = parse_receipt(made)
    engine = auto_llm.engine.fingerprint
    assert plain.grammar is None and "grammar" not in plain.as_dict()
    assert structured.differences(engine) == [] and replay(auto_llm, structured).same
    other = msgspec.structs.replace(
        grammar_library(), **{part: {"llguidance": "9.9", "masks": "a" * 64}[part]}
    )
    monkeypatch.setattr(receipt_module, "grammar_library", lambda: other)
    (line,) = structured.differences(engine)
    assert line.startswith(f"grammar.{part}: {getattr(other, part)[:3]}") and "in the receipt" in line
    assert plain.differences(engine) == []
    assert compare_engines(structured, msgspec.structs.replace(structured, grammar=other)) != []
    assert compare_engines(structured, plain) == []
    with pytest.raises(InvalidRequest, match=f"another engine .grammar.{part}"):
        auto_llm.continue_answer(unfinished(made), max_tokens=16)


def unfinished(receipt: dict[str, Any]) -> dict[str, Any]:
    """The same as if the client had left before the last token."""
    (choice,) = receipt["choices"]
    ids, bits = choice["token_ids"][:-1], choice["logprobs"]["bits"][:-1]
    logprobs = {"bits": bits, "digest": digest_logprobs(ids, bits)}
    return resealed(receipt, choices=[{"token_ids": ids, "finish_reason": "abort", "logprobs": logprobs}])


def test_grammar_library_of_a_plain_answer_is_refused(auto_llm: LLM) -> None:
    made = ask(auto_llm, PROMPT, settings(max_tokens=2))
    forged = resealed(made, grammar={"llguidance": "1.9.1", "masks": "a" * 64})
    with pytest.raises(InvalidRequest, match="its settings ask for no structured output"):
        parse_receipt(forged)
    for wrong in ({}, {"llguidance": "", "masks": "a" * 64}, {"llguidance": "1", "masks": "b"}, [], "1.9"):
        with pytest.raises(InvalidRequest, match="grammar"):
            parse_receipt(resealed(made, grammar=wrong))
