"""Receipts: their content, their schema, and the round trip of their settings."""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from holdfast import SamplingParams
from holdfast.core.request import Request
from holdfast.core.results import Choice, Result, Stats
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.llm.llm import LLM
from holdfast.numerics.settings import NumericSettings
from holdfast.receipts.canonical_json import digest_of
from holdfast.receipts.reader import parse_receipt, read_receipt
from holdfast.receipts.receipt import FORMAT, ReceiptFactory, logprob_bits, redact
from holdfast.receipts.signing import SigningKey
from support.receipts import MACHINE, PARTS, ask, receipt_of

SCHEMA = json.loads(Path(__file__).parents[2].joinpath("docs", "receipt.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
PROMPT = "the quick brown fox"

EVERYTHING: dict[str, Any] = {
    "max_tokens": 9, "min_tokens": 2, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01,
    "seed": (1 << 64) - 1, "stop": ["fox", "dög\n"], "stop_token_ids": [5, 4], "ignore_eos": True, "logprobs": 3,
    "deterministic": True, "n": 3, "presence_penalty": 0.5, "frequency_penalty": -0.25, "repetition_penalty": 1.1,
    "skip_special_tokens": False, "include_stop_str_in_output": True,
    "logit_bias": {7: -100.0, 5: 0.1}, "allowed_token_ids": [1, 2, 3], "bad_token_ids": [9], "bad_words": "no",
    "prompt_logprobs": 2, "echo": True, "logprob_token_ids": [3, 1],
}  # fmt: skip
STRUCTURED_OUTPUTS = [
    StructuredOutput(json_schema={"type": "object", "properties": {"a": {"const": "\u00fc"}}}),
    StructuredOutput(json_schema=False),
    StructuredOutput(json_object=True),
    StructuredOutput(regex=r"[a-z]+\d"),
    StructuredOutput(choice=["yes", "no"]),
    StructuredOutput(lark='start: "a"'),
    StructuredOutput(lark='start: "a" <|end|>', special_tokens=True),
]


def valid(receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt matches the schema and survives a round trip through text."""
    text = json.dumps(receipt)
    VALIDATOR.validate(json.loads(text))
    assert read_receipt(text).as_dict() == receipt
    return receipt


def test_schema_is_valid_and_has_every_setting() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    settings = SCHEMA["properties"]["settings"]["properties"]
    assert list(settings) == [one.name for one in fields(SamplingParams)]
    kinds = settings["structured"]["oneOf"][1]["properties"]
    assert list(kinds) == [one.name for one in fields(StructuredOutput)]


def test_schema_takes_the_settings_of_every_device() -> None:
    parts = SCHEMA["properties"]["fingerprint"]["properties"]["parts"]["properties"]
    on_cpu = NumericSettings(2, "highest", "DEFAULT", (("OMP_DYNAMIC", "true"),))
    on_gpu = replace(on_cpu, cuda=(("allow_tf32", False),))
    for settings in (on_cpu, on_gpu):
        Draft202012Validator(parts["settings"]).validate(settings.deciding())


def test_receipt_content(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, deterministic=True, ignore_eos=True, logprobs=2)
    receipt = valid(ask(llm, PROMPT, params))
    result = llm.generate([PROMPT], params)[0]
    assert receipt["format"] == FORMAT
    assert receipt["mode"] == {"auto": "certified", "verify": "verified"}[llm.config.determinism]
    assert receipt["prompt"]["token_ids"] == list(result.prompt_token_ids)
    assert receipt["seed"] == "0"
    assert llm.engine.certificate is not None
    assert receipt["certificate"] == llm.engine.certificate.digest
    assert set(receipt["counts"]) == {one.name for one in fields(Stats)}
    hints = receipt["engine"]
    assert (hints["model"], hints["device"], hints["dtype"]) == (llm.config.model, "cpu", "float32")
    (choice,) = receipt["choices"]
    assert choice["token_ids"] == list(result.token_ids)
    assert choice["finish_reason"] == "length"
    assert result.logprobs is not None
    values = [struct.unpack(">f", bytes.fromhex(bits))[0] for bits in choice["logprobs"]["bits"]]
    assert values == [one.logprob for one in result.logprobs]


def test_modes_give_equal_receipts_except_mode_and_counts(auto_llm: LLM, verify_llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, seed=3, deterministic=True, ignore_eos=True, logprobs=3)
    one, other = (ask(llm, PROMPT, params) for llm in (auto_llm, verify_llm))
    assert {key for key in one if one[key] != other[key]} == {"mode", "counts", "prompt", "seal"}
    assert one["prompt"]["token_ids"] == other["prompt"]["token_ids"]


def test_engine_without_certificate(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), dtype="fp32", determinism="off", max_pass_tokens=64)
    receipt = valid(ask(llm, PROMPT, SamplingParams(max_tokens=4)))
    assert (receipt["mode"], receipt["certificate"]) == ("none", None)


def test_prompt_can_be_left_out() -> None:
    whole = valid(receipt_of(SamplingParams()))
    short, redacted = valid(redact(whole, keep_salt=True)), valid(redact(whole))
    assert short == {**whole, "prompt": {**whole["prompt"], "token_ids": None}}
    assert redacted == {**whole, "prompt": {**whole["prompt"], "token_ids": None, "salt": None}}
    covered = f'{{"salt":"{whole["prompt"]["salt"]}","token_ids":[1,2,3]}}'
    assert redacted["prompt"]["digest"] == hashlib.sha256(covered.encode()).hexdigest()
    assert whole["prompt"]["token_ids"] == [1, 2, 3]


def test_signed_receipt_matches_the_schema() -> None:
    key = SigningKey.generate()
    receipt = valid(receipt_of(SamplingParams(), key=key))
    assert receipt["signer"] == {"algorithm": "ed25519", "key_id": key.key_id}


def test_two_receipts_of_one_prompt_have_two_digests() -> None:
    one, other = (receipt_of(SamplingParams())["prompt"] for _ in range(2))
    assert one["salt"] != other["salt"]
    assert one["digest"] != other["digest"]


def made(params: SamplingParams, choice: Choice, given_ids: Sequence[int]) -> dict[str, Any]:
    result = Result((1,), (choice,), seed=0, determinism="none", stats=Stats())
    logprobs = [TokenLogprob(id_, -1.0) for id_ in given_ids]
    request = Request(1, (1,), params, 0)
    return ReceiptFactory(lambda: PARTS, None, MACHINE).make_receipt(request, result, [logprobs], None)


@pytest.mark.parametrize("given_ids", [[], [4], [5], [4, 6], [4, 5, 5]])
def test_incomplete_logprobs_are_dropped_or_asserted(given_ids: list[int]) -> None:
    choice = Choice("", (4, 5), "stop")
    assert (
        valid(made(SamplingParams(deterministic=False), choice, given_ids))["choices"][0]["logprobs"] is None
    )
    with pytest.raises(AssertionError):
        made(SamplingParams(deterministic=True), choice, given_ids)


def test_empty_answer_has_empty_bits() -> None:
    receipt = valid(made(SamplingParams(deterministic=True), Choice("", (), "abort"), []))
    assert receipt["choices"][0]["logprobs"]["bits"] == []


def test_digest_covers_top_logprobs() -> None:
    plain = logprob_bits([TokenLogprob(4, -0.5)])
    assert plain.digest == digest_of([[4, "bf000000", []]])
    best = logprob_bits([TokenLogprob(4, -0.5, ((4, -0.5), (9, -2.0)))])
    assert best.bits == plain.bits
    assert best.digest == digest_of([[4, "bf000000", [[4, "bf000000"], [9, "c0000000"]]]])


def test_receipts_share_no_state() -> None:
    first = receipt_of(SamplingParams())
    first["fingerprint"]["parts"]["settings"]["threads"] = 99
    assert receipt_of(SamplingParams())["fingerprint"]["parts"]["settings"]["threads"] == 2


@pytest.mark.parametrize(
    "structured", [None, *STRUCTURED_OUTPUTS], ids=lambda structured: structured and structured.kind
)
def test_settings_round_trip(structured: StructuredOutput | None) -> None:
    given_settings = {**EVERYTHING, "structured": structured, "think": False, "forced_thoughts": ()}
    if structured is not None:
        given_settings |= {"ignore_eos": False, "think": True, "forced_thoughts": {3: (7, 8), 0: ()}}
    params = SamplingParams(**given_settings)
    assert set(given_settings) == {one.name for one in fields(SamplingParams)}
    defaults = SamplingParams()
    if structured is None:
        same = {
            one.name for one in fields(params) if getattr(params, one.name) == getattr(defaults, one.name)
        }
        assert same == {"structured", "forced_thoughts"}, (
            "every field is tried with another value than its own"
        )
    receipt = valid(receipt_of(params, (4,), (5,), (6,)))
    assert parse_receipt(receipt).params == params
    assert parse_receipt(json.loads(json.dumps(receipt))).params == params


@given(
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    bias=st.dictionaries(st.integers(0, 1 << 30), st.floats(-100, 100), max_size=4),
    stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
)
def test_any_settings_round_trip(
    temperature: float, top_p: float, bias: dict[int, float], stop: list[str], seed: int | None
) -> None:
    settings: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "logit_bias": bias, "stop": stop}
    params = SamplingParams(**settings, seed=seed, deterministic=False)
    assert parse_receipt(json.loads(json.dumps(receipt_of(params)))).params == params
