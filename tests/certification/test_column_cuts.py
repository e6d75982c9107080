"""Whether columns are cut is the clock's answer, with a margin; on a CPU it is not asked."""

from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from holdfast.certification import split_n as column_cuts
from holdfast.certification.split_n import find_cuts

COLUMNS = 28672


class Clock:
    """A product in some form, that takes the time planted for its rows and cut."""

    times: ClassVar[dict[int, dict[int, float]]] = {}
    made: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, multiply: object, x: Tensor, weights: list[Tensor], slices: int, cut: int = 0) -> None:
        assert slices == 0
        self.products = len(weights)
        self._time = self.times.get(len(x), {}).get(cut, 100.0)
        self.made.append((len(x), cut))

    def microseconds(self, times: int = 1) -> float:
        assert times >= 1
        return self._time


class Weight:
    """As much of a weight on a GPU as is looked at."""

    def __init__(self, outputs: int) -> None:
        self.shape = (outputs, 8)
        self.dtype = torch.float32
        self.device = torch.device("cuda")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    randn = torch.randn
    monkeypatch.setattr(column_cuts, "TimedProduct", Clock)
    monkeypatch.setattr(column_cuts, "copies_of", lambda weight: [weight])
    monkeypatch.setattr(column_cuts, "_WARM_SECONDS", 0.0)
    monkeypatch.setattr(torch, "randn", lambda *size, dtype, device: randn(*size))
    monkeypatch.setattr(Clock, "times", {})
    monkeypatch.setattr(Clock, "made", [])
    return Clock


def find(outputs: int, totals: list[int]) -> dict[int, int]:
    return find_cuts(cast(Any, None), cast(Tensor, Weight(outputs)), totals)


def test_the_fastest_cut_is_taken_where_it_is_worth_it(clock: type[Clock]) -> None:
    clock.times = {256: {14336: 95.0, 16128: 92.0}, 448: {25088: 58.0}, 512: {14336: 99.0}}
    assert find(COLUMNS, [256, 448, 512]) == {256: 16128, 448: 25088}


def test_of_cuts_that_are_alike_the_first_is_taken(clock: type[Clock]) -> None:
    clock.times = {256: {14336: 91.0, 16128: 93.0, 21504: 92.0}, 320: {14336: 88.0, 16128: 93.0}}
    assert find(COLUMNS, [256, 320]) == {256: 16128, 320: 14336}


def test_few_rows_many_rows_and_few_columns_are_left_alone(clock: type[Clock]) -> None:
    clock.times = {128: {14336: 1.0}, 256: {4096: 1.0}, 1024: {14336: 1.0}}
    assert find(COLUMNS, [1, 64, 128, 1024]) == {}
    assert find(8192, [256]) == {}
    assert clock.made == []


@pytest.mark.parametrize("columns", [16384, 17920, 57344, 16390])
def test_both_pieces_have_columns_and_the_second_begins_aligned(clock: type[Clock], columns: int) -> None:
    find(columns, [256])
    cuts = [cut for _, cut in clock.made]
    assert cuts[0] == 0 and len(set(cuts)) == len(cuts) > 1
    assert all(0 < cut < columns and cut % 256 == 0 for cut in cuts[1:])


def test_on_a_cpu_nothing_is_timed(clock: type[Clock]) -> None:
    assert find_cuts(cast(Any, None), torch.zeros(COLUMNS, 8), [256]) == {}
    assert clock.made == []
