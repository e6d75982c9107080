"""What `bench gpu` found, section by section, as plain data: written again whenever something is added, so that a run that is
cut off leaves what it has.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class SpeedRow:
    """One variant at one number of streams: the best round, and the tok/s of all of them."""

    variant: str
    streams: int
    speed: float
    step_ms: float | None
    rounds: list[float] = field(default_factory=list)
    candidates: int = 0
    rolled_back: int = 0
    revocations: int = 0


@dataclass
class Speed:
    """One shape. prefill: tok/s from submission to the first tokens, by variant."""

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
class CertifiedProduct:
    """One product of one model: the K-slices chosen, the bit classes of the plain call, times against it by rows."""

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
class Certificates:
    sizes: int
    dtype: str
    products: list[CertifiedProduct] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cut_off: bool = False


@dataclass
class Pricks:
    """One needle in one mode: how many runs, how many different answers (with the bits of logprobs, and of tokens alone)."""

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
class Needles:
    pricks: list[Pricks] = field(default_factory=list)
    one_answer: dict[str, bool] = field(
        default_factory=dict
    )  # by model: of each needle, over all guaranteed runs
    notes: list[str] = field(default_factory=list)
    cut_off: bool = False


@dataclass
class StepBreakdown:
    """A decode step at one number of streams, in milliseconds.

    step_ms is timed without a profiler; busy_ms is how long some kernel ran, by_kind how long those of each kind did, and the
    gap is what lies between. floor_ms is the least memory traffic of the step at the bandwidth of a copy. kernels holds the
    longest, each with its time and how often it ran a step.
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
class Breakdown:
    model: str
    dtype: str
    steps: list[StepBreakdown] = field(default_factory=list)
    cut_off: bool = False


@dataclass
class Report:
    """Where it was measured, and what was found so far; errors by section."""

    machine: str
    torch: str
    triton: str | None
    settings: dict[str, Any]
    sections: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether every section ran and every guaranteed answer was one."""
        needle = self.sections.get("needle")
        return not self.errors and (needle is None or all(needle.one_answer.values()))


class Desk:
    """Where a section tells, saves and asks how much time it has."""

    def __init__(self, report: Report, path: Path | None, tell: Callable[[str], None]) -> None:
        self.report = report
        self._path = path
        self._tell = tell
        self._started = time.monotonic()
        self._deadline = float("inf")

    def begin(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def tell(self, text: str) -> None:
        self._tell(f"[{time.monotonic() - self._started:7.1f} s] {text}")

    def show_stage(self, what: str, done: int, total: int) -> None:
        """Progress of loading: a line at the end of a stage."""
        if done == total:
            self.tell(f"{what}: done")

    def save(self) -> None:
        """All there is, in one file, replaced at once."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self.report), indent=1) + "\n")
        draft.replace(self._path)
