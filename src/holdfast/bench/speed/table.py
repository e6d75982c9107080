"""A speed report on the screen: tok/s, the ratios that matter, what ran otherwise than asked, and what a command costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.speed.command import ALLOWED_SECONDS, NUM_TRIES, CommandCost
from holdfast.bench.speed.cpu import AUTO, HUGGING_FACE, ORDINARY, PREFILL, VERIFY, Report

_COMPARED = (
    (ORDINARY, HUGGING_FACE),
    (AUTO, HUGGING_FACE),
    (VERIFY, HUGGING_FACE),
    (AUTO, ORDINARY),
    (VERIFY, ORDINARY),
)
_MB = 1e6


@dataclass(frozen=True)
class Ratio:
    """One variant's speed over another's, in every cell both have."""

    variant: str
    over: str
    cells: dict[str, float]


def ratios(report: Report) -> Iterator[Ratio]:
    """Those that are measured, in the order they are read."""
    for variant, over in _COMPARED:
        if variant.name in report.speed and over.name in report.speed:
            cells = {cell: report.ratio(variant.name, over.name, cell) for cell in report.speed[over.name]}
            yield Ratio(variant.name, over.name, cells)


def sharing(report: Report, many: str = "8") -> float | None:
    """How many times one deterministic stream's tok/s several give together; about 1 if they were serialised."""
    cells = report.speed.get(AUTO.name, {})
    return cells[many] / cells["1"] if many in cells and "1" in cells else None


def dtype_note(report: Report) -> str | None:
    """Why Hugging Face ran in another dtype than was asked for, if it did."""
    asked, ran = report.dtype, report.hugging_face_dtype
    if asked == ran:
        return None
    return (
        f"{HUGGING_FACE.name} ran in {ran}, not in {asked}: this CPU has no {asked} products and torch would emulate "
        f"them, so it was given {ran}, which this CPU multiplies. Holdfast ran in {asked}."
    )


def cell_name(cell: str) -> str:
    return f"prefill {PREFILL}" if cell == "prefill" else f"{cell} stream{'s' * (cell != '1')}"


def show_speed(report: Report, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    where = f"{report.machine}, {report.threads} threads, torch {report.torch}"
    what = (
        f"{report.model}, {report.dtype}, best of {report.rounds} rounds, {report.num_tokens} tokens a stream"
    )
    cells = list(next(iter(report.speed.values())))
    speed = _table(f"tok/s on {where}\n{what}", cells)
    for variant, measured in report.speed.items():
        speed.add_row(variant, *(f"{measured[cell]:.1f}" for cell in cells))
    console.print(speed)
    compared = _table("ratios", cells)
    for one in ratios(report):
        label = f"{_short(one.variant)} / {_short(one.over)}"
        compared.add_row(label, *(f"{one.cells[cell]:.2f}x" for cell in cells))
    console.print(compared)
    if (shared := sharing(report)) is not None:
        console.print(f"8 deterministic streams / 1 deterministic stream, auto: {shared:.2f}x")
    if (note := dtype_note(report)) is not None:
        console.print(note)
    if report.command is not None:
        console.print(command_line_cost(CommandCost(**report.command)))


def command_line_cost(cost: CommandCost) -> str:
    """Two lines: the wait, and the memory beside what is allowed."""
    return (
        f"holdfast generate: first byte after {cost.first_byte_seconds:.2f} s, best of {NUM_TRIES}, certificate cached "
        f"(at most {ALLOWED_SECONDS:.0f} s)\n"
        f"peak resident memory: {cost.peak_resident_bytes / _MB:.0f} MB; weights {cost.weights_bytes / _MB:.0f} MB, "
        f"KV budget {cost.kv_budget_bytes / _MB:.0f} MB (at most {cost.allowed_bytes / _MB:.0f} MB)"
    )


def _short(variant: str) -> str:
    return variant.removeprefix("deterministic, ")


def _table(title: str, cells: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for cell in cells:
        table.add_column(cell_name(cell), justify="right")
    return table
