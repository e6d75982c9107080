"""Rollbacks without fault injection: library kernels disagree on near ties, verification rejects,
the result stays.
"""

from dataclasses import replace

import pytest
from stress_helpers import SMALL, engine, only_result, plain_probe

from holdfast.bench.determinism import products_disagree
from holdfast.bench.stress import result_bits, run_alone, stress_test


def test_numerical_differences_are_rolled_back() -> None:
    if not products_disagree():
        pytest.skip("on this CPU the fp32 product is one bit class from 1 to 16 rows: nothing can differ")
    one = engine("torch", "fp32")
    no_faults = replace(SMALL, fault_rates=(0.0,))
    probe = replace(plain_probe(0.0), speculation="off")
    summary = stress_test(one, probe, ("verify",), 16, seed=3, scale=no_faults)
    assert summary.stats.rolled_back > 0
    assert summary.stats.rollbacks > 0
    assert only_result(summary) == result_bits(run_alone(one, probe))
