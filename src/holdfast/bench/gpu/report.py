"""The report of `bench gpu`: a dataclass per section, and the context in which a section runs.

The file is written after every measurement, so that an interrupted run keeps its figures.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.bench.report import write_report


@dataclass
class SpeedRow:
    """One variant at one number of streams. speed is tok/s of the best round; rounds holds all of
    them.
    """

    variant: str
    streams: int
    speed: float
    step_ms: float | None
    rounds: list[float] = field(default_factory=list)
    candidates: int = 0
    rolled_back: int = 0
    revocations: int = 0


@dataclass
class SpeedSection:
    """The speed of one model. prefill is tok/s until every request has its first token, by variant."""

    model: str
    dtype: str
    prompt_len: int
    num_tokens: int
    rows: list[SpeedRow] = field(default_factory=list)
    prefill: dict[str, float] = field(default_factory=dict)
    prefill_tokens: int = 0
    cut_off: bool = False

    def row(self, variant: str, streams: int) -> SpeedRow | None:
        return next((row for row in self.rows if (row.variant, row.streams) == (variant, streams)), None)

    def ratio(self, variant: str, over: str, streams: int) -> float | None:
        above, below = self.row(variant, streams), self.row(over, streams)
        return above.speed / below.speed if above is not None and below is not None else None


@dataclass
class CellRow:
    """One variant of one cell. speed is output tok/s of the best round; rounds holds all of them.

    figures of the best round: rolled_back_share of the candidates; prefill_seconds (the same batch
    with one output token) and step_ms of long prompts; without, the neighbours' speed without JSON
    schemas, and of_without, the ratio to it.
    """

    cell: str
    title: str
    variant: str
    streams: int
    speed: float = 0.0
    seconds: float = 0.0
    rounds: list[float] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class CellSection:
    """Speed through `LLM.generate`. starts: seconds to the first deterministic token of a process."""

    model: str
    dtype: str
    rows: list[CellRow] = field(default_factory=list)
    starts: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    cut_off: bool = False

    def row(self, cell: str, variant: str) -> CellRow | None:
        return next((row for row in self.rows if (row.cell, row.variant) == (cell, variant)), None)

    def speed(self, cell: str, variant: str) -> float | None:
        row = self.row(cell, variant)
        return None if row is None else row.speed


@dataclass
class CertifiedProduct:
    """One GEMM of one model.

    slices is the split-K chosen, plain_classes the number of bit classes of the plain library call,
    cost the time relative to the plain call by number of rows.
    """

    model: str
    name: str
    outputs: int
    inputs: int
    slices: int
    is_certified: bool
    num_agreeing: int
    num_tried: int
    plain_classes: int
    cost: dict[str, float] = field(default_factory=dict)


@dataclass
class CertificateSection:
    sizes: int
    dtype: str
    products: list[CertifiedProduct] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cut_off: bool = False


@dataclass
class StressRow:
    """One probe in one mode. distinct counts answers that differ in any bit, distinct_tokens those
    in tokens.
    """

    model: str
    mode: str
    asked: str
    guarantee: bool
    runs: int
    distinct: int
    distinct_tokens: int
    candidates: int
    rolled_back: int
    preemptions: int
    checks: int
    revocations: int


@dataclass
class StressSection:
    rows: list[StressRow] = field(default_factory=list)
    one_answer: dict[str, bool] = field(default_factory=dict)  # by model, over all runs with the guarantee
    notes: list[str] = field(default_factory=list)
    cut_off: bool = False


@dataclass
class StepBreakdown:
    """A decode step at one number of streams, in milliseconds.

    step_ms is measured without a profiler. busy_ms is the time in which at least one kernel ran,
    by_kind the time of each kind of kernel, gap_ms the rest of the step. floor_ms is the time of
    the minimal memory traffic at copy bandwidth. kernels holds the longest kernels, each with its
    time and its calls per step.
    """

    streams: int
    context: int
    step_ms: float
    busy_ms: float
    gap_ms: float
    busy_share: float
    floor_ms: float
    num_steps: int
    by_kind: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class PromptBreakdown:
    """The prefill of one prompt, in milliseconds, as in `StepBreakdown`.

    attention_tflops: the multiply-adds of causal attention over the time of its kernels.
    """

    num_tokens: int
    prefill_ms: float
    busy_ms: float
    attention_tflops: float
    by_kind: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class BreakdownSection:
    model: str
    dtype: str
    steps: list[StepBreakdown] = field(default_factory=list)
    prompt: PromptBreakdown | None = None
    cut_off: bool = False


@dataclass
class MoeSection:
    """A mixture of experts. experts_read: the mean number of experts of a layer that a decode step
    reads, by number of streams."""

    model: str
    dtype: str
    cells: CellSection
    experts_read: dict[int, float] = field(default_factory=dict)
    steps: list[StepBreakdown] = field(default_factory=list)
    cut_off: bool = False


@dataclass
class GpuReport:
    """The machine and all sections measured so far. errors and seconds are by section."""

    machine: str
    torch: str
    triton: str | None
    settings: dict[str, Any]
    sections: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether every section and cell ran and the stress test found one answer to each probe."""
        stress, cells = self.sections.get("stress"), self.sections.get("cells")
        if self.errors or (cells is not None and cells.errors):
            return False
        return stress is None or all(stress.one_answer.values())


class SectionContext:
    """What a section works with: the report, the log, and a clock that says when to stop."""

    def __init__(self, report: GpuReport, path: Path | None, log: Callable[[str], None]) -> None:
        self.report = report
        self._path = path
        self._log = log
        self._started = time.monotonic()
        self._deadline = float("inf")

    def restart_clock(self, seconds: float) -> None:
        """For so many seconds from now, a section may start new measurements."""
        self._deadline = time.monotonic() + seconds

    @property
    def is_over_time(self) -> bool:
        return time.monotonic() > self._deadline

    def log(self, text: str) -> None:
        self._log(f"[{time.monotonic() - self._started:7.1f} s] {text}")

    def log_stage(self, what: str, done: int, total: int) -> None:
        """Progress of opening an engine: one line at the end of each stage."""
        if done == total:
            self.log(f"{what}: done")

    def save(self) -> None:
        if self._path is not None:
            write_report(self.report, self._path)
