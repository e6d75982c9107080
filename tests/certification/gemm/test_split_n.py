"""Split-N tuning: a split is taken if it is faster by a margin. Nothing is timed on a CPU."""

from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from holdfast.certification.gemm import split as module
from holdfast.certification.gemm.split import find_split_n

COLUMNS = 28672


class FakeTimedGemm:
    """A GEMM that takes the time set for its batch size and split."""

    times: ClassVar[dict[int, dict[int, float]]] = {}
    made: ClassVar[list[tuple[int, int]]] = []

    def __init__(
        self, multiply: object, x: Tensor, weights: list[Tensor], split_k: int, split_n: int = 0
    ) -> None:
        assert split_k == 0
        self.num_gemms = len(weights)
        self._time = self.times.get(len(x), {}).get(split_n, 100.0)
        self.made.append((len(x), split_n))

    def microseconds(self, times: int = 1) -> float:
        assert times >= 1
        return self._time


class FakeWeight:
    """The attributes of a weight on a GPU that the tuning reads."""

    def __init__(self, outputs: int) -> None:
        self.shape = (outputs, 8)
        self.dtype = torch.float32
        self.device = torch.device("cuda")


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> type[FakeTimedGemm]:
    randn = torch.randn
    monkeypatch.setattr(module, "TimedGemm", FakeTimedGemm)
    monkeypatch.setattr(module, "copies_of", lambda weight: [weight])
    monkeypatch.setattr(module, "_WARM_SECONDS", 0.0)
    monkeypatch.setattr(torch, "randn", lambda *size, dtype, device: randn(*size))
    monkeypatch.setattr(FakeTimedGemm, "times", {})
    monkeypatch.setattr(FakeTimedGemm, "made", [])
    return FakeTimedGemm


def find(outputs: int, sizes: list[int]) -> dict[int, int]:
    return find_split_n(cast(Any, None), cast(Tensor, FakeWeight(outputs)), sizes)


def test_fastest_split_is_taken_if_the_gain_is_large_enough(timed: type[FakeTimedGemm]) -> None:
    timed.times = {256: {14336: 95.0, 16128: 92.0}, 448: {25088: 58.0}, 512: {14336: 99.0}}
    assert find(COLUMNS, [256, 448, 512]) == {256: 16128, 448: 25088}


def test_first_of_equally_fast_splits_is_taken(timed: type[FakeTimedGemm]) -> None:
    timed.times = {256: {14336: 91.0, 16128: 93.0, 21504: 92.0}, 320: {14336: 88.0, 16128: 93.0}}
    assert find(COLUMNS, [256, 320]) == {256: 16128, 320: 14336}


def test_small_and_large_batches_and_few_columns_are_not_timed(timed: type[FakeTimedGemm]) -> None:
    timed.times = {128: {14336: 1.0}, 256: {4096: 1.0}, 1024: {14336: 1.0}}
    assert find(COLUMNS, [1, 64, 128, 1024]) == {}
    assert find(8192, [256]) == {}
    assert timed.made == []


@pytest.mark.parametrize("columns", [16384, 17920, 57344, 16390])
def test_both_parts_have_columns_and_the_second_starts_aligned(
    timed: type[FakeTimedGemm], columns: int
) -> None:
    find(columns, [256])
    splits = [split_n for _, split_n in timed.made]
    assert splits[0] == 0 and len(set(splits)) == len(splits) > 1
    assert all(0 < split_n < columns and split_n % 256 == 0 for split_n in splits[1:])


def test_nothing_is_timed_on_a_cpu(timed: type[FakeTimedGemm]) -> None:
    assert find_split_n(cast(Any, None), torch.zeros(COLUMNS, 8), [256]) == {}
    assert timed.made == []
