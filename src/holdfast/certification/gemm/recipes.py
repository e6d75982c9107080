"""GEMM recipes, one for each shape of a model's GEMMs, their file on disk, and the GEMM that they tell
how to compute."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.numerics.arrays import Tensor
from holdfast.numerics.cache_dir import cache_dir, read_json, write_checked

_log = logging.getLogger(__name__)

SPLITS = (0, 1, 2, 4, 8)  # of K; 0: the library's own call
PLAIN = -1  # as split_k: the library's own call, whatever the recipe
_JSON_NAMES = {
    "split_k": "slices",
    "matching_sizes": "totals",
    "num_sizes_tested": "num_tried",
    "num_plain_results": "plain_classes",
    "relative_times": "costs",
    "split_n": "cuts",
}


class Multiply(Protocol):
    """x [M, K], weight [N, K] -> [M, N], or with split_k >= 1 the partial sums, fp32 [split_k, M,
    N].

    split_n: compute so many output columns first, then the others; 0: all at once.
    """

    def __call__(self, x: Tensor, weight: Tensor, split_k: int, split_n: int = 0, /) -> Tensor: ...


def library_multiply(x: Tensor, weight: Tensor, split_k: int, split_n: int = 0) -> Tensor:
    """Return the GEMM of the Triton backend: the library's or, if not PLAIN, its own small-M kernel."""
    from holdfast.numerics.backends.triton.gemms.gemm import multiply
    from holdfast.numerics.ops import Linear

    out_features, in_features = weight.shape
    splits = {x.shape[0]: split_n} if split_n else {}
    linear = Linear(weight, None, in_features, out_features, weight.dtype, max(0, split_k), splits)
    return multiply(x, linear, vendor_gemm=split_k == PLAIN)


@dataclass(frozen=True)
class GemmShape:
    """y = x W^T with W [N, K]. fp32_output: a bias or the sampler needs fp32 sums, so split-K is
    at least 1."""

    name: str
    out_features: int
    in_features: int
    fp32_output: bool = False
    is_head: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.out_features, self.in_features


class GemmRecipe(msgspec.Struct, frozen=True, rename=_JSON_NAMES):
    """How GEMMs of one shape are computed on this machine, and what the tests of it found."""

    name: str
    out_features: int
    in_features: int
    split_k: int  # 0: the library's own call; S >= 1: S partial sums in fp32, added in order
    matching_sizes: tuple[int, ...]  # the batch sizes that give the reference bits
    num_sizes_tested: int
    # How many different results the library's own call has over all batch sizes; 0: not counted.
    num_plain_results: int
    # (batch size, time of the recipe / time of the plain call)
    relative_times: tuple[tuple[int, float], ...] = ()
    split_n: tuple[tuple[int, int], ...] = ()  # (batch size, output columns computed first)

    @property
    def agrees(self) -> bool:
        return len(self.matching_sizes) == self.num_sizes_tested

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class _Kept(msgspec.Struct, frozen=True):
    key: str
    choices: tuple[GemmRecipe, ...]


def split_k_by_shape(recipes: Sequence[GemmRecipe]) -> dict[tuple[int, int], int]:
    """(N, K) -> split-K."""
    return {(one.out_features, one.in_features): one.split_k for one in recipes}


def split_n_by_shape(recipes: Sequence[GemmRecipe]) -> dict[tuple[int, int], dict[int, int]]:
    """(N, K) -> batch size -> output columns computed first."""
    return {(one.out_features, one.in_features): dict(one.split_n) for one in recipes if one.split_n}


def load_recipes(key: str) -> tuple[GemmRecipe, ...] | None:
    """Return the recipes kept under this key, if they can be read."""
    kept = read_json(_path(key), _Kept)
    if kept is None or kept.key != key or any(one.split_k not in SPLITS for one in kept.choices):
        return None
    return kept.choices


def save_recipes(key: str, recipes: Sequence[GemmRecipe]) -> None:
    """Keep them for the next start. If writing fails, the next start searches again."""
    try:
        write_checked(_path(key), msgspec.json.encode(_Kept(key, tuple(recipes))))
    except OSError as error:
        _log.warning("the recipes could not be kept: %s", error)


def _path(key: str) -> Path:
    return cache_dir() / "recipes" / f"{key}.json"
