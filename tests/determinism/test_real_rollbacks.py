"""Rollbacks that nobody injected: plain kernels disagree about near twins, verification notices, the answer stands."""

from dataclasses import replace

import pytest
from pricking import SMALL, engine, outcome, plain

from holdfast.bench.determinism.stress import ask, outcome_of, prick
from holdfast.bench.determinism.survey import products_disagree


def test_numeric_differences_are_rolled_back_and_leave_no_trace() -> None:
    if not products_disagree():
        pytest.skip("on this CPU the fp32 product is one bit class from 1 to 16 rows: nothing can differ")
    one = engine("torch", "fp32")
    honest = replace(SMALL, lies=(0.0,))
    needle = replace(plain(0.0), speculation="off")
    tally = prick(one, needle, ("verify",), 16, seed=3, scale=honest)
    assert tally.stats.rolled_back > 0
    assert tally.stats.rollbacks > 0
    assert outcome(tally) == outcome_of(ask(one, needle))
