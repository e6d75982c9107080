"""The n-gram benchmark: it compares bits and computes gains."""

import pytest

from holdfast.bench.speed.ngram import BASE, VARIANTS, WITH, NgramCell, NgramReport, _measure
from holdfast.bench.tiny import tiny_engine
from holdfast.engine.config import EngineConfig


def cell(gain: float, copies: bool, same: bool = True) -> NgramCell:
    speed = {variant.name: 10.0 for variant in VARIANTS}
    return NgramCell("a prompt", copies, 40, {**speed, WITH.name: 10.0 * gain}, 5, 3, same)


def report(*cells: NgramCell) -> NgramReport:
    return NgramReport("a machine", "a model", "bfloat16", 2, 1, list(cells))


def test_gain_is_a_geometric_mean_by_kind_of_prompt() -> None:
    made = report(cell(1.0, True), cell(4.0, True), cell(0.98, False))
    assert made.gain(True) == pytest.approx(2.0)
    assert made.gain(False) == pytest.approx(0.98)
    assert made.is_good


@pytest.mark.parametrize(
    "wrong",
    [
        (cell(2.0, True, same=False), cell(1.0, False)),
        (cell(1.5, True), cell(1.0, False)),
        (cell(2.0, True), cell(0.9, False)),
    ],
)
def test_different_bits_or_low_gains_are_not_good(wrong: tuple[NgramCell, NgramCell]) -> None:
    assert not report(*wrong).is_good


def test_every_variant_runs_and_candidates_are_counted() -> None:
    engine = tiny_engine(EngineConfig(dtype="fp32", max_num_seqs=4, max_pass_tokens=64, kv_memory="4MiB"))
    measured = _measure(engine, "a loop", True, [5, 6, 7, 8, 9] * 12, rounds=1, num_tokens=120)
    assert measured.same_bits
    assert measured.speed.keys() == {variant.name for variant in VARIANTS}
    assert measured.speed[BASE.name] > 0
    assert 0 <= measured.accepted <= measured.looked_up
