"""The determinism stress test: how its cells are judged, and which are skipped."""

from dataclasses import replace

import pytest

from holdfast.bench import determinism
from holdfast.bench.determinism import CellResult, judge, judge_control, run_cells
from holdfast.bench.features import find_features
from holdfast.bench.stress import ResultBits, StressSummary
from holdfast.core.results import Stats
from holdfast.engine.config import EngineConfig
from holdfast.errors import InvalidRequest
from support.tiny import tiny_engine


def summary(num_distinct: int, num_revocations: int = 0) -> StressSummary:
    answers = {ResultBits((number,)): 1 for number in range(num_distinct)}  # type: ignore[arg-type]
    return StressSummary(answers, Stats(), num_distinct, num_revocations=num_revocations)


@pytest.mark.parametrize(
    ("seen", "verdict", "remark"),
    [
        (summary(1), "passed", ""),
        (summary(2), "failed", "must be one"),
        (summary(1, num_revocations=1), "failed", "not canonical"),
    ],
)
def test_cell_must_have_one_result(seen: StressSummary, verdict: str, remark: str) -> None:
    judged, said = judge(seen)
    assert judged == verdict
    assert remark in said


@pytest.mark.parametrize(
    ("distinct", "disagree", "verdict", "remark"),
    [
        ((1, 3), True, "passed", ""),
        ((1, 1), True, "failed", "did not notice"),
        ((1, 1), False, "passed", "one bit class only"),
    ],
)
def test_control_must_have_several_results(
    distinct: tuple[int, ...], disagree: bool, verdict: str, remark: str
) -> None:
    found = [CellResult("greedy", False, summary(count), "passed") for count in distinct]
    judged = judge_control(found, lambda: disagree)
    assert {one.status for one in judged} == {verdict}
    assert all(remark in one.remark for one in judged)


def test_digest_is_that_of_the_answers() -> None:
    one, same, other = (CellResult("greedy", True, summary(count), "passed") for count in (1, 1, 2))
    assert one.digest == same.digest != other.digest
    assert one.digest == replace(one, feature="sampled").digest


def test_features_that_a_model_lacks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(EngineConfig(kernels="torch", dtype="fp32", max_num_seqs=8, max_pass_tokens=64))

    def few(*given):  # type: ignore[no-untyped-def]
        found = {feature.name: feature for feature in find_features(*given)}

        def refuse(*given: object) -> None:
            raise InvalidRequest("this model cannot")

        monkeypatch.setattr(engine.grammars, "compile", refuse)
        return [found[name] for name in ("greedy", "regex", "logprobs")]

    monkeypatch.setattr(determinism, "find_features", few)
    monkeypatch.setattr(determinism, "NUM_COMBINATIONS", 0)
    found = list(run_cells(engine, 2, 0, lambda text: None))
    assert [(one.feature, one.status) for one in found] == [
        ("greedy", "passed"),
        ("regex", "skipped"),
        ("logprobs", "passed"),
    ]
    assert [one.summary.num_runs for one in found if one.summary is not None] == [2, 2]
