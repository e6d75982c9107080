"""The gain of n-gram speculation: deterministic requests with it against ordinary ones without,
prompt by prompt.

One stream. All variants answer in turn, round after round, and the best time of each counts. The
prompt is in the prefix cache before the time starts, so that only decoding is measured. Answers
with and without speculation must be the same to the bit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console

from holdfast.bench.machine import machine_name
from holdfast.bench.speed.ngram_prompts import COPYING, PLAIN
from holdfast.bench.tables import make_table, open_console
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.scheduler.policy import Speculation

MIN_GAIN_COPYING = 1.8
MIN_GAIN_PLAIN = 0.97


@dataclass(frozen=True)
class NgramVariant:
    name: str
    speculation: Speculation
    deterministic: bool


BASE = NgramVariant("ordinary", "off", False)
WITHOUT = NgramVariant("deterministic", "off", True)
WITH = NgramVariant("deterministic +n-gram", "ngram", True)
ORDINARY_WITH = NgramVariant("ordinary +n-gram", "ngram", False)
VARIANTS = (BASE, WITHOUT, WITH, ORDINARY_WITH)


@dataclass
class NgramCell:
    """One prompt: tok/s by variant, and the proposed and accepted candidates of the deterministic
    n-gram variant.
    """

    prompt: str
    copies: bool
    num_tokens: int
    speed: dict[str, float]
    looked_up: int
    accepted: int
    same_bits: bool

    @property
    def gain(self) -> float:
        """Deterministic with n-gram speculation over ordinary without it."""
        return self.speed[WITH.name] / self.speed[BASE.name]


@dataclass
class NgramReport:
    machine: str
    model: str
    dtype: str
    threads: int
    rounds: int
    cells: list[NgramCell]

    def gain(self, copies: bool) -> float:
        """The geometric mean over prompts that copy, or over those that do not."""
        gains = [cell.gain for cell in self.cells if cell.copies is copies]
        return math.exp(sum(map(math.log, gains)) / len(gains))

    @property
    def is_good(self) -> bool:
        return (
            all(cell.same_bits for cell in self.cells)
            and self.gain(True) >= MIN_GAIN_COPYING
            and self.gain(False) >= MIN_GAIN_PLAIN
        )


def run(llm: LLM, model: str, rounds: int, num_tokens: int, log: Callable[[str], None]) -> NgramReport:
    """Measure every prompt with every variant."""
    fingerprint = llm.engine.fingerprint.parts
    dtype, settings = fingerprint["dtype"], fingerprint["settings"]
    threads = settings["threads"] if isinstance(settings, dict) else 0
    cells = []
    for copies, prompts in ((True, COPYING), (False, PLAIN)):
        for name, text in prompts.items():
            log(f"{name}, {rounds} rounds")
            ids = llm.chat_tokens([{"role": "user", "content": text}])
            cells.append(_measure(llm.engine, name, copies, ids, rounds, num_tokens))
    return NgramReport(machine_name(), model, str(dtype), int(str(threads)), rounds, cells)


def _measure(
    engine: Engine, name: str, copies: bool, ids: list[int], rounds: int, num_tokens: int
) -> NgramCell:
    best: dict[str, float] = {}
    results: dict[str, Result] = {}
    for _ in range(rounds):
        for variant in VARIANTS:
            schedule = replace(engine.scheduler.config, speculation=variant.speculation)
            engine = engine.restarted(schedule)
            params = SamplingParams(max_tokens=num_tokens, temperature=0, deterministic=variant.deterministic)
            _answer(engine, ids, replace(params, max_tokens=1))
            started = time.perf_counter()
            result = results[variant.name] = _answer(engine, ids, params)
            speed = len(result.token_ids) / (time.perf_counter() - started)
            best[variant.name] = max(speed, best.get(variant.name, 0.0))
    with_, without = results[WITH.name], results[WITHOUT.name]
    assert with_.receipt is not None and without.receipt is not None
    same = with_.receipt["choices"] == without.receipt["choices"]
    stats = with_.stats
    return NgramCell(name, copies, len(with_.token_ids), best, stats.looked_up, stats.accepted, same)


def _answer(engine: Engine, ids: list[int], params: SamplingParams) -> Result:
    engine.submit(engine.prepare(ids, params))
    result: Result | None = None
    while engine.has_work:
        for update in engine.step():
            result = update.result or result
    assert result is not None
    return result


def show(report: NgramReport, console: Console | None = None) -> None:
    """A row per prompt, and the mean gains."""
    console = console or open_console(file_width=120)
    title = f"{report.model}, {report.dtype}, {report.machine}: tok/s of one stream"
    variants = (variant.name.replace(" ", "\n") for variant in VARIANTS)
    headings = ("prompt", "tokens", *variants, "gain", "proposed", "accepted")
    table = make_table(title, *headings, no_wrap=True)
    for cell in report.cells:
        speeds = (f"{cell.speed[variant.name]:.1f}" for variant in VARIANTS)
        candidates = (str(cell.looked_up), str(cell.accepted))
        table.add_row(cell.prompt, str(cell.num_tokens), *speeds, f"{cell.gain:.2f}", *candidates)
    console.print(table)
    console.print(
        "deterministic with n-gram speculation over ordinary without, geometric means: "
        f"{report.gain(True):.2f} on text that copies (at least {MIN_GAIN_COPYING}), "
        f"{report.gain(False):.2f} on text that does not (at least {MIN_GAIN_PLAIN})"
    )
    differing = [cell.prompt for cell in report.cells if not cell.same_bits]
    console.print(
        f"[red]The bits differ: {', '.join(differing)}.[/]"
        if differing
        else "Every bit is the same with speculation and without."
    )
