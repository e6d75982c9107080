"""The choice of slices: the fewest that agree at every total, asked of whatever multiplies, and kept."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.certification import split_k as module
from holdfast.certification.split_k import GemmShape, choose_slices, cuts_of, slices_of
from holdfast.numerics.batch_sizes import cpu_batch_sizes, gpu_batch_sizes, padded_batch_sizes

TOTALS = (*range(1, 20), 24, 32)
SHAPE = GemmShape("down", 48, 64)
CPU = torch.device("cpu")


class Library:
    """Products that are the same for every total but those a fault is planted at, by the number of slices."""

    def __init__(
        self,
        faults: dict[int, set[int]],
        only_row: int | None = None,
        neighbours: bool = False,
        cut_faults: frozenset[int] = frozenset(),
    ) -> None:
        self.faults, self.only_row, self.neighbours = faults, only_row, neighbours
        self.cut_faults = cut_faults
        self.asked: list[int] = []

    def __call__(self, x: Tensor, weight: Tensor, slices: int, cut: int = 0, /) -> Tensor:
        self.asked.append(slices)
        slices = max(slices, 0)  # the library's own call is what 0 slices are
        count = max(1, slices)
        # Row by row: probes that cancel would show any other order of summation, in whatever precision.
        parts = [
            torch.stack([other @ row for row in one])
            for one, other in zip(x.float().chunk(count, 1), weight.float().chunk(count, 1), strict=True)
        ]
        out = torch.stack(parts) if slices else parts[0]
        if len(x) in self.faults.get(slices, ()):
            at = slice(None) if self.only_row is None else self.only_row % len(x)
            out[..., at, :] *= 1 + 2**-20
        if cut and len(x) in self.cut_faults:
            out[-1, cut:] *= 1 + 2**-20
        if self.neighbours:
            out += out.abs().max() * 2**-24
        return out if slices else out.to(x.dtype)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    return tmp_path


def choose(library: Library, *shapes: GemmShape, dtype: torch.dtype = torch.float32, **about: Any) -> Any:
    return choose_slices(shapes or (SHAPE,), library, dtype, CPU, about, reference_rows=16, totals=TOTALS)


def test_where_nothing_differs_the_library_s_own_product_is_the_recipe() -> None:
    (choice,) = choose(Library({}))
    assert (choice.slices, choice.totals, choice.plain_classes) == (0, TOTALS, 1)
    assert choice.agrees and choice.costs == ()
    assert slices_of([choice]) == {(48, 64): 0}


def test_the_fewest_slices_that_agree_everywhere_are_taken() -> None:
    library = Library({0: {1, 2}, 1: {24}})
    (choice,) = choose(library)
    assert (choice.slices, choice.totals) == (2, TOTALS)
    assert choice.plain_classes == 2
    assert 4 not in library.asked


@pytest.mark.parametrize("row", [0, -1])
def test_one_row_that_differs_is_seen(row: int) -> None:
    (choice,) = choose(Library({0: {17}}, only_row=row))
    assert choice.slices == 1


def test_a_product_that_feels_its_neighbours_agrees_nowhere_else() -> None:
    (choice,) = choose(Library({}, neighbours=True))
    assert len(choice.totals) < len(TOTALS)


def test_a_difference_that_rounding_hides_is_seen_where_probes_cancel() -> None:
    """One part in a million is far below a step of bf16."""

    def multiply(x: Tensor, weight: Tensor, slices: int, cut: int = 0, /) -> Tensor:
        first, second = x.float().chunk(2, 1), weight.float().chunk(2, 1)
        parts = [one @ other.T for one, other in zip(first, second, strict=True)]
        if len(x) == 7:
            parts[0] *= 1 + 2**-20
        return (
            (parts[0] + parts[1]).to(x.dtype) if slices <= 0 else torch.stack([*parts] * (slices // 2 or 1))
        )

    totals = (7, 9)
    (choice,) = choose_slices([SHAPE], multiply, torch.bfloat16, CPU, {}, reference_rows=16, totals=totals)
    assert 7 not in choice.totals or choice.slices != 0


def test_sums_in_fp32_are_wanted_for_a_bias_and_for_logits() -> None:
    (choice,) = choose(Library({}), GemmShape("qkv", 48, 64, wide=True))
    assert choice.slices == 1


def test_a_head_is_asked_about_the_rows_it_may_have() -> None:
    head = GemmShape("head", 48, 64, wide=True, is_head=True)
    totals = (1, 512, 1024)
    (choice,) = choose_slices([head], Library({}), torch.float32, CPU, {}, reference_rows=16, totals=totals)
    assert choice.totals == (1, 512)


def test_without_agreement_most_totals_win_and_fewest_slices_among_equals() -> None:
    everywhere = {0: {1, 2, 3}, 1: {1, 2}, 2: {1}, 4: {1}, 8: {1, 2}}
    (choice,) = choose(Library(everywhere), GemmShape("down", 48, 256))
    assert (choice.slices, len(choice.totals), choice.agrees) == (2, len(TOTALS) - 1, False)
    assert 1 not in choice.totals


def test_products_of_one_shape_share_a_recipe() -> None:
    shapes = GemmShape("o", 64, 64), GemmShape("q", 64, 64, wide=True), GemmShape("x", 32, 64)
    first, second = choose(Library({}), *shapes)
    assert (first.name, first.slices, second.name, second.slices) == ("o+q", 1, "x", 0)


def test_a_slice_is_never_too_thin() -> None:
    library = Library({slices: {1} for slices in (0, 1, 2, 4, 8)})
    choose(library, GemmShape("down", 8, 36))
    assert set(library.asked) == {-1, 0, 1, 2}


def test_a_choice_is_kept_and_another_question_is_asked_anew(cache: Path) -> None:
    first = choose(Library({0: {1}}), device="one")
    silent = Library({})
    assert choose(silent, device="one") == first and silent.asked == []
    assert choose(silent, device="other") != first and silent.asked != []
    assert len(list((cache / "recipes").iterdir())) == 2


@pytest.mark.parametrize("spoil", ["{", "[]", "null", '{"key": 1}', '{"choices": []}'])
def test_a_spoiled_file_is_as_good_as_none(cache: Path, spoil: str) -> None:
    first = choose(Library({0: {1}}))
    (path,) = (cache / "recipes").iterdir()
    path.write_text(spoil)
    assert choose(Library({0: {1}})) == first
    content = json.loads(path.read_text())
    content["choices"][0]["slices"] = 3
    path.write_text(json.dumps(content))
    assert choose(Library({0: {1}})) == first


def test_a_folder_that_cannot_be_written_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "file"))
    assert choose(Library({}))[0].slices == 0
    assert "could not be kept" in caplog.text


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every total is faster in two, says the clock; the totals it was asked about."""
    asked: list[tuple[int, ...]] = []

    def find(multiply: object, weight: Tensor, totals: list[int]) -> dict[int, int]:
        asked.append(tuple(totals))
        return dict.fromkeys(totals, 32)

    monkeypatch.setattr(module, "find_cuts", find)
    return asked


def test_columns_are_cut_where_no_bit_changes(timed: list[tuple[int, ...]]) -> None:
    (choice,) = choose(Library({}, cut_faults=frozenset({16})))
    assert timed == [(1, 2, 4, 8, 16, 24, 32)]  # what passes are padded to
    assert choice.cuts == tuple((rows, 32) for rows in (1, 2, 4, 8, 24, 32))
    assert choice.totals == TOTALS and choice.slices == 0
    assert cuts_of([choice]) == {(48, 64): dict(choice.cuts)}


def test_a_product_in_slices_is_not_cut(timed: list[tuple[int, ...]]) -> None:
    (choice,) = choose(Library({0: {1}}))
    assert (choice.slices, choice.cuts, timed, cuts_of([choice])) == (1, (), [], {})


def test_where_nothing_agrees_nothing_is_cut(timed: list[tuple[int, ...]]) -> None:
    library = Library({slices: {16} for slices in (0, 1, 2, 4, 8)})
    (choice,) = choose_slices([SHAPE], library, torch.float32, CPU, {}, reference_rows=16, totals=(1, 8))
    assert (choice.slices, choice.totals, choice.cuts) == (0, (), ())


def test_cuts_are_kept(timed: list[tuple[int, ...]]) -> None:
    first = choose(Library({}))
    assert first[0].cuts and choose(Library({})) == first
    assert len(timed) == 1


def test_progress_is_told_by_product() -> None:
    told: list[tuple[int, int]] = []
    shapes = [SHAPE, GemmShape("o", 32, 64)]
    choose_slices(
        shapes, Library({}), torch.float32, CPU, {}, reference_rows=16, totals=(1,), progress=lambda *n: told.append(n)
    )  # fmt: skip
    assert told == [(1, 2), (2, 2)]


def test_totals_of_a_cpu_waste_an_eighth_at_most() -> None:
    for most in (32, 100, 512, 2048):
        totals = cpu_batch_sizes(most)
        assert totals[-1] == most and list(totals) == sorted(set(totals))
        for rows in range(64, most + 1):
            assert next(total for total in totals if total >= rows) < rows * 9 / 8


def test_totals_of_a_gpu() -> None:
    assert gpu_batch_sizes(4096)[:512] == tuple(range(1, 513))
    assert {768, 1024, 2048, 4096} <= set(gpu_batch_sizes(4096))
    assert set(padded_batch_sizes(4096)) <= set(gpu_batch_sizes(4096))
    assert padded_batch_sizes(5000)[-1] == gpu_batch_sizes(5000)[-1] == 5000
    assert gpu_batch_sizes(100)[-1] == 100 and padded_batch_sizes(100)[-1] == 96
    for most, largest in ((512, 512), (4096, 4096), (600, 600), (300, 288)):
        assert padded_batch_sizes(most)[-1] == largest
