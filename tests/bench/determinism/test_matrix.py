"""The stress test matrix: how cells are judged, what the table shows, and which cells are skipped."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.bench.determinism import matrix
from holdfast.bench.determinism.features import find_features
from holdfast.bench.determinism.matrix import (
    CellResult,
    MatrixCell,
    StressSettings,
    judge,
    judge_without_guarantee,
)
from holdfast.bench.determinism.matrix_table import show_matrix
from holdfast.bench.determinism.stress import ResultBits, StressSummary
from holdfast.bench.tiny import tiny_engine
from holdfast.core.results import Stats
from holdfast.errors import ConfigError, InvalidRequest

WITH = MatrixCell("greedy", "tiny", "torch", "fp32")
WITHOUT = MatrixCell("greedy", "tiny", "torch", "fp32", guarantee=False)
QUIET = StressSettings(2, 0, lambda text: None)


def small_engine(config, **options):
    """Fewer batch sizes to certify."""
    return tiny_engine(replace(config, max_pass_tokens=64), **options)


def summary(num_distinct: int, **counts: int) -> StressSummary:
    return StressSummary(
        {ResultBits((number,)): 1 for number in range(num_distinct)}, Stats(), num_distinct, **counts
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "seen", "verdict", "remark"),
    [
        (WITH, summary(1), "passed", ""),
        (WITH, summary(2), "failed", "must be one"),
        (WITH, summary(1, num_revocations=1), "failed", "not canonical"),
        (WITHOUT, summary(3), "passed", ""),
    ],
)
def test_cell_with_the_guarantee_must_have_one_result(cell, seen, verdict, remark) -> None:
    judged, said = judge(cell, seen)
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
def test_one_cell_without_the_guarantee_must_have_several(distinct, disagree, verdict, remark) -> None:
    found = [CellResult(WITHOUT, summary(count), "passed") for count in distinct]
    judged = judge_without_guarantee(found, lambda: disagree)
    assert {one.status for one in judged} == {verdict}
    assert all(remark in one.remark for one in judged)


def shown(*findings: CellResult) -> tuple[bool, str]:
    screen = io.StringIO()
    good = show_matrix(findings, Console(file=screen, width=140))
    return good, screen.getvalue()


def test_table_shows_failures() -> None:
    good, text = shown(CellResult(WITH, summary(1), "passed"), CellResult(WITHOUT, summary(4), "passed"))
    assert good
    assert "one output in each of 1 cells" in text
    assert "up to 4 different outputs" in text
    good, text = shown(CellResult(WITH, summary(2), "failed", "must be one"))
    assert not good
    assert "greedy (tiny, torch, fp32): must be one" in text


def test_cells_without_a_compiler_are_skipped(monkeypatch) -> None:
    def refuse(*given, **named):
        raise ConfigError("there is no compiler")

    monkeypatch.setattr(matrix, "tiny_engine", refuse)
    found = list(matrix.run_tiny("c", "fp32", None, QUIET))
    assert [one.status for one in found] == ["skipped"]
    assert "there is no compiler" in shown(*found)[1]
    with pytest.raises(ConfigError):
        list(matrix.run_tiny("torch", "fp32", None, QUIET))


def test_structured_cells_are_skipped_where_unsupported(monkeypatch) -> None:
    def few(engine, prompt):
        found = {feature.name: feature for feature in find_features(engine, prompt)}

        def refuse(*given):
            raise InvalidRequest("this model cannot")

        monkeypatch.setattr(engine.grammars, "compile", refuse)
        return [found[name] for name in ("greedy", "regex", "logprobs")]

    monkeypatch.setattr(matrix, "tiny_engine", small_engine)
    monkeypatch.setattr(matrix, "find_features", few)
    monkeypatch.setattr(matrix, "NUM_COMBINATIONS", 0)
    found = list(matrix.run_tiny("c", "bf16", None, QUIET))
    assert [(one.cell.feature, one.status) for one in found] == [
        ("greedy", "passed"),
        ("regex", "skipped"),
        ("logprobs", "passed"),
    ]
    assert [one.summary.num_runs for one in found if one.summary is not None] == [2, 2]
