"""Planted order changes: does the certification report an operation that is computed in another order at
some batch sizes?

One operation of a real backend is computed in another order at some batch sizes and left alone at the others, as
a library does (`switched.py`). The certification's own check of that operation runs on it. Independently a
search over inputs decides at which sizes some input gives other bits (`search.py`). A change with such an input
and without a report is a miss.

orders             GEMMs in another order of summation
c_mutations, torch_mutations, triton_mutations
                   changes of our kernels' sources; `mutants` builds or imports the changed copies
cases              what is planted: an operation, a shape, a dtype, a change

The first tests plant a few changes; the `long` ones all of them, and `-m gpu` those of the Triton backend.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from certification.planted.c_mutations import C_MUTATIONS
from certification.planted.cases import (
    CPU_MODEL,
    FEW_ORDERS,
    GPU_MODEL,
    INTERPRETER_MODEL,
    NEVER,
    Case,
    GemmTarget,
    everywhere,
    gemm_cases,
    gemm_mutation_cases,
    gemm_target,
    mutation_cases,
    planted_model,
    scoped_cases,
    target_of,
)
from certification.planted.mutants import Mutation, MutationOutdated, SourceMutants
from certification.planted.orders import BIAS_FIRST, ELEMENTWISE, HALVES, ORDERS, ReorderedGemm
from certification.planted.search import RealWeights
from certification.planted.torch_mutations import TORCH_MUTATIONS
from certification.planted.triton_mutations import TRITON_MUTATIONS
from holdfast.certification.certificate import OperationCheck
from holdfast.certification.checks.probes import clear_neighbours
from holdfast.errors import ModelNotFound
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.numerics import backends
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.settings import apply_numeric_settings, numeric_settings
from holdfast.numerics.settings_guard import our_settings

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
SIZES = (1, 3, 20)
GEMM = GemmTarget(130, 96)
MODEL = planted_model(hidden=93, heads=(2, 1, 16), intermediate=40, vocab=300, max_len=149, window=64)
SOME_ORDERS = ("K in two halves", "8 lanes", "reversed", "tail apart", "two middle leaves swapped")
SOME_MUTATIONS = (
    ("rms_norm", "squares in blocks of 32"),
    ("rms_norm", "mean as sum * (1 / n)"),
    ("add_rms_norm", "squares in two halves"),
    ("rope", "products in fp64"),
    ("silu_mul", "x * (1 / (1 + e))"),
    ("attention", "KV blocks of 32"),
    ("sample", "noise from log(1 - w) uncorrected"),
)
ORDER_OF = {order.name: order for order in (*ORDERS, *ELEMENTWISE)}


@dataclass(frozen=True)
class PlantedResult:
    """One planted change: the sizes at which some input gives other bits, and those that the check
    reported. Size 0 is the reference itself: with it nothing is certified."""

    operation: str
    shape: str
    planted: str
    effective_sizes: tuple[int, ...]
    reported_sizes: tuple[int, ...]

    @property
    def missed_sizes(self) -> tuple[int, ...]:
        if 0 in self.reported_sizes:
            return ()
        return tuple(size for size in self.effective_sizes if size not in self.reported_sizes)

    @property
    def verdict(self) -> str:
        if self.planted == "nothing":
            return "control differs" if self.reported_sizes else "control"
        if self.missed_sizes:
            return "missed"
        return "found" if self.reported_sizes else "no input found"

    @property
    def is_good(self) -> bool:
        return self.verdict not in ("missed", "control differs")


def run_case(case: Case, sizes: tuple[int, ...]) -> PlantedResult:
    target, backend = case.target, case.backend()
    if target.num_sizes is not None:
        sizes = sizes[:: -(-len(sizes) // target.num_sizes)]
    planted = [size for size in sizes if size != target.base.recipe.rows and case.scope.covers(size)]
    with torch.inference_mode():
        reported = case.reported_sizes(sizes)
        effective = tuple(size for size in planted if target.search(target.base, backend, size))
    return PlantedResult(target.operation, target.shape, case.planted, effective, reported)


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


@pytest.fixture(scope="module")
def num_threads() -> int:
    return numeric_settings().threads


@pytest.fixture(autouse=True)
def guard(num_threads: int, request: pytest.FixtureRequest) -> Iterator[None]:
    """The settings of a pass, whatever earlier tests left in torch and its threads."""
    if request.node.get_closest_marker("gpu") is not None:
        yield
        return
    with our_settings(torch.device("cpu")):
        yield


@pytest.fixture(scope="module", params=["c", "torch"])
def backend(request: pytest.FixtureRequest, num_threads: int) -> Backend:
    return open_backend(torch.float32, kernels=request.param, num_threads=num_threads)


@pytest.fixture(scope="module")
def torch_backend() -> Backend:
    return open_backend(torch.float32, kernels="torch", num_threads=1)


@pytest.fixture(scope="module")
def source_mutants() -> Iterator[SourceMutants]:
    with SourceMutants() as opened:
        yield opened


def reordered(backend: Backend, name: str) -> Case:
    target = gemm_target(backend, GEMM, None)
    return Case(target, name, ReorderedGemm(backend, ORDER_OF[name]), everywhere(target))


@pytest.mark.parametrize("name", SOME_ORDERS)
def test_gemm_in_another_order_is_reported_at_every_size(backend: Backend, name: str) -> None:
    result = run_case(reordered(backend, name), SIZES)
    assert result.is_good, result
    if backend.recipe.path == "c":  # torch's own order depends on the CPU
        assert result.effective_sizes == SIZES and result.verdict == "found", result


def test_gemm_in_another_order_in_one_row_or_column_is_reported(backend: Backend) -> None:
    cases = {case.planted: case for case in scoped_cases(gemm_target(backend, GEMM, None), GEMM.outputs)}
    for name in ("row 12 only", "last column only"):
        result = run_case(cases[f"{HALVES.name}, {name}"], (20,))
        assert result.effective_sizes == (20,) and result.verdict == "found", result


def test_unchanged_operations_are_not_reported(backend: Backend) -> None:
    for target in (gemm_target(backend, GEMM, None), target_of(backend, "rope", MODEL)):
        result = run_case(Case(target, "nothing", None, NEVER), SIZES)
        assert result.verdict == "control", result


@pytest.mark.parametrize(("operation", "name"), SOME_MUTATIONS)
def test_changed_torch_source_is_reported(
    torch_backend: Backend, source_mutants: SourceMutants, operation: str, name: str
) -> None:
    (mutation,) = [one for one in TORCH_MUTATIONS if one.name == name and operation in one.operations]
    target = target_of(torch_backend, operation, MODEL)
    case = Case(target, name, source_mutants.open(mutation, torch_backend), everywhere(target))
    result = run_case(case, (1, 20))
    assert result.effective_sizes and result.verdict == "found", result


def test_blind_check_misses_an_effective_change(backend: Backend) -> None:
    def blind(switched: Any, sizes: tuple[int, ...]) -> OperationCheck:
        return OperationCheck("blind", "", sizes, (), 0)

    case = reordered(backend, HALVES.name)
    result = run_case(replace(case, target=replace(case.target, check=blind)), SIZES)
    assert result.verdict == "missed" and result.missed_sizes == SIZES and not result.is_good


def test_change_without_an_effect_has_no_input(num_threads: int) -> None:
    """The C kernels as a change of themselves."""
    backend = open_backend(torch.float32, kernels="c", num_threads=num_threads)
    target = gemm_target(backend, GEMM, None)
    result = run_case(Case(target, "itself", backend, everywhere(target)), (3,))
    assert result.verdict == "no input found" and result.is_good


@pytest.mark.parametrize(
    ("package", "mutations"), [("c", C_MUTATIONS), ("torch", TORCH_MUTATIONS), ("triton", TRITON_MUTATIONS)]
)
def test_every_mutation_finds_its_text(package: str, mutations: tuple[Mutation, ...], tmp_path: Path) -> None:
    origin = Path(backends.__file__).parent / package
    for number, mutation in enumerate(mutations):
        folder = tmp_path / str(number)
        copy = folder / mutation.file
        copy.parent.mkdir(parents=True)
        shutil.copy(origin / mutation.file, copy)
        mutation.apply(folder)
        assert copy.read_text() != (origin / mutation.file).read_text()


def test_mutation_of_changed_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linear.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(MutationOutdated, match="finds it 0 times"):
        C_MUTATIONS[0].apply(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_every_effective_change_is_found(
    kernels: Any, dtype: torch.dtype, num_threads: int, source_mutants: SourceMutants
) -> None:
    if kernels == "c":
        source_mutants.build_c(C_MUTATIONS)
    assert_all_found(cpu_cases(kernels, dtype, num_threads, source_mutants, real_weights()), CPU_SIZES)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_every_effective_change_is_found_on_a_gpu(dtype: torch.dtype, source_mutants: SourceMutants) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    apply_numeric_settings(device=device)
    assert_all_found(triton_cases(device, dtype, source_mutants, real_weights()), GPU_SIZES)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:triton.runtime.interpreter")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_every_effective_change_is_found_in_the_interpreter(source_mutants: SourceMutants) -> None:
    cases = triton_cases(torch.device("cpu"), torch.float32, source_mutants, None)
    assert_all_found(cases, INTERPRETED_SIZES)


def assert_all_found(cases: Iterator[Case], sizes: tuple[int, ...]) -> None:
    """No change is missed, no control is reported, and some changes were found."""
    results = [run_case(case, sizes) for case in cases]
    clear_neighbours()
    assert [one for one in results if not one.is_good] == []
    assert any(one.verdict == "found" for one in results)


def real_weights() -> RealWeights | None:
    """Weights of the default model where it is installed: the search also tries its rows."""
    try:
        located = locate(None)
    except ModelNotFound:
        return None
    checkpoint = open_checkpoint(located.path)
    names = checkpoint.names()
    matrices = [name for name in names if "mlp" in name and "layers.0." in name and name.endswith(".weight")]
    embedding = next(name for name in names if "embed" in name)
    weights = tuple(checkpoint.tensor(name, torch.float32) for name in matrices)
    return RealWeights(located.name, checkpoint.tensor(embedding, torch.float32), weights)
