"""The planted changes of each backend, and one of them run: what was found."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from certification.planted.c_mutations import C_MUTATIONS
from certification.planted.cases import (
    CPU_MODEL,
    FEW_ORDERS,
    GPU_MODEL,
    INTERPRETER_MODEL,
    Case,
    GemmTarget,
    gemm_cases,
    gemm_mutation_cases,
    gemm_target,
    mutation_cases,
    scoped_cases,
)
from certification.planted.mutants import SourceMutants
from certification.planted.orders import BIAS_FIRST, ELEMENTWISE, ORDERS
from certification.planted.search import RealWeights
from certification.planted.torch_mutations import TORCH_MUTATIONS
from certification.planted.triton_mutations import TRITON_MUTATIONS
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.recipe import KernelBackend

CPU_SIZES = (1, 2, 5, 7, 20, 40)
GPU_SIZES = (1, 2, 7, 8, 31, 32, 33, 100, 255, 300, 512)
INTERPRETED_SIZES = (1, 3, 7, 256)
GEMMS = (
    GemmTarget(256, 576),
    GemmTarget(257, 127, has_bias=True),
    GemmTarget(1, 64, num_sizes=3),
    GemmTarget(5, 333, num_sizes=3),
    GemmTarget(264, 1536, num_sizes=4),
    GemmTarget(300, 96, is_head=True),
)
GPU_GEMMS = (
    GemmTarget(960, 576),
    GemmTarget(6144, 4096, split_k=1, num_sizes=4),
    GemmTarget(4096, 14336, split_k=4, num_sizes=4),
    GemmTarget(1024, 2048, has_bias=True),
    GemmTarget(5120, 3072),
    GemmTarget(8192, 1024, is_head=True, split_k=1),
)
INTERPRETED_GEMMS = (GemmTarget(48, 96), GemmTarget(3072, 128, split_k=1))


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
        if 0 in self.reported_sizes:
            return ()
        return tuple(size for size in self.effective_sizes if size not in self.reported_sizes)

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
    target, recipe = case.target, case.target.base.recipe
    backend = case.backend()
    if target.num_sizes is not None:
        sizes = sizes[:: -(-len(sizes) // target.num_sizes)]
    planted = [size for size in sizes if size != recipe.rows and case.scope.covers(size)]
    with torch.inference_mode():
        reported = case.reported_sizes(sizes)
        effective = tuple(size for size in planted if target.search(target.base, backend, size))
    return PlantedResult(
        target.operation,
        recipe.path,
        recipe.dtype,
        target.shape,
        case.planted,
        effective,
        reported,
        round(time.monotonic() - started, 3),
    )


def cpu_cases(
    kernels: KernelBackend,
    dtype: torch.dtype,
    num_threads: int,
    mutants: SourceMutants,
    real: RealWeights | None,
) -> Iterator[Case]:
    """The changes planted in a CPU backend."""
    bases = [
        open_backend(one, kernels=kernels, num_threads=num_threads)
        for one in dict.fromkeys((dtype, torch.float32))
    ]
    targets = [gemm_target(bases[0], gemm, real) for gemm in GEMMS]
    yield from gemm_cases(targets[0], ORDERS if dtype != torch.float16 else FEW_ORDERS)
    yield from scoped_cases(targets[0], GEMMS[0].outputs)
    for gemm, target in zip(GEMMS[1:], targets[1:], strict=True):
        more = (BIAS_FIRST, *ELEMENTWISE) if gemm.has_bias else ()
        yield from gemm_cases(target, (*FEW_ORDERS, *more))
    mutations = C_MUTATIONS if kernels == "c" else TORCH_MUTATIONS
    yield from gemm_mutation_cases(targets[:2], mutations, mutants.open)
    yield from mutation_cases(bases, mutations, mutants.open, CPU_MODEL)


def triton_cases(
    device: torch.device, dtype: torch.dtype, mutants: SourceMutants, real: RealWeights | None
) -> Iterator[Case]:
    """The changes planted in the Triton backend, on a GPU or in the interpreter."""
    on_gpu = device.type == "cuda"
    gemms = GPU_GEMMS if on_gpu else INTERPRETED_GEMMS
    split = {(gemm.outputs, gemm.width): gemm.split_k for gemm in gemms}
    base = open_backend(dtype, kernels="triton", num_threads=1, device=device, split_k=split)
    targets = [gemm_target(base, gemm, real) for gemm in gemms]
    for number, target in enumerate(targets):
        yield from gemm_cases(target, ORDERS if number == 0 and on_gpu else FEW_ORDERS)
    yield from scoped_cases(targets[0], gemms[0].outputs)
    yield from gemm_mutation_cases(targets, TRITON_MUTATIONS, mutants.open)
    if on_gpu:
        yield from mutation_cases([base], TRITON_MUTATIONS, mutants.open, GPU_MODEL)
    else:  # the other operations have too many probes for the interpreter
        yield from mutation_cases([base], TRITON_MUTATIONS, mutants.open, INTERPRETER_MODEL, ("attention",))
