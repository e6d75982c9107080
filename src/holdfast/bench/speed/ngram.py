"""What the look-up is worth: deterministic with it against ordinary without it, one stream, prompt by prompt.

All variants answer in turn, round after round, each time counts at its best, and the prompt's pages are cached before the
clock starts: what is measured is decoding. The answers must be the same to the bit, with and without.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.machine import machine_name
from holdfast.bench.speed.ngram_prompts import COPYING, PLAIN
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.scheduler.policy import Speculation

WANTED_GAIN = 1.8
ALLOWED_LOSS = 0.97


@dataclass(frozen=True)
class Variant:
    name: str
    speculation: Speculation
    deterministic: bool


BASE = Variant("ordinary", "off", False)
PLAINLY = Variant("deterministic", "off", True)
WITH = Variant("deterministic +look-up", "ngram", True)
ORDINARY_WITH = Variant("ordinary +look-up", "ngram", False)
VARIANTS = (BASE, PLAINLY, WITH, ORDINARY_WITH)


@dataclass
class Cell:
    """One prompt: tok/s by variant, and what became of the guesses of the deterministic one."""

    prompt: str
    copies: bool
    num_tokens: int
    speed: dict[str, float]
    looked_up: int
    accepted: int
    same_bits: bool

    @property
    def gain(self) -> float:
        """Deterministic with the look-up over ordinary without it."""
        return self.speed[WITH.name] / self.speed[BASE.name]


@dataclass
class Report:
    machine: str
    model: str
    dtype: str
    threads: int
    rounds: int
    cells: list[Cell]

    def gain(self, copies: bool) -> float:
        """The geometric mean over the prompts of a kind."""
        gains = [cell.gain for cell in self.cells if cell.copies is copies]
        return math.exp(sum(map(math.log, gains)) / len(gains))

    @property
    def is_good(self) -> bool:
        return (
            all(cell.same_bits for cell in self.cells)
            and self.gain(True) >= WANTED_GAIN
            and self.gain(False) >= ALLOWED_LOSS
        )


def run(llm: LLM, model: str, rounds: int, num_tokens: int, tell: Callable[[str], None]) -> Report:
    """Every prompt, every variant, so many times in turn."""
    fingerprint = llm.engine.fingerprint.parts
    dtype, settings = fingerprint["dtype"], fingerprint["settings"]
    threads = settings["threads"] if isinstance(settings, dict) else 0
    cells = []
    for copies, prompts in ((True, COPYING), (False, PLAIN)):
        for name, text in prompts.items():
            tell(f"{name}, {rounds} rounds")
            ids = llm.chat_tokens([{"role": "user", "content": text}])
            cells.append(_measure(llm.engine, name, copies, ids, rounds, num_tokens))
    return Report(machine_name(), model, str(dtype), int(str(threads)), rounds, cells)


def _measure(engine: Engine, name: str, copies: bool, ids: list[int], rounds: int, num_tokens: int) -> Cell:
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
    with_, without = results[WITH.name], results[PLAINLY.name]
    assert with_.receipt is not None and without.receipt is not None
    same = with_.receipt["choices"] == without.receipt["choices"]
    stats = with_.stats
    return Cell(name, copies, len(with_.token_ids), best, stats.looked_up, stats.accepted, same)


def _answer(engine: Engine, ids: list[int], params: SamplingParams) -> Result:
    engine.submit(engine.prepare(ids, params))
    result: Result | None = None
    while engine.has_work:
        for update in engine.step():
            result = update.result or result
    assert result is not None
    return result


def show(report: Report, console: Console | None = None) -> None:
    """A row a prompt, and the two figures that matter."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 120  # a file has room for whole words
    table = Table(
        box=SIMPLE_HEAD, title=f"{report.model}, {report.dtype}, {report.machine}: tok/s of one stream"
    )
    table.add_column("prompt", no_wrap=True)
    for header in (
        "tokens",
        *(variant.name.replace(" ", "\n") for variant in VARIANTS),
        "gain",
        "guesses",
        "right",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for cell in report.cells:
        speeds = (f"{cell.speed[variant.name]:.1f}" for variant in VARIANTS)
        guesses = (str(cell.looked_up), str(cell.accepted))
        table.add_row(cell.prompt, str(cell.num_tokens), *speeds, f"{cell.gain:.2f}", *guesses)
    console.print(table)
    console.print(
        f"deterministic with the look-up over ordinary without it, geometric means: {report.gain(True):.2f} on text that "
        f"copies (wanted {WANTED_GAIN}), {report.gain(False):.2f} on text that does not (at least {ALLOWED_LOSS})"
    )
    differing = [cell.prompt for cell in report.cells if not cell.same_bits]
    console.print(
        f"[red]The bits differ: {', '.join(differing)}.[/]"
        if differing
        else "Every bit is the same with it and without."
    )


def save(report: Report, path: Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")
