"""The planted changes of one machine as a report: a table on the screen, or a JSON file."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from holdfast.bench.determinism.planted.c_mutations import C_MUTATIONS
from holdfast.bench.determinism.planted.cases import Case
from holdfast.bench.determinism.planted.mutants import SourceMutants
from holdfast.bench.determinism.planted.run import (
    CPU_SIZES,
    GPU_SIZES,
    INTERPRETED_SIZES,
    PlantedResult,
    cpu_cases,
    run_case,
    triton_cases,
)
from holdfast.bench.determinism.planted.search import RealWeights
from holdfast.bench.machine import machine_name
from holdfast.bench.tables import make_table, open_console
from holdfast.certification.checks.probes import clear_neighbours
from holdfast.engine.config import DTYPES, EngineConfig
from holdfast.errors import ConfigError, ModelNotFound
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.select_backend import uses_triton
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.worker.device import choose_device, device_name

_CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_VERDICTS = ("found", "no input found", "missed", "control differs")


@dataclass(frozen=True)
class PlantedReport:
    """All planted changes. `weights` names the model whose weights the search also tried."""

    machine: str
    torch: str
    weights: str | None
    results: tuple[PlantedResult, ...]

    @property
    def is_good(self) -> bool:
        return all(one.is_good for one in self.results)


def plant_changes(
    model: str | None, engine: EngineConfig, note: Callable[[str], None] = lambda text: None
) -> PlantedReport:
    """Plant every change. Kernels "auto" are both CPU backends, or Triton on a GPU; dtype "auto" is
    every dtype of the device."""
    device = choose_device(engine.device, engine.kernels)
    settings = apply_numeric_settings(num_threads=engine.num_threads, device=device)
    real = real_weights(model)
    with SourceMutants() as mutants:
        results: list[PlantedResult] = []
        for cases, sizes in _suites(engine, device, settings.threads, mutants, real):
            before = len(results)
            results += _run(cases, sizes)
            last, found = results[-1], Counter(one.verdict for one in results[before:])
            note(f"{last.backend}, {last.dtype}: " + ", ".join(f"{found[one]} {one}" for one in _VERDICTS))
    machine = device_name(device) if device.type == "cuda" else machine_name()
    return PlantedReport(machine, str(torch.__version__), real.name if real else None, tuple(results))


def _suites(
    engine: EngineConfig,
    device: torch.device,
    num_threads: int,
    mutants: SourceMutants,
    real: RealWeights | None,
) -> Iterator[tuple[Iterator[Case], tuple[int, ...]]]:
    """The changes of each backend and dtype, and the batch sizes they are planted at."""
    kernels = engine.kernels
    wanted = None if engine.dtype == "auto" else getattr(torch, DTYPES[engine.dtype])
    if uses_triton(kernels, device):
        on_gpu = device.type == "cuda"
        dtype = wanted or (torch.bfloat16 if on_gpu else torch.float32)
        yield triton_cases(device, dtype, mutants, real), GPU_SIZES if on_gpu else INTERPRETED_SIZES
        return
    paths: tuple[KernelBackend, ...] = ("c", "torch") if kernels == "auto" else (kernels,)
    if "c" in paths:
        mutants.build_c(C_MUTATIONS)
    for path in paths:
        for dtype in (wanted,) if wanted else _CPU_DTYPES:
            yield cpu_cases(path, dtype, num_threads, mutants, real), CPU_SIZES


def _run(cases: Iterator[Case], sizes: tuple[int, ...]) -> Iterator[PlantedResult]:
    for case in cases:
        yield run_case(case, sizes)
    clear_neighbours()


def real_weights(model: str | None) -> RealWeights | None:
    """Weights of this model; without a name, of the default model where it is installed."""
    try:
        located = locate(model)
        checkpoint = open_checkpoint(located.path)
    except ModelNotFound:
        if model is not None:
            raise
        return None
    names = checkpoint.names()
    matrices = [name for name in names if "mlp" in name and "layers.0." in name and name.endswith(".weight")]
    embedding = next((name for name in names if "embed" in name), None)
    if not matrices or embedding is None:
        raise ConfigError(f"{located.name} has no MLP weights in its first layer")
    weights = tuple(checkpoint.tensor(name, torch.float32) for name in matrices)
    return RealWeights(located.name, checkpoint.tensor(embedding, torch.float32), weights)


def show_planted(report: PlantedReport) -> bool:
    """Print the counts by operation, then every change that was missed. Returns whether all with an
    input were found."""
    console = open_console(160)
    table = make_table(
        f"Planted order changes, {report.machine}",
        "operation",
        "backend",
        "dtype",
        "planted",
        *_VERDICTS,
        num_left=3,
    )
    groups: dict[tuple[str, str, str], Counter[str]] = {}
    for one in report.results:
        counts = groups.setdefault((one.operation, one.backend, one.dtype), Counter())
        counts[one.verdict] += 1
    for (operation, backend, dtype), counts in groups.items():
        planted = counts.total() - counts["control"] - counts["control differs"]
        table.add_row(operation, backend, dtype, str(planted), *(str(counts[one]) for one in _VERDICTS))
    console.print(table)
    for one in report.results:
        if not one.is_good:
            where = f"{one.operation}, {one.backend}, {one.dtype}, {one.shape}"
            sizes = one.missed_sizes or one.reported_sizes
            console.print(f"{one.verdict}: {where}: {one.planted}, at sizes {', '.join(map(str, sizes))}")
    return report.is_good
