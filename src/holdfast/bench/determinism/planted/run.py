"""Run the planted changes of a backend, and the table and file of what was found."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from holdfast.bench.determinism.planted.c_mutations import C_MUTATIONS
from holdfast.bench.determinism.planted.cases import (
    FEW_ORDERS,
    Case,
    GemmTarget,
    cpu_model,
    gemm_cases,
    gemm_target,
    mutation_cases,
    scoped_cases,
)
from holdfast.bench.determinism.planted.mutants import SourceMutants
from holdfast.bench.determinism.planted.orders import BIAS_FIRST, ELEMENTWISE, ORDERS
from holdfast.bench.determinism.planted.search import RealWeights
from holdfast.bench.determinism.planted.torch_mutations import TORCH_MUTATIONS
from holdfast.numerics.ops import Backend
from holdfast.numerics.select_backend import open_backend

CPU_SIZES = (1, 2, 3, 5, 7, 8, 12, 20, 40)


@dataclass(frozen=True)
class PlantedResult:
    """One planted change: the sizes at which some input gives other bits, and those that the check
    reported. Size 0 is the reference itself: with it nothing is certified."""

    operation: str
    backend: str
    dtype: str
    shape: str
    planted: str
    effective_sizes: tuple[int, ...]
    reported_sizes: tuple[int, ...]
    seconds: float

    @property
    def is_control(self) -> bool:
        return self.planted == "nothing"

    @property
    def missed_sizes(self) -> tuple[int, ...]:
        reported = () if 0 in self.reported_sizes else self.reported_sizes
        if 0 in self.reported_sizes:
            return ()
        return tuple(size for size in self.effective_sizes if size not in reported)

    @property
    def verdict(self) -> str:
        if self.is_control:
            return "control differs" if self.reported_sizes else "control"
        if self.missed_sizes:
            return "missed"
        return "found" if self.reported_sizes else "no input found"

    @property
    def is_good(self) -> bool:
        return self.verdict not in ("missed", "control differs")


def run_case(case: Case, sizes: tuple[int, ...]) -> PlantedResult:
    started = time.monotonic()
    target, backend = case.target, case.backend()
    recipe = target.base.recipe
    with torch.inference_mode():
        reported = target.check(backend, sizes).sizes_differing
        planted = [size for size in sizes if size != recipe.rows and case.scope.covers(size)]
        effective = tuple(size for size in planted if target.search(target.base, backend, size))
    return PlantedResult(
        target.operation,
        recipe.path,
        recipe.dtype,
        target.shape,
        case.planted,
        effective,
        tuple(reported),
        round(time.monotonic() - started, 3),
    )


GEMMS = (
    GemmTarget(48, 576),
    GemmTarget(33, 127, has_bias=True),
    GemmTarget(1, 64),
    GemmTarget(5, 333),
    GemmTarget(64, 1536),
    GemmTarget(50, 96, is_head=True),
)


def cpu_cases(
    kernels: str, dtype: torch.dtype, num_threads: int, mutants: SourceMutants, real: RealWeights | None
) -> Iterator[Case]:
    base: Backend = open_backend(dtype, kernels=kernels, num_threads=num_threads)  # type: ignore[arg-type]
    first, *others = (gemm_target(base, gemm, real) for gemm in GEMMS)
    yield from gemm_cases(first, ORDERS)
    yield from scoped_cases(first, GEMMS[0].outputs)
    for gemm, target in zip(GEMMS[1:], others, strict=True):
        yield from gemm_cases(target, (*FEW_ORDERS, BIAS_FIRST, *ELEMENTWISE) if gemm.has_bias else FEW_ORDERS)
    if kernels == "c":
        yield from mutation_cases(
            base,
            C_MUTATIONS,
            lambda mutation: mutants.open_c(mutation, dtype, num_threads),
            cpu_model(base.recipe.dtype),
            [first, others[0]],
        )
    else:
        yield from mutation_cases(
            base,
            TORCH_MUTATIONS,
            lambda mutation: mutants.open_torch(mutation, dtype),
            cpu_model(base.recipe.dtype),
            [],
        )
