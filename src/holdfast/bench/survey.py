"""The needle over several cells: model, arithmetic, dtype, greedy or sampled; with the guarantee and once without.

With the guarantee every cell must give one answer. Without it, on the library's kernels and a model made of near ties,
there must be several: that cell shows that the loads do prick.
A cell without a compiler to run with is left out, and says so.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.needle import Scale, Tally, prick
from holdfast.bench.tiny import tiny_engine
from holdfast.core.params import SamplingParams
from holdfast.engine.config import EngineConfig, Kernels
from holdfast.engine.loop import Engine
from holdfast.errors import ConfigError

Tell = Callable[[str], None]
Verdict = Literal["good", "bad", "left out"]

TEMPERATURES = (0.0, 0.9)
TINY: tuple[tuple[Kernels, str], ...] = (
    ("compiled", "fp32"),
    ("compiled", "bf16"),
    ("library", "fp32"),
    ("library", "bf16"),
)
MIN_RUNS_OFF = 8  # few runs can miss a difference that is there
_SMALL = Scale(max_neighbours=12, max_prompt=60)  # the library path takes its time
_PROMPT = "The tide went out and left the rocks bare, and on every rock"
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_MARKS: dict[Verdict, str] = {"good": "green", "bad": "red", "left out": "yellow"}


@dataclass(frozen=True)
class Cell:
    """One way to ask. Without the guarantee the request is an ordinary one."""

    model: str
    kernels: str
    dtype: str
    temperature: float
    guarantee: bool = True

    @property
    def asked(self) -> str:
        return "sampled" if self.temperature else "greedy"

    @property
    def name(self) -> str:
        off = "" if self.guarantee else ", guarantee off"
        return f"{self.model}, {self.kernels}, {self.dtype}, {self.asked}{off}"


@dataclass(frozen=True)
class Finding:
    """What a cell gave; tally is None where it could not run, and the remark says why."""

    cell: Cell
    tally: Tally | None
    verdict: Verdict
    remark: str = ""


@dataclass(frozen=True)
class Loads:
    """How many random loads a cell gets, and from which seed."""

    num_runs: int
    seed: int
    tell: Tell


def survey(engine: Engine, name: str, num_threads: int | None, loads: Loads) -> Iterator[Finding]:
    """The chosen model first, then the built-in tiny ones."""
    kernels, dtype = _recipe(engine)
    scale = Scale(max_prompt=min(700, engine.limits.max_model_len - 64))
    prompt = engine.tokenizer.encode(_PROMPT)
    for temperature in TEMPERATURES:
        yield _prick(engine, Cell(name, kernels, dtype, temperature), prompt, scale, loads)
    for tiny_kernels, tiny_dtype in TINY:
        yield from _survey_tiny(tiny_kernels, tiny_dtype, num_threads, loads)


def judge(cell: Cell, num_distinct: int, kernels_disagree: Callable[[], bool]) -> tuple[Verdict, str]:
    """One answer with the guarantee; several without, unless this CPU's kernels cannot differ."""
    if cell.guarantee:
        return ("good", "") if num_distinct == 1 else ("bad", "must be one")
    if num_distinct > 1:
        return "good", "it pricks"
    if not kernels_disagree():
        return "good", "one bit class only: this CPU's fp32 product is the same for any number of rows"
    return "bad", "the kernels differ, the needle did not notice"


def products_disagree() -> bool:
    """Whether this CPU's fp32 product gives a row other bits among few rows than among 16."""
    generator = torch.Generator().manual_seed(0)
    for width, outputs in ((64, 176), (176, 64), (64, 512)):
        x = torch.randn(16, width, generator=generator)  # (rows, width)
        w = torch.randn(outputs, width, generator=generator)  # (outputs, width)
        if any(not torch.equal(F.linear(x[:rows], w)[0], F.linear(x, w)[0]) for rows in (1, 2, 4, 8)):
            return True
    return False


def show_survey(findings: Sequence[Finding], console: Console | None = None) -> bool:
    """The table. True if every cell that ran is as it must be."""
    console = console or Console(highlight=False)
    table = Table(
        title="One request inside random loads", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("model", overflow="fold")
    for heading in ("kernels", "dtype", "asked", "guar-\nantee"):
        table.add_column(heading, no_wrap=True)
    for heading in ("runs", "dis-\ntinct", "candi-\ndates", "rolled\nback", "pre-\nempted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in findings:
        cell = finding.cell
        guarantee = "on" if cell.guarantee else "off"
        table.add_row(cell.model, cell.kernels, cell.dtype, cell.asked, guarantee, *_counts(finding))
    console.print(table)
    for finding in findings:
        if finding.remark:
            console.print(
                f"{finding.cell.name}: {finding.remark}", style=_MARKS[finding.verdict], markup=False
            )
    good = all(finding.verdict != "bad" for finding in findings)
    if good:
        console.print(
            "[green]With the guarantee: one answer in every cell, in auto and verify, to the bit.[/]"
        )
    else:
        console.print("[red]Not as it must be: this is a bug in Holdfast, please report it.[/]")
    return good


def _survey_tiny(kernels: Kernels, dtype: str, num_threads: int | None, loads: Loads) -> Iterator[Finding]:
    """Random weights; in fp32 every token has a near twin. There the library's kernels are asked once without guarantee."""
    twins = dtype == "fp32"
    name = "twins" if twins else "tiny"
    config = EngineConfig(
        kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB", num_threads=num_threads
    )
    try:
        engine = tiny_engine(config, twins=twins)
    except ConfigError as error:
        if kernels != "compiled":
            raise
        for temperature in TEMPERATURES:
            yield Finding(Cell(name, kernels, dtype, temperature), None, "left out", str(error))
        return
    rng = random.Random(1)
    prompt = [rng.randrange(2, 400) for _ in range(37)]
    scale = Scale() if kernels == "compiled" else _SMALL
    for temperature in TEMPERATURES:
        yield _prick(engine, Cell(name, kernels, dtype, temperature), prompt, scale, loads)
    if kernels == "library" and twins:
        off = Loads(max(loads.num_runs, MIN_RUNS_OFF), loads.seed, loads.tell)
        yield _prick(engine, Cell(name, kernels, dtype, 0.0, guarantee=False), prompt, scale, off)


def _prick(engine: Engine, cell: Cell, prompt: Sequence[int], scale: Scale, loads: Loads) -> Finding:
    params = SamplingParams(
        max_tokens=24,
        temperature=cell.temperature,
        seed=7,
        ignore_eos=True,
        logprobs=3,
        deterministic=cell.guarantee,
    )

    def count(done: int) -> None:
        if done % 10 == 0 or done == loads.num_runs:
            loads.tell(f"{cell.name}: run {done} of {loads.num_runs}")

    tally = prick(
        engine,
        prompt,
        params,
        ("auto", "verify") if cell.guarantee else ("off",),
        loads.num_runs,
        seed=loads.seed,
        scale=scale,
        each=count,
    )
    return Finding(cell, tally, *judge(cell, tally.num_distinct, products_disagree))


def _counts(finding: Finding) -> tuple[str, ...]:
    tally = finding.tally
    if tally is None:
        return ("—",)
    colour = _MARKS[finding.verdict]
    distinct = f"[{colour}]{tally.num_distinct}[/]"
    stats = tally.stats
    counts = (stats.candidates, stats.rolled_back, stats.preemptions)
    return str(tally.num_runs), distinct, *map(str, counts)


def _recipe(engine: Engine) -> tuple[str, str]:
    """The arithmetic and dtype an engine's certificate was made for."""
    recipe = engine.certificate.subject["recipe"] if engine.certificate is not None else {}
    assert isinstance(recipe, dict)
    dtype = str(recipe.get("dtype", "any"))
    return str(recipe.get("path", "any")), _SHORT.get(dtype, dtype)
