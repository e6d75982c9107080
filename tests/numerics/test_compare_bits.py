"""scripts/compare_bits.py: it knows every family and format, and notices one bit."""

from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest

from holdfast.models.families import FAMILIES
from holdfast.numerics.blocks import BLOCK_FORMATS
from support.scripts import load_script

FINGERPRINT = {"digest": "a", "parts": {"code": {"model": 3}}}
FOUND = {"llama c": {"answers": {"alone": {"logprobs": ["3f800000"]}}, "fingerprint": FINGERPRINT}}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("compare_bits")


def test_every_family_and_format_is_compared(script: ModuleType) -> None:
    assert set(script.FAMILIES) == set(FAMILIES)
    cases = list(script.cpu_cases())
    assert len({case.name for case in cases}) == len(cases)
    assert {case.name for case in cases if case.name in script.REPLAYED} == set(script.REPLAYED[:-1])
    as_stored = [case.model for case in cases if case.options["dtype"] == "auto"]
    assert all(any(f".{name}.gguf" in model for model in as_stored) for name in BLOCK_FORMATS)
    for kernels in ("c", "torch"):
        assert {case.model for case in cases if case.options["kernels"] == kernels} >= set(FAMILIES)
    assert {case.model for case in script.gpu_cases()} >= set(FAMILIES)


def changed(change: str) -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(FOUND)
    if change == "bit":
        found["llama c"]["answers"]["alone"]["logprobs"] = ["3f800001"]
    elif change == "fingerprint":
        found["llama c"]["fingerprint"]["parts"]["code"]["model"] = 4
    elif change == "failure":
        found["llama c"] = {"error": "it ended"}
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("bit", "1 DIFFER, first alone.logprobs[0]: 3f800001, was 3f800000"),
        ("fingerprint", "fingerprint DIFFERS: parts.code.model"),
        ("failure", "this FAILED: it ended"),
        ("", "1 cases with 1 deterministic answers, 0 replays: 0 differ"),
    ],
)
def test_a_difference_is_told(
    change: str, said: str, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.compare(FOUND, changed(change), {}) == bool(change)
    assert said in capsys.readouterr().out


def test_a_failed_replay_is_told(script: ModuleType) -> None:
    assert script.compare(FOUND, changed(""), {"llama c: this replays other": ""}) == 0
    assert script.compare(FOUND, changed(""), {"llama c: this replays other": "token 3"}) == 1


def test_cases_that_failed_in_both_are_no_success(script: ModuleType) -> None:
    assert script.compare(changed("failure"), changed("failure"), {}) == 1
