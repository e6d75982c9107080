"""`bench gpu`: speed, determinism and its cost on a GPU, in sections.

All figures go into one file, which is written after every section. A section that fails is logged
and noted in the report; the next one runs. Sections on the same model share their engines.
"""

import gc
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from time import perf_counter

import torch

from holdfast.bench.gpu.engines import EnginePair, default_device, open_engine_pair
from holdfast.bench.gpu.report import GpuReport, SectionContext
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.machine import machine_name

REPORT_FILE = "bench-gpu.json"


class GpuBench:
    """One run: its settings, its report and the engines that are open."""

    def __init__(self, settings: GpuSettings, folder: Path | None, log: Callable[[str], None]) -> None:
        self._settings = settings
        self.report = GpuReport(gpu_machine(), torch.__version__, triton_version(), asdict(settings))
        self.report.settings["sizes"] = (
            f"{len(settings.sizes)} from {min(settings.sizes)} to {max(settings.sizes)}"
        )
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._context = SectionContext(self.report, folder / REPORT_FILE if folder is not None else None, log)
        self._open: tuple[str, EnginePair] | None = None
        self._seconds = settings.section_seconds  # of the section that runs

    def run(self, sections: Sequence[str]) -> GpuReport:
        for name in sections:
            self._context.log(f"section {name}")
            settings = self._settings
            self._seconds = settings.cells_seconds if name == "cells" else settings.section_seconds
            self._context.restart_clock(self._seconds)
            started = perf_counter()
            try:
                self._run_section(name)
            except Exception as error:
                self.report.errors[name] = f"{type(error).__name__}: {error}"
                self._context.log(f"section {name} failed: {traceback.format_exc()}")
                self._close()
            self.report.seconds[name] = perf_counter() - started
            self._context.save()
        return self.report

    def _run_section(self, name: str) -> None:
        settings, context = self._settings, self._context
        if name == "certificate":
            from holdfast.bench.gpu.certificate import run_certificate

            self._close()
            run_certificate(settings, context)
        elif name == "stress":
            from holdfast.bench.gpu.stress import run_stress

            self._close()
            run_stress(settings, context)
        elif name == "cells":
            from holdfast.bench.gpu.cells import run_cells

            self._close()
            run_cells(lambda: self._engines(settings.model), settings.model, settings, context)
        elif name == "breakdown":
            from holdfast.bench.gpu.breakdown import run_breakdown

            run_breakdown(self._engines(settings.model), settings.model, settings, context)
        elif name == "moe":
            from holdfast.bench.gpu.moe import run_moe

            run_moe(self._engines(settings.moe_model), settings.moe_model, settings, context)
        elif name == "verify":
            from holdfast.bench.gpu.speed import run_verify

            run_verify(self._engines(settings.model), settings.model, settings, context)
        else:
            from holdfast.bench.gpu.speed import run_speed

            model = settings.model if name == "speed" else settings.small_model
            run_speed(self._engines(model), model, settings, context, name)

    def _engines(self, model: str) -> EnginePair:
        """The engines of a model. They stay open until a section needs another model."""
        if self._open is None or self._open[0] != model:
            self._close()
            settings, started = self._settings, perf_counter()
            self._context.log(f"opening {model}")
            pair = open_engine_pair(
                model,
                settings.dtype,
                settings.kernels,
                settings.max_streams,
                settings.num_positions,
                settings.max_len,
                self._context.log_stage,
            )
            self._context.log(f"{model} is open after {perf_counter() - started:.1f} s")
            self.report.seconds[f"opening {model}"] = perf_counter() - started
            self._open = (model, pair)
            self._context.restart_clock(self._seconds)
        return self._open[1]

    def _close(self) -> None:
        """Free the engines' memory."""
        self._open = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def gpu_machine() -> str:
    device = default_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine_name()


def triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None
