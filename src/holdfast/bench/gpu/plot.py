"""Plots of `bench gpu`: tok/s beside vLLM's, and where the time of a decode step goes."""

from pathlib import Path
from typing import Any

from holdfast.bench import plots
from holdfast.bench.gpu.cells import CELLS
from holdfast.bench.gpu.report import BreakdownSection, CellSection, GpuReport, SpeedSection
from holdfast.bench.gpu.speed import AUTO, OFF, ORDINARY
from holdfast.bench.peers import SOURCE, peer_of

_PEER, _INVARIANT = SOURCE, f"{SOURCE}, batch-invariant"
_COLOURS = {
    AUTO.name: plots.GREEN,
    ORDINARY.name: plots.SKY,
    OFF.name: plots.BLUE,
    _PEER: plots.GREY,
    _INVARIANT: plots.RED,
}
_KIND_COLOURS = (
    plots.BLUE,
    plots.GREEN,
    plots.ORANGE,
    plots.SKY,
    plots.PURPLE,
    plots.RED,
    plots.YELLOW,
    plots.GREY,
    plots.BLACK,
)


def plot_report(report: GpuReport, folder: Path) -> list[Path]:
    """Write a file for each section that has a plot."""
    written = []
    for name in ("speed", "small"):
        speed = report.sections.get(name)
        if speed is not None and speed.rows:
            written.append(_plot_speed(speed, report, folder / f"bench-gpu-{name}.png"))
    cells = report.sections.get("cells")
    if cells is not None and cells.rows:
        written.append(_plot_cells(cells, report, folder / "bench-gpu-cells.png"))
    breakdown = report.sections.get("breakdown")
    if breakdown is not None and breakdown.steps:
        written.append(_plot_breakdown(breakdown, report, folder / "bench-gpu-breakdown.png"))
    return written


def _plot_speed(speed: SpeedSection, report: GpuReport, path: Path) -> Path:
    """A panel per number of streams with its own scale, a bar per variant."""
    figure = plots.new_figure()
    streams = list(dict.fromkeys(row.streams for row in speed.rows))
    panels = figure.subplots(1, len(streams), squeeze=False)[0]
    for panel, count in zip(panels, streams, strict=True):
        bars = _bars(speed, count)
        highest = max(value for _, value in bars)
        for place, (name, value) in enumerate(bars):
            panel.bar(place, value, width=0.88, color=_COLOURS[name])
            panel.text(
                place,
                value + 0.01 * highest,
                f"{value:,.0f}",
                ha="center",
                va="bottom",
                fontsize=7,
                rotation=90,
            )
        panel.set_ylim(0, highest * 1.25)
        panel.set_title(f"N = {count}", fontsize=10)
        plots.hide_axes(panel)
    entries = [(name, _COLOURS[name]) for name, _ in _bars(speed, streams[-1])]
    plots.add_legend(figure, entries, columns=3, fontsize=8.5)
    lengths = f"{speed.prompt_len} in / {speed.num_tokens} out"
    figure.suptitle(
        f"{speed.model} on {report.machine}, {speed.dtype}, {lengths}: tokens per second", fontsize=11
    )
    return _save(figure, path)


def _bars(speed: SpeedSection, streams: int) -> list[tuple[str, float]]:
    rows = [speed.row(variant.name, streams) for variant in (AUTO, ORDINARY, OFF)]
    bars = [(row.variant, row.speed) for row in rows if row is not None]
    peer = peer_of(speed.model, streams)
    return bars + ([(_PEER, peer.speed), (_INVARIANT, peer.invariant_speed)] if peer is not None else [])


def _plot_cells(cells: CellSection, report: GpuReport, path: Path) -> Path:
    """A bar per cell: its speed relative to the same GPU's with the guarantee off, and its tok/s."""
    bars = []
    for row in cells.rows:
        cell = CELLS[row.cell]
        off = cells.speed(cell.name, OFF.name) or cells.speed(cell.beside or "", OFF.name)
        if row.variant != OFF.name and off:
            bars.append((row, row.speed / off))
    figure = plots.new_figure(height=1.4 + 0.3 * len(bars))
    panel = figure.subplots()
    for place, (row, ratio) in enumerate(reversed(bars)):
        colour = plots.GREEN if row.variant == AUTO.name else plots.ORANGE
        panel.barh(place, ratio, color=colour, height=0.7)
        panel.text(ratio + 0.01, place, f"{ratio:.2f}   {row.speed:,.0f} tok/s", va="center", fontsize=8)
    panel.set_yticks(range(len(bars)), [row.title for row, _ in reversed(bars)], fontsize=8.5)
    panel.axvline(1.0, color=plots.BLACK, linewidth=1)
    panel.set_xlim(0, 1.35 * max((ratio for _, ratio in bars), default=1.0))
    panel.set_xlabel("output tok/s over that of the same requests with the guarantee off")
    plots.hide_spines(panel, "top", "right")
    plots.add_legend(figure, [("auto", plots.GREEN), ("verify", plots.ORANGE)], columns=2)
    figure.suptitle(
        f"{cells.model} on {report.machine}, {cells.dtype}, all deterministic, through LLM.generate",
        fontsize=11,
    )
    return _save(figure, path)


def _plot_breakdown(found: BreakdownSection, report: GpuReport, path: Path) -> Path:
    """A bar per number of streams, stacked by kind of kernel, then the gap.

    A line marks the memory floor.
    """
    figure = plots.new_figure()
    panel = figure.subplots()
    kinds = list(dict.fromkeys(kind for step in found.steps for kind in step.by_kind))
    colours = {kind: _KIND_COLOURS[number % len(_KIND_COLOURS)] for number, kind in enumerate(kinds)}
    for place, step in enumerate(found.steps):
        below = 0.0
        for kind in kinds:
            height = step.by_kind.get(kind, 0.0)
            panel.barh(place, height, left=below, color=colours[kind], height=0.6)
            below += height
        panel.barh(place, max(step.gap_ms, 0.0), left=below, color=plots.LIGHT_GREY, height=0.6)
        panel.plot([step.floor_ms] * 2, [place - 0.42, place + 0.42], color=plots.BLACK, linewidth=1.5)
    panel.set_yticks(range(len(found.steps)), [f"N = {step.streams}" for step in found.steps])
    panel.set_xlabel("ms; the black line is the memory floor")
    plots.add_legend(figure, [*colours.items(), ("gap", plots.LIGHT_GREY)], columns=5, fontsize=8.5)
    figure.suptitle(f"A decode step of {found.model} on {report.machine}, {found.dtype}", fontsize=11)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout(rect=(0, 0.12, 1, 0.98), w_pad=1.0)
    plots.save_figure(figure, path)
    return path
