"""The split-K search: the fewest splits that agree at every batch size.

Recipes are kept on disk.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.certification.gemm import split as module
from holdfast.certification.gemm.choose import search_recipes
from holdfast.certification.gemm.recipes import PLAIN, GemmShape, split_k_by_shape, split_n_by_shape
from holdfast.numerics.cache_dir import read_checked, write_checked

SIZES = (*range(1, 20), 24, 32)
SHAPE = GemmShape("down", 48, 64)
CPU = torch.device("cpu")


class FakeLibrary:
    """GEMMs that give the same bits at every batch size, except at those with a planted fault, by
    split-K.
    """

    def __init__(
        self,
        faults: dict[int, set[int]],
        only_row: int | None = None,
        neighbours: bool = False,
        split_n_faults: frozenset[int] = frozenset(),
    ) -> None:
        self.faults, self.only_row, self.neighbours = faults, only_row, neighbours
        self.split_n_faults = split_n_faults
        self.asked: list[int] = []

    def __call__(self, x: Tensor, weight: Tensor, split_k: int, split_n: int = 0, /) -> Tensor:
        self.asked.append(split_k)
        split_k = max(split_k, 0)  # the plain call and split-K 0 are the same here
        count = max(1, split_k)
        # Row by row: probes that cancel show any other order of summation, in any precision.
        parts = [
            torch.stack([other @ row for row in one])
            for one, other in zip(x.float().chunk(count, 1), weight.float().chunk(count, 1), strict=True)
        ]
        out = torch.stack(parts) if split_k else parts[0]
        if len(x) in self.faults.get(split_k, ()):
            at = slice(None) if self.only_row is None else self.only_row % len(x)
            out[..., at, :] *= 1 + 2**-20
        if split_n and len(x) in self.split_n_faults:
            out[-1, split_n:] *= 1 + 2**-20
        if self.neighbours:
            out += out.abs().max() * 2**-24
        return out if split_k else out.to(x.dtype)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    return tmp_path


def choose(library: FakeLibrary, *shapes: GemmShape, **subject: Any) -> Any:
    return search(shapes or (SHAPE,), library, sizes=SIZES, subject=subject)


def search(shapes: Any, library: Any, **given: Any) -> Any:
    defaults = {"dtype": torch.float32, "device": CPU, "subject": {}, "reference_tokens": 16}
    return search_recipes(shapes, library, **{**defaults, **given})


def test_library_call_is_the_recipe_if_nothing_differs() -> None:
    (choice,) = choose(FakeLibrary({}))
    assert (choice.split_k, choice.matching_sizes, choice.num_plain_results) == (0, SIZES, 1)
    assert choice.agrees and choice.relative_times == ()
    assert split_k_by_shape([choice]) == {(48, 64): 0}


def test_results_of_the_plain_call_are_counted_only_if_asked_for() -> None:
    library = FakeLibrary({0: {1, 2}})
    (choice,) = search((SHAPE,), library, sizes=SIZES, counts_plain=False)
    (counted,) = search((SHAPE,), FakeLibrary({0: {1, 2}}), sizes=SIZES, subject={"other": 1})
    assert (choice.num_plain_results, counted.num_plain_results) == (0, 2)
    assert choice.split_k == counted.split_k and PLAIN not in library.asked


def test_fewest_splits_that_agree_everywhere_are_taken() -> None:
    library = FakeLibrary({0: {1, 2}, 1: {24}})
    (choice,) = choose(library)
    assert (choice.split_k, choice.matching_sizes) == (2, SIZES)
    assert choice.num_plain_results == 2
    assert 4 not in library.asked


@pytest.mark.parametrize("row", [0, -1])
def test_one_differing_row_is_detected(row: int) -> None:
    (choice,) = choose(FakeLibrary({0: {17}}, only_row=row))
    assert choice.split_k == 1


def test_dependence_on_neighbours_is_detected() -> None:
    (choice,) = choose(FakeLibrary({}, neighbours=True))
    assert len(choice.matching_sizes) < len(SIZES)


def test_cancelling_probes_detect_differences_hidden_by_rounding() -> None:
    """One part in a million is far below a step of bf16."""

    def multiply(x: Tensor, weight: Tensor, split_k: int, split_n: int = 0, /) -> Tensor:
        first, second = x.float().chunk(2, 1), weight.float().chunk(2, 1)
        parts = [one @ other.T for one, other in zip(first, second, strict=True)]
        if len(x) == 7:
            parts[0] *= 1 + 2**-20
        return (
            (parts[0] + parts[1]).to(x.dtype) if split_k <= 0 else torch.stack([*parts] * (split_k // 2 or 1))
        )

    (choice,) = search([SHAPE], multiply, dtype=torch.bfloat16, sizes=(7, 9))
    assert 7 not in choice.matching_sizes or choice.split_k != 0


def test_fp32_output_needs_at_least_one_split() -> None:
    (choice,) = choose(FakeLibrary({}), GemmShape("qkv", 48, 64, fp32_output=True))
    assert choice.split_k == 1


def test_head_is_tested_up_to_the_largest_head_batch() -> None:
    head = GemmShape("head", 48, 64, fp32_output=True, is_head=True)
    (choice,) = search([head], FakeLibrary({}), sizes=(1, 512, 1024))
    assert choice.matching_sizes == (1, 512)


def test_without_agreement_most_matching_sizes_win_then_fewest_splits() -> None:
    everywhere = {0: {1, 2, 3}, 1: {1, 2}, 2: {1}, 4: {1}, 8: {1, 2}}
    (choice,) = choose(FakeLibrary(everywhere), GemmShape("down", 48, 256))
    assert (choice.split_k, len(choice.matching_sizes), choice.agrees) == (2, len(SIZES) - 1, False)
    assert 1 not in choice.matching_sizes


def test_gemms_of_one_shape_share_a_recipe() -> None:
    shapes = GemmShape("o", 64, 64), GemmShape("q", 64, 64, fp32_output=True), GemmShape("x", 32, 64)
    first, second = choose(FakeLibrary({}), *shapes)
    assert (first.name, first.split_k, second.name, second.split_k) == ("o+q", 1, "x", 0)


def test_splits_have_a_minimal_width() -> None:
    library = FakeLibrary({split_k: {1} for split_k in (0, 1, 2, 4, 8)})
    choose(library, GemmShape("down", 8, 36))
    assert set(library.asked) == {-1, 0, 1, 2}


def test_recipes_are_kept_by_subject(cache: Path) -> None:
    first = choose(FakeLibrary({0: {1}}), device="one")
    silent = FakeLibrary({})
    assert choose(silent, device="one") == first and silent.asked == []
    assert choose(silent, device="other") != first and silent.asked != []
    assert len(list((cache / "recipes").iterdir())) == 2


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"key": 1}', '{"choices": []}'])
def test_unreadable_recipe_file_is_ignored(cache: Path, content: str) -> None:
    first = choose(FakeLibrary({0: {1}}))
    (path,) = (cache / "recipes").iterdir()
    path.write_text(content)
    assert choose(FakeLibrary({0: {1}})) == first
    kept = read_checked(path)
    assert kept is not None
    parsed = json.loads(kept)
    parsed["choices"][0]["slices"] = 3
    write_checked(path, json.dumps(parsed).encode())
    assert choose(FakeLibrary({0: {1}})) == first


def test_unwritable_cache_folder_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "file"))
    assert choose(FakeLibrary({}))[0].split_k == 0
    assert "could not be kept" in caplog.text


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every batch size is faster with split-N. Returns the sizes that were timed."""
    asked: list[tuple[int, ...]] = []

    def find(multiply: object, weight: Tensor, sizes: list[int]) -> dict[int, int]:
        asked.append(tuple(sizes))
        return dict.fromkeys(sizes, 32)

    monkeypatch.setattr(module, "find_split_n", find)
    monkeypatch.setattr(module, "_MAX_OWN_ROWS", 0)
    return asked


def test_split_n_is_taken_where_bits_stay(timed: list[tuple[int, ...]]) -> None:
    (choice,) = choose(FakeLibrary({}, split_n_faults=frozenset({16})))
    assert timed == [(1, 2, 4, 8, 16, 24, 32)]  # what passes are padded to
    assert choice.split_n == tuple((size, 32) for size in (1, 2, 4, 8, 24, 32))
    assert choice.matching_sizes == SIZES and choice.split_k == 0
    assert split_n_by_shape([choice]) == {(48, 64): dict(choice.split_n)}


def test_split_k_excludes_split_n(timed: list[tuple[int, ...]]) -> None:
    (choice,) = choose(FakeLibrary({0: {1}}))
    assert (choice.split_k, choice.split_n, timed, split_n_by_shape([choice])) == (1, (), [], {})


def test_no_split_n_if_no_size_agrees(timed: list[tuple[int, ...]]) -> None:
    library = FakeLibrary({split_k: {16} for split_k in (0, 1, 2, 4, 8)})
    (choice,) = search([SHAPE], library, sizes=(1, 8))
    assert (choice.split_k, choice.matching_sizes, choice.split_n) == (0, (), ())


def test_split_n_is_kept_on_disk(timed: list[tuple[int, ...]]) -> None:
    first = choose(FakeLibrary({}))
    assert first[0].split_n and choose(FakeLibrary({})) == first
    assert len(timed) == 1


def test_progress_is_reported_by_shape() -> None:
    reported: list[tuple[int, int]] = []
    shapes = [SHAPE, GemmShape("o", 32, 64)]
    search(shapes, FakeLibrary({}), sizes=(1,), progress=lambda *n: reported.append(n))
    assert reported == [(1, 2), (2, 2)]
