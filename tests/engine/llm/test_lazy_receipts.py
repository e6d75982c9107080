"""A result's receipt is made when it is read, once, of what was true when the answer ended."""

import copy
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.core.request import Request
from holdfast.core.results import Pending
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import ReceiptFactory
from support.tiny import tiny_engine

PARAMS = SamplingParams(max_tokens=6, temperature=0, deterministic=True, ignore_eos=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of requests whose receipts were made."""
    ids: list[int] = []
    make = ReceiptFactory.make_receipt

    def count(factory: ReceiptFactory, request: Request, *given: Any) -> dict[str, Any]:
        ids.append(request.request_id)
        return make(factory, request, *given)

    monkeypatch.setattr(ReceiptFactory, "make_receipt", count)
    return ids


def test_receipt_is_made_once_and_only_if_read(llm: LLM, made: list[int]) -> None:
    first, second = llm.generate(["the fox", "the dog"], PARAMS)
    assert first.text and first.outputs[0].text == first.text
    assert not made
    receipt = second.receipt
    assert receipt is second.receipt and len(made) == 1
    assert parse_receipt(receipt or {}).choices[0].token_ids == second.token_ids


def test_threads_read_the_same_receipt() -> None:
    at_once = threading.Barrier(4)

    def read(pending: Pending[dict[str, Any] | None]) -> dict[str, Any] | None:
        at_once.wait()
        return pending.get()

    pending = Pending(lambda: {"salt": object()})
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(read, [pending] * 4))
    assert all(one is seen[0] for one in seen)


def test_copies_and_pickles_have_the_same_receipt(llm: LLM) -> None:
    (result,) = llm.generate("the fox", PARAMS)
    pickled, deep, shallow = (
        pickle.loads(pickle.dumps(result)),
        copy.deepcopy(result),
        copy.copy(result),
    )
    changed = replace(result, prompt="other")
    for one in (pickled, deep, shallow, changed):
        assert one.receipt == result.receipt is not None
    assert pickled == deep == shallow == result
    assert deep.receipt is not result.receipt and shallow.receipt is result.receipt


def test_receipt_stays_right_after_the_engine_is_closed_and_its_result_is_changed() -> None:
    llm = LLM.__new__(LLM)
    llm.engine = engine = tiny_engine(EngineConfig(max_num_seqs=2))
    fingerprint, certificate = engine.fingerprint, engine.certificate
    request = engine.prepare("the fox", PARAMS)
    (result,) = llm.run_requests([request])
    counts = {one.name: getattr(result.stats, one.name) for one in fields(result.stats)}
    result.stats.candidates = 99
    engine.background.certificate = None
    llm._running.close()
    del llm, engine
    receipt = parse_receipt(json.loads(json.dumps(result.receipt)))
    assert receipt.fingerprint.digest == fingerprint.digest
    assert receipt.certificate == (certificate.digest if certificate is not None else None)
    assert dict(receipt.counts) == counts
    assert receipt.params == PARAMS


@pytest.mark.parametrize(
    "changes",
    [{}, {"stop": ["o", "zz"]}, {"logprobs": 2}, {"n": 3, "temperature": 0.9, "seed": 5}, {"echo": True}],
    ids=["plain", "stop", "logprobs", "choices", "echo"],
)
def test_results_without_deltas_equal_those_of_a_stream(llm: LLM, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, max_tokens=40, **changes)
    (whole,) = llm.generate("the quick brown fox", params)
    with llm.stream("the quick brown fox", params) as stream:
        deltas = list(stream)
    assert stream.result is not None
    assert whole.choices == stream.result.choices
    texts = ["".join(one.text for one in deltas if one.index == index) for index in range(params.n)]
    assert texts == [choice.text for choice in whole.choices]


def test_step_makes_no_deltas_for_a_caller_that_wants_none(engine_of_two: Engine) -> None:
    engine = engine_of_two
    engine.submit(engine.prepare("the fox", PARAMS), wants_deltas=False)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    (output,) = outputs
    assert output.result is not None and len(output.result.token_ids) == 6 and output.delta.is_empty


@pytest.fixture(scope="module")
def engine_of_two() -> Engine:
    return tiny_engine(EngineConfig(max_num_seqs=2))
