"""What leaves an engine whose certified passes are wrong.

In `auto` an answer may leave before its spot check, at every rate: the certificate is what it rests
on. In `verify` no certificate is trusted, so no wrong token leaves. A receipt that was edited does
not pass for the engine's.
"""

import copy
from typing import Any

import pytest

from adversary.evidence import Evidence
from adversary.hostile_models import fresh_certificates
from adversary.questions import QUESTIONS, answer, ask
from holdfast.bench.stress import result_bits
from holdfast.core.results import Result
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.receipts.reader import parse_receipt
from support.adversary_targets import small_target
from support.faulty_backend import FaultyBackend


def _plant(engine: Engine) -> None:
    decoder = engine.runner._decoder  # type: ignore[attr-defined]
    decoder.backend = FaultyBackend(decoder.backend, 2.0)


def _open(determinism: str, spot_check_rate: float) -> Engine:
    target = small_target("c")
    return target.open(determinism=determinism, spot_check_rate=spot_check_rate)


@pytest.fixture(scope="module")
def truths() -> dict[str, Any]:
    with fresh_certificates():
        results = answer(_open("auto", 0.0), list(QUESTIONS.values()))
    return {name: result_bits(result) for name, result in zip(QUESTIONS, results, strict=True)}


def test_verify_sends_no_wrong_answer(truths: dict[str, Any]) -> None:
    evidence = Evidence()
    with fresh_certificates():
        engine = _open("verify", 1.0)
        for name, bits in truths.items():
            evidence.add(engine.fingerprint.digest, name, bits)
        _plant(engine)
        ask(engine, evidence)
        results = answer(engine, list(QUESTIONS.values()))
    evidence.assert_held()
    assert sum(result.stats.rolled_back for result in results) > 0  # the fault was there


def test_auto_revokes_and_later_answers_are_right(truths: dict[str, Any]) -> None:
    """At a rate of 1 the first answers may still be wrong: `verify` is the mode in which none is."""
    with fresh_certificates():
        engine = _open("auto", 1.0)
        if not engine.scheduler.config.one_pass_suffices:
            pytest.skip("nothing is certified on this machine, so nothing can be revoked")
        _plant(engine)
        first = answer(engine, list(QUESTIONS.values()))
        assert engine.revocation is not None and engine.certificate is None
        for name, result in zip(QUESTIONS, first, strict=True):
            assert _is_right(result, truths[name]) or _says_so(result) or result.determinism == "certified"
        later = answer(engine, list(QUESTIONS.values()))
    for name, result in zip(QUESTIONS, later, strict=True):
        assert _is_right(result, truths[name]) and result.determinism == "verified"


def _is_right(result: Result, truth: Any) -> bool:
    return bool(result_bits(result) == truth)


def _says_so(result: Result) -> bool:
    return result.error_code == "guarantee_lost" and result.determinism == "none"


EDITS = {
    "token": lambda receipt: receipt["choices"][0]["token_ids"].__setitem__(0, 5),
    "count": lambda receipt: receipt["counts"].update(canonical_passes=99),
    "certificate": lambda receipt: receipt.update(certificate="0" * 64),
    "engine": lambda receipt: receipt["engine"].update(holdfast="9.9.9"),
}


@pytest.fixture(scope="module")
def receipt() -> dict[str, Any]:
    (result,) = answer(small_target("c").open(), [QUESTIONS["sampled"]])
    assert result.receipt is not None
    parse_receipt(result.receipt)
    return result.receipt


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_edited_receipt_is_refused(receipt: dict[str, Any], edit: Any) -> None:
    """Also an edit of what no bit depends on: every field is sealed."""
    edited = copy.deepcopy(receipt)
    edit(edited)
    with pytest.raises(HoldfastError):
        parse_receipt(edited)
