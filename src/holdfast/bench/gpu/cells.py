"""Speed through `LLM.generate`, as a user calls it: receipts can be read, texts are made, the prefix
cache is on.

A cell is a batch of requests. Every cell runs deterministic in `auto` and, right after, with the
guarantee off and the library's plain products: GPUs of one kind differ, so only ratios of one run
can be compared. N-gram speculation is off: answers of random weights repeat themselves, and would
come out faster than those of a real model.

`start` starts a process of its own, twice: with empty caches, then again.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.bench.gpu.engines import EnginePair, llm_over
from holdfast.bench.gpu.report import CellRow, CellSection, SectionContext
from holdfast.bench.gpu.settings import GpuSettings
from holdfast.bench.gpu.speed import AUTO, OFF, VERIFY, VERIFY_PLAIN, GpuVariant
from holdfast.bench.gpu.start import measure_starts
from holdfast.bench.gpu.timing import require_complete
from holdfast.bench.workloads import draw_lengths
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.llm import LLM

START = "start"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Job:
    """One request of a cell, without its determinism."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Cell:
    """streams requests of prompt_len tokens in and num_tokens out.

    kind names what is special about it. beside is a cell whose speed is compared with this one's,
    goal the least ratio to it, or to `off` if beside is None; goal_speed is in tok/s.
    """

    name: str
    title: str
    streams: int
    prompt_len: int = 512
    num_tokens: int = 256
    kind: str = "greedy"
    variants: tuple[GpuVariant, ...] = (AUTO, OFF)
    beside: str | None = None
    goal: float | None = None
    goal_speed: float | None = None


def _greedy(streams: int, goal_speed: float | None, goal: float | None = None) -> Cell:
    title = f"greedy, N = {streams}"
    return Cell(f"greedy-{streams}", title, streams, goal_speed=goal_speed, goal=goal)


def _verify(streams: int, goal: float) -> tuple[Cell, Cell]:
    beside = f"greedy-{streams}"
    title = f"verify, N = {streams}"
    return (
        Cell(f"verify-{streams}", title, streams, variants=(VERIFY,), beside=beside, goal=goal),
        Cell(
            f"verify-plain-{streams}",
            f"{title}, candidates by plain products",
            streams,
            variants=(VERIFY_PLAIN,),
            beside=beside,
        ),
    )


CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        _greedy(1, 234),
        _greedy(8, 1674),
        _greedy(32, 4921),
        _greedy(128, 9000),
        _greedy(256, None, 0.98),
        Cell(
            "receipts-256",
            "every receipt read, N = 256",
            256,
            kind="receipts",
            variants=(AUTO,),
            beside="greedy-256",
            goal=0.98,
        ),
        Cell("sampled", "sampled, N = 128", 128, kind="sampled", beside="greedy-128", goal=0.97),
        Cell(
            "penalty",
            "repetition penalty, sampled, N = 128",
            128,
            kind="penalty",
            beside="greedy-128",
            goal=0.95,
        ),
        Cell("logprobs", "5 top logprobs, N = 128", 128, kind="logprobs", beside="greedy-128", goal=0.97),
        Cell("json", "1 of 8 with a JSON schema, N = 64: the others", 64, kind="json", goal=0.97),
        Cell("mixed", "400 of mixed lengths", 400, 2048, 768, kind="mixed", goal_speed=8600),
        Cell("long-8k", "16 x 8192/256", 16, 8192, 256, goal_speed=725),
        Cell("long-30k", "4 x 30000/64", 4, 30000, 64, goal_speed=52),
        Cell("long-100k", "1 x 100000/64", 1, 100_000, 64),
        *_verify(32, 0.88),
        *_verify(128, 0.85),
        *_verify(256, 0.82),
    )
}
CELL_NAMES = (*CELLS, START)


class CellBench:
    """Measures the cells of one model."""

    def __init__(
        self,
        pair: EnginePair,
        section: CellSection,
        settings: GpuSettings,
        context: SectionContext,
        cells: Mapping[str, Cell] = CELLS,
    ) -> None:
        self._cells = cells
        self._pair = pair
        self._section = section
        self._settings = settings
        self._context = context
        self._llm = llm_over(pair.exact)
        self._vocab_size = pair.exact.limits.vocab_size
        self._num_drawn = 0

    def run(self, names: Sequence[str]) -> None:
        """Round after round. A cell that fails is noted, and the next one runs."""
        for number in range(self._settings.rounds):
            for name in names:
                cell = self._scaled(self._cells[name])
                for variant in cell.variants:
                    if self._context.is_over_time:
                        self._section.cut_off = True
                        return
                    if name not in self._section.errors:
                        self._try_cell(number, cell, variant)

    def _try_cell(self, number: int, cell: Cell, variant: GpuVariant) -> None:
        try:
            self._run_cell(number, cell, variant)
        except Exception as error:
            self._section.errors[cell.name] = f"{variant.name}: {type(error).__name__}: {error}"
            self._context.log(f"{cell.title}, {variant.name} failed: {type(error).__name__}: {error}")
        self._context.save()

    def _scaled(self, cell: Cell) -> Cell:
        settings, divisor = self._settings, self._settings.length_divisor
        return replace(
            cell,
            streams=min(cell.streams, settings.max_cell_streams),
            prompt_len=max(4, cell.prompt_len // divisor),
            num_tokens=min(cell.num_tokens, max(4, cell.num_tokens // divisor)),
        )

    def _run_cell(self, number: int, cell: Cell, variant: GpuVariant) -> None:
        if number == 0:
            self._warm_up(cell, variant)
        timing = self._time(cell, variant)
        row = self._section.row(cell.name, variant.name)
        if row is None:
            row = CellRow(cell.name, cell.title, variant.name, cell.streams)
            self._section.rows.append(row)
        row.rounds.append(timing.speed)
        if timing.speed >= max(row.rounds):
            row.speed, row.seconds, row.figures = timing.speed, timing.seconds, timing.figures
        figures = "".join(f", {name} {value:,.3f}" for name, value in timing.figures.items())
        self._context.log(
            f"{cell.title}, round {number + 1}, {variant.name}: {timing.speed:,.1f} tok/s{figures}"
        )

    def _warm_up(self, cell: Cell, variant: GpuVariant) -> None:
        """Compile what is compiled on first use: short prompts of all requests, one long prompt."""
        num_tokens = min(cell.num_tokens, self._settings.warm_tokens)
        self._time(replace(cell, prompt_len=min(cell.prompt_len, 16), num_tokens=num_tokens), variant)
        if cell.prompt_len > 1024:
            self._time(replace(cell, kind="greedy", streams=1, num_tokens=num_tokens), variant)

    def _time(self, cell: Cell, variant: GpuVariant) -> "CellTiming":
        llm = self._llm
        llm.engine = self._pair.engine(variant.mode, plain=variant.plain, prefix_cache=True)
        jobs = self._draw(cell, deterministic=variant.deterministic)
        if cell.kind == "json":
            return _time_neighbours(llm, jobs, deterministic=variant.deterministic)
        timing = _time_batch(llm, jobs, read_receipts=cell.kind == "receipts")
        if cell.kind == "prefill":
            timing.figures["prompt_tokens_per_second"] = sum(len(job.prompt) for job in jobs) / timing.seconds
        if cell.num_tokens > 1 and cell.streams <= 16 and cell.prompt_len > 1024:
            first = [Job(job.prompt, replace(job.params, max_tokens=1)) for job in jobs]
            llm.engine = self._pair.engine(variant.mode, plain=variant.plain, prefix_cache=True)
            prefill = _time_batch(llm, first).seconds
            timing.figures["prefill_seconds"] = prefill
            timing.figures["step_ms"] = 1e3 * (timing.seconds - prefill) / (cell.num_tokens - 1)
        return timing

    def _draw(self, cell: Cell, *, deterministic: bool) -> list[Job]:
        """New prompts every time, so that the prefix cache holds none of them."""
        self._num_drawn += 1
        rng = random.Random(self._num_drawn)
        params = cell_params(cell, deterministic=deterministic)
        prompts, outputs = [cell.prompt_len] * cell.streams, [cell.num_tokens] * cell.streams
        if cell.kind == "mixed":  # the same lengths every time
            prompts = draw_lengths(random.Random(1), cell.streams, 256, 1.0, 4, cell.prompt_len)
            outputs = draw_lengths(random.Random(2), cell.streams, 160, 0.9, 4, cell.num_tokens)
        return [
            Job(
                rng.choices(range(self._vocab_size), k=length),
                replace(params, max_tokens=count, seed=seed if params.temperature else None),
            )
            for seed, (length, count) in enumerate(zip(prompts, outputs, strict=True))
        ]


def cell_params(cell: Cell, *, deterministic: bool) -> SamplingParams:
    """The settings of a cell's requests, but for lengths and seeds."""
    sampled = {"temperature": 0.8, "top_p": 0.95}
    special: Mapping[str, dict[str, Any]] = {
        "sampled": sampled,
        "penalty": {**sampled, "repetition_penalty": 1.1},
        "logprobs": {"logprobs": 5},
    }
    settings = {"temperature": 0, "ignore_eos": True, **special.get(cell.kind, {})}
    return SamplingParams(max_tokens=cell.num_tokens, deterministic=deterministic, **settings)


@dataclass
class CellTiming:
    """One run: output tokens over its time, and further figures by name."""

    seconds: float
    num_tokens: int
    figures: dict[str, float]

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


def _time_batch(llm: LLM, jobs: Sequence[Job], *, read_receipts: bool = False) -> CellTiming:
    started = time.perf_counter()
    results = llm.generate([job.prompt for job in jobs], [job.params for job in jobs], use_tqdm=False)
    if read_receipts:
        assert all(result.receipt is not None for result in results)
    seconds = time.perf_counter() - started
    for job, result in zip(jobs, results, strict=True):
        require_complete([result], job.params.max_tokens)
    return CellTiming(seconds, sum(len(one.token_ids) for one in results), _window_figures(results))


def _window_figures(results: Sequence[Result]) -> dict[str, float]:
    candidates = sum(one.stats.candidates for one in results)
    rolled_back = sum(one.stats.rolled_back for one in results)
    return {"rolled_back_share": rolled_back / candidates} if rolled_back else {}


def _time_neighbours(llm: LLM, jobs: Sequence[Job], *, deterministic: bool) -> CellTiming:
    """The speed of seven of eight requests while the others have a JSON schema; the same without
    schemas is the figure `without`."""
    few = [job for place, job in enumerate(jobs) if place % 8 == 0]
    others = [job for place, job in enumerate(jobs) if place % 8]
    structured = SamplingParams(
        max_tokens=few[0].params.max_tokens,
        temperature=0.8,
        seed=1,
        deterministic=deterministic,
        structured=StructuredOutput(json_schema=SCHEMA),
    )
    plain = [replace(job.params, temperature=0.8, seed=1) for job in few]
    prompts = [job.prompt for job in few]
    llm.generate(prompts[:1], structured, use_tqdm=False)  # compiles the grammar
    without = _beside(lambda: llm.generate(prompts, plain, use_tqdm=False), lambda: _time_batch(llm, others))
    fresh = [Job(job.prompt[::-1], job.params) for job in others]  # not in the prefix cache
    timing = _beside(
        lambda: llm.generate(prompts, structured, use_tqdm=False), lambda: _time_batch(llm, fresh)
    )
    timing.figures["without"] = without.speed
    timing.figures["of_without"] = timing.speed / without.speed
    return timing


def _beside(companion: Callable[[], object], measure: Callable[[], CellTiming]) -> CellTiming:
    """Measure while a second thread runs its own requests on the same engine."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            companion()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    timing = measure()
    thread.join()
    if errors:
        raise errors[0]
    return timing


def run_cells(
    open_pair: Callable[[], EnginePair], model: str, settings: GpuSettings, context: SectionContext
) -> CellSection:
    """The section `cells`. The process that measures a start runs before the engines are opened."""
    section = CellSection(model, settings.dtype)
    context.report.sections["cells"] = section
    if START in settings.cells:
        try:
            section.starts = measure_starts(model, settings.dtype)
            context.log(f"first deterministic token after {section.starts}")
        except Exception as error:
            section.errors[START] = f"{type(error).__name__}: {error}"
            context.log(f"start failed: {section.errors[START]}")
        context.save()
    names = [name for name in CELLS if name in settings.cells]
    if names:
        CellBench(open_pair(), section, settings, context).run(names)
    return section
