"""`bench gpu`: speed, determinism and its price on a GPU, in sections. One file of figures, written again after every one.

A section that fails is told and recorded, and the next one runs. Engines are opened once for the sections that share them.
"""

import gc
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from time import perf_counter

import torch

from holdfast.bench.gpu.engines import Twins, open_twins, the_device
from holdfast.bench.gpu.report import Desk, Report
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.machine import machine_name

REPORT_FILE = "bench-gpu.json"


class GpuBench:
    """The sections of one run."""

    def __init__(self, settings: GpuSettings, folder: Path | None, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self.report = Report(_machine(), torch.__version__, _triton(), asdict(settings))
        self.report.settings["sizes"] = (
            f"{len(settings.sizes)} from {min(settings.sizes)} to {max(settings.sizes)}"
        )
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._desk = Desk(self.report, folder / REPORT_FILE if folder is not None else None, tell)
        self._open: tuple[str, Twins] | None = None

    def run(self, sections: Sequence[str]) -> Report:
        for name in sections:
            self._desk.tell(f"section {name}")
            self._desk.begin(self._settings.section_seconds)
            started = perf_counter()
            try:
                self._run_section(name)
            except Exception as error:
                self.report.errors[name] = f"{type(error).__name__}: {error}"
                self._desk.tell(f"section {name} failed: {traceback.format_exc()}")
                self._close()
            self.report.seconds[name] = perf_counter() - started
            self._desk.save()
        return self.report

    def _run_section(self, name: str) -> None:
        settings, desk = self._settings, self._desk
        if name == "certificate":
            from holdfast.bench.gpu.certificate import run_certificate

            self._close()
            run_certificate(settings, desk)
        elif name == "needle":
            from holdfast.bench.gpu.stress import run_needle

            self._close()
            run_needle(settings, desk)
        elif name == "breakdown":
            from holdfast.bench.gpu.breakdown import run_breakdown

            run_breakdown(self._twins(settings.model), settings.model, settings, desk)
        elif name == "verify":
            from holdfast.bench.gpu.speed import run_verify

            run_verify(self._twins(settings.model), settings.model, settings, desk)
        else:
            from holdfast.bench.gpu.speed import run_speed

            model = settings.model if name == "speed" else settings.small_model
            run_speed(self._twins(model), model, settings, desk, name)

    def _twins(self, model: str) -> Twins:
        """Opened once for the sections that follow one another on the same model."""
        if self._open is None or self._open[0] != model:
            self._close()
            settings, started = self._settings, perf_counter()
            self._desk.tell(f"opening {model}")
            twins = open_twins(
                model,
                settings.dtype,
                settings.kernels,
                settings.max_streams,
                settings.num_positions,
                settings.max_len,
                self._desk.show_stage,
            )
            self._desk.tell(f"{model} is open after {perf_counter() - started:.1f} s")
            self.report.seconds[f"opening {model}"] = perf_counter() - started
            self._open = (model, twins)
            self._desk.begin(settings.section_seconds)
        return self._open[1]

    def _close(self) -> None:
        """Give the memory back."""
        self._open = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _machine() -> str:
    device = the_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine_name()


def _triton() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None
