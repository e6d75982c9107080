"""The CPU speed report as tables: tok/s, ratios, a note on dtypes, and the cost of a command."""

from rich.console import Console

from holdfast.bench.speed.command import (
    ALLOWED_FIRST_SECONDS,
    ALLOWED_SECONDS,
    NUM_TRIES,
    CommandCost,
    PeerCost,
)
from holdfast.bench.speed.cpu import AUTO, HUGGING_FACE, LLAMA_CPP, ORDINARY, PREFILL, VERIFY, CpuSpeedReport
from holdfast.bench.tables import make_table, open_console

_COMPARED = (
    (ORDINARY, HUGGING_FACE),
    (AUTO, HUGGING_FACE),
    (VERIFY, HUGGING_FACE),
    (ORDINARY, LLAMA_CPP),
    (AUTO, LLAMA_CPP),
    (VERIFY, LLAMA_CPP),
    (AUTO, ORDINARY),
    (VERIFY, ORDINARY),
)
_MB = 1e6


def _sharing(report: CpuSpeedReport) -> float | None:
    """tok/s of 8 deterministic streams over that of one.

    It would be about 1 if they did not share passes.
    """
    cells = report.speed.get(AUTO.name, {})
    return cells["8"] / cells["1"] if "8" in cells and "1" in cells else None


def _dtype_note(report: CpuSpeedReport) -> str | None:
    """Why Hugging Face ran in another dtype than Holdfast, if it did."""
    ours, theirs = report.dtype, report.hugging_face_dtype
    if theirs is None or ours == theirs:
        return None
    return (
        f"{HUGGING_FACE.name} ran in {theirs}, not in {ours}: this CPU has no {ours} instructions, and torch would "
        f"emulate them. Holdfast ran in {ours}."
    )


def cell_name(cell: str) -> str:
    return f"prefill {PREFILL}" if cell == "prefill" else f"{cell} stream{'s' * (cell != '1')}"


def show_speed(report: CpuSpeedReport, console: Console | None = None) -> None:
    console = console or open_console()
    where = f"{report.machine}, {report.threads} threads, torch {report.torch}"
    what = f"{report.model}, {report.dtype}, best of {report.rounds} rounds, {report.num_tokens} tokens per stream"
    cells = list(next(iter(report.speed.values())))
    headings = ("", *map(cell_name, cells))
    speed = make_table(f"tok/s on {where}\n{what}", *headings)
    for name, measured in report.speed.items():
        speed.add_row(name, *(f"{measured[cell]:.1f}" for cell in cells))
    console.print(speed)
    ratios = make_table("ratios", *headings)
    for variant, over in _COMPARED:
        if variant.name in report.speed and over.name in report.speed:
            label = f"{_short(variant.name)} / {_short(over.name)}"
            ratios.add_row(label, *(f"{report.ratio(variant.name, over.name, cell):.2f}x" for cell in cells))
    console.print(ratios)
    if (shared := _sharing(report)) is not None:
        console.print(f"8 deterministic streams / 1 deterministic stream, auto: {shared:.2f}x")
    if (note := _dtype_note(report)) is not None:
        console.print(note)
    if report.command is not None:
        console.print(_command_cost(CommandCost(**report.command)))
    if report.peer_command is not None:
        peer = PeerCost(**report.peer_command)
        console.print(
            f"{report.peer} {report.peer_version}: first byte after {peer.first_byte_seconds:.2f} s, "
            f"peak resident memory {peer.peak_resident_bytes / _MB:.0f} MB"
        )


def _command_cost(cost: CommandCost) -> str:
    """Time and memory, each with its limit."""
    torch = cost.import_torch_seconds
    return (
        f"holdfast generate: first byte after {cost.first_byte_seconds:.2f} s, best of {NUM_TRIES} "
        f"(at most {torch + ALLOWED_SECONDS:.2f} s: import torch takes {torch:.2f} s); the first start ever after "
        f"{cost.first_start_seconds:.2f} s (at most {torch + ALLOWED_FIRST_SECONDS:.2f} s)\n"
        f"peak resident memory: {cost.peak_resident_bytes / _MB:.0f} MB (at most "
        f"{cost.allowed_bytes / _MB:.0f} MB: weights {cost.weights_bytes / _MB:.0f} MB)"
    )


def _short(variant: str) -> str:
    return variant.removeprefix("deterministic, ")
