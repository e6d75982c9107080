"""How cells are judged, what the table says of them, and what the survey does where a cell cannot run."""

import io

import pytest
from rich.console import Console

from holdfast.bench.determinism import survey
from holdfast.bench.determinism.features import find_features
from holdfast.bench.determinism.stress import Outcome, Tally
from holdfast.bench.determinism.survey import Cell, Finding, Loads, judge, judge_pricks
from holdfast.bench.determinism.survey_table import show_survey
from holdfast.core.results import Stats
from holdfast.errors import ConfigError, InvalidRequest

WITH = Cell("greedy", "tiny", "torch", "fp32")
WITHOUT = Cell("greedy", "tiny", "torch", "fp32", guarantee=False)
QUIET = Loads(2, 0, lambda text: None)


def tally(num_distinct: int, **counts: int) -> Tally:
    return Tally({Outcome((number,)): 1 for number in range(num_distinct)}, Stats(), num_distinct, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "seen", "verdict", "remark"),
    [
        (WITH, tally(1), "good", ""),
        (WITH, tally(2), "bad", "must be one"),
        (WITH, tally(1, num_revocations=1), "bad", "not canonical"),
        (WITHOUT, tally(3), "good", ""),
    ],
)
def test_a_cell_with_the_guarantee_has_one_outcome(cell, seen, verdict, remark) -> None:
    judged, said = judge(cell, seen)
    assert judged == verdict
    assert remark in said


@pytest.mark.parametrize(
    ("distinct", "disagree", "verdict", "remark"),
    [
        ((1, 3), True, "good", ""),
        ((1, 1), True, "bad", "did not notice"),
        ((1, 1), False, "good", "one bit class only"),
    ],
)
def test_one_cell_without_it_has_several(distinct, disagree, verdict, remark) -> None:
    found = [Finding(WITHOUT, tally(count), "good") for count in distinct]
    judged = judge_pricks(found, lambda: disagree)
    assert {one.verdict for one in judged} == {verdict}
    assert all(remark in one.remark for one in judged)


def shown(*findings: Finding) -> tuple[bool, str]:
    screen = io.StringIO()
    good = show_survey(findings, Console(file=screen, width=140))
    return good, screen.getvalue()


def test_the_table_says_what_is_wrong() -> None:
    good, text = shown(Finding(WITH, tally(1), "good"), Finding(WITHOUT, tally(4), "good"))
    assert good
    assert "one output in each of 1 cells" in text
    assert "up to 4 different outputs" in text
    good, text = shown(Finding(WITH, tally(2), "bad", "must be one"))
    assert not good
    assert "greedy (tiny, torch, fp32): must be one" in text


def test_without_a_compiler_its_cells_are_left_out(monkeypatch) -> None:
    def refuse(*given, **named):
        raise ConfigError("there is no compiler")

    monkeypatch.setattr(survey, "tiny_engine", refuse)
    found = list(survey._survey_tiny("c", "fp32", None, QUIET))
    assert [one.verdict for one in found] == ["left out"]
    assert "there is no compiler" in shown(*found)[1]
    with pytest.raises(ConfigError):
        list(survey._survey_tiny("torch", "fp32", None, QUIET))


def test_a_model_that_follows_no_form_leaves_those_cells_out(monkeypatch) -> None:
    def few(engine, prompt):
        found = {feature.name: feature for feature in find_features(engine, prompt)}

        def refuse(form):
            raise InvalidRequest("this model cannot")

        monkeypatch.setattr(engine.grammars, "compile", refuse)
        return [found[name] for name in ("greedy", "regex", "logprobs")]

    monkeypatch.setattr(survey, "find_features", few)
    monkeypatch.setattr(survey, "NUM_COMBINATIONS", 0)
    found = list(survey._survey_tiny("torch", "bf16", None, QUIET))
    assert [(one.cell.feature, one.verdict) for one in found] == [
        ("greedy", "good"),
        ("regex", "left out"),
        ("logprobs", "good"),
    ]
    assert [one.tally.num_runs for one in found if one.tally is not None] == [2, 2]
