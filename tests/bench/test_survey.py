"""How a cell is judged, and what the survey does where a cell cannot run."""

import pytest

from holdfast.bench import survey
from holdfast.bench.survey import Cell, Loads, judge
from holdfast.errors import ConfigError

WITH = Cell("tiny", "library", "fp32", 0.0)
WITHOUT = Cell("tiny", "library", "fp32", 0.0, guarantee=False)


@pytest.mark.parametrize(
    ("cell", "num_distinct", "disagree", "verdict", "remark"),
    [
        (WITH, 1, True, "good", ""),
        (WITH, 2, False, "bad", "must be one"),
        (WITHOUT, 3, True, "good", "it pricks"),
        (WITHOUT, 1, True, "bad", "did not notice"),
        (WITHOUT, 1, False, "good", "one bit class only"),
    ],
)
def test_judge(cell, num_distinct, disagree, verdict, remark) -> None:
    judged, said = judge(cell, num_distinct, lambda: disagree)
    assert judged == verdict
    assert remark in said


def test_without_a_compiler_its_cells_are_left_out(monkeypatch) -> None:
    def refuse(*given, **named):
        raise ConfigError("there is no compiler")

    monkeypatch.setattr(survey, "tiny_engine", refuse)
    found = list(survey._survey_tiny("compiled", "fp32", None, Loads(1, 0, lambda text: None)))
    assert [one.verdict for one in found] == ["left out", "left out"]
    assert survey.show_survey(found)
    with pytest.raises(ConfigError):
        list(survey._survey_tiny("library", "fp32", None, Loads(1, 0, lambda text: None)))
