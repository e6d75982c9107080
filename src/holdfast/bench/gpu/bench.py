"""`bench gpu`: what a user of a GPU gets, in parts.

    start        a new process to its first token and first batch, with empty caches and again
    cells        batches of requests through `LLM.generate`, in variants
    breakdown    where the time of a decode step goes
    certificate  which GEMMs are one bit class, and the cost of the chosen ones
    stress       the determinism stress test

A part or cell that fails is noted, and the next one runs.
"""

import gc
import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.bench.gpu.breakdown import run_breakdown
from holdfast.bench.gpu.cells import CELLS, DETERMINISTIC, OFF, VERIFY, Cell, Variant
from holdfast.bench.gpu.certificate import run_certificate
from holdfast.bench.gpu.engines import EngineProcess, Figures
from holdfast.bench.gpu.measure import Bench, Row
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.stress import run_stress
from holdfast.bench.machine import default_device
from holdfast.bench.tiny import dummy_model, shape_config
from holdfast.engine.config import dtype_name
from holdfast.worker.kv_store import page_bytes

_RESERVE = 12 << 30  # of each process: its CUDA context, logits, captured graphs and activations
_PAGE_SPARE = 128  # positions of a request's last page


def run_bench(
    settings: GpuSettings,
    parts: Sequence[str],
    cells: Sequence[str],
    out: Path | None,
    log: Callable[[str], None],
) -> Bench:
    bench = Bench("bench-gpu", out, log, settings.minutes)
    work: dict[str, Callable[[str], None]] = {
        "start": lambda model: _run_starts(bench, settings, model),
        "cells": lambda model: _run_cells(bench, settings, model, cells),
        "breakdown": lambda model: run_breakdown(bench, settings, model),
        "certificate": lambda model: run_certificate(bench, settings),
        "stress": lambda model: run_stress(bench, settings),
    }
    with dummy_model(settings.model) as model:
        for part in parts:
            if bench.is_over(part):
                continue
            with bench.part(part=part):
                work[part](model)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return bench


def _run_starts(bench: Bench, settings: GpuSettings, model: str) -> None:
    """The first start has empty caches (certificates, recipes, compiled kernels), the second finds those
    of the first. Weights take as long as the user's disk, so `without_weights` is the rest."""
    single, batch = (
        cell.scaled(settings.divisor, settings.max_streams)
        for cell in (replace(CELLS["prefill-8"], streams=1), CELLS["uniform-32"])
    )
    vocab_size = shape_config(settings.model).vocab_size
    for variant in (DETERMINISTIC, OFF):
        with tempfile.TemporaryDirectory() as folder:
            caches = {f"{name}_CACHE_DIR": str(Path(folder, name)) for name in ("HOLDFAST", "TRITON")}
            for start in ("first", "second"):
                if bench.is_over("start"):
                    return
                fields = {"part": "start", "model": settings.model, "variant": variant.name, "start": start}
                options = settings.llm_options(model, determinism=variant.mode)
                with bench.part(**fields), EngineProcess(options, caches) as process:
                    process.run(single.job(variant, 1, vocab_size))
                    seconds, weights = process.seconds, process.start_up_seconds["weights"]
                    figures = process.run(batch.job(variant, 2, vocab_size))
                    bench.row(
                        **fields,
                        first_token_seconds=seconds,
                        weights_seconds=weights,
                        without_weights=seconds - weights,
                        first_batch_speed=figures["speed"],
                    )


def _run_cells(bench: Bench, settings: GpuSettings, model: str, names: Sequence[str]) -> None:
    """Cells that verify come last, so that at most two engines hold their weights at once."""
    cells = [CELLS[name].scaled(settings.divisor, settings.max_streams) for name in names]
    longest = shape_config(settings.model).max_position_embeddings
    for verifies in (False, True):
        some = [
            cell
            for cell in cells
            if (VERIFY in cell.variants) is verifies and cell.prompt_len + cell.num_tokens <= longest
        ]
        modes = list(dict.fromkeys(variant.mode for cell in some for variant in cell.variants))
        for group, kv_memory in _groups(settings, modes, some):
            if bench.is_over("cells"):
                return
            with ExitStack() as opened:
                processes: dict[str, EngineProcess] = {}
                for mode in group:
                    fields = {"part": "open", "model": settings.model, "determinism": mode}
                    options = settings.llm_options(model, determinism=mode, **kv_memory)
                    with bench.part(**fields):
                        processes[mode] = process = opened.enter_context(EngineProcess(options))
                        bench.row(**fields, seconds=process.seconds, **kv_memory)
                _run_rounds(bench, settings, some, processes)


def _groups(
    settings: GpuSettings, modes: Sequence[str], cells: Sequence[Cell]
) -> list[tuple[Sequence[str], dict[str, int]]]:
    """The engines that hold their weights at the same time, with the option kv_memory of each.

    If all of them leave too little memory for a cell, they run one after the other, with the default.
    """
    if len(modes) < 2 or default_device().type == "cpu":
        return [(modes, {})] if modes else []
    config = shape_config(settings.model)
    dtype = getattr(torch, dtype_name(settings.dtype or "auto", config.torch_dtype))
    free, _ = torch.cuda.mem_get_info()
    share = int(0.97 * free / len(modes)) - config.num_parameters * dtype.itemsize - _RESERVE
    positions = max(cell.num_positions + cell.streams * _PAGE_SPARE for cell in cells)
    if share >= positions * page_bytes(config, dtype, 1):
        return [(modes, {"kv_memory": share})]
    return [([mode], {}) for mode in modes]


def _run_rounds(
    bench: Bench, settings: GpuSettings, cells: Sequence[Cell], processes: dict[str, EngineProcess]
) -> None:
    """Round after round. The first one includes what happens on first use only."""
    vocab_size, numbers = shape_config(settings.model).vocab_size, itertools.count()
    for number in range(settings.rounds):
        for cell in cells:
            for variant in cell.variants:
                if variant.mode not in processes:
                    continue
                if bench.is_over("cells"):
                    return
                fields: Row = {"part": "cells", "model": settings.model, "cell": cell.name}
                fields |= {"title": cell.title, "variant": variant.name, "round": number + 1}
                with bench.part(**fields):
                    figures = processes[variant.mode].run(cell.job(variant, next(numbers), vocab_size))
                    bench.row(**fields, **figures, error=_missing_guarantee(variant, figures))


def _missing_guarantee(variant: Variant, figures: Figures) -> str | None:
    """What is wrong if not every deterministic answer is certified, or, in `verify`, verified."""
    if not variant.deterministic:
        return None
    kept = figures.get("certified", 0) + (figures.get("verified", 0) if variant is VERIFY else 0)
    missing = int(figures["answers"] - kept)
    return f"{missing} of {int(figures['answers'])} answers are not certified" if missing else None
