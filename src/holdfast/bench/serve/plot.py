"""The plot of a load: latency percentiles as bars; below them tokens per second and server memory
over time.
"""

from pathlib import Path
from typing import Any

from holdfast.bench import plots
from holdfast.bench.percentiles import PERCENTS, Percentiles
from holdfast.bench.serve.report import DETERMINISTIC, ORDINARY, ServeReport
from holdfast.bench.serve.table import LATENCIES

_COLOURS = {ORDINARY: plots.SKY, DETERMINISTIC: plots.GREEN}
_SHOWN = ("first_text", "between_pieces", "end_to_end")
_HEADROOM = 1.12  # for the figure on the highest bar


def plot_report(report: ServeReport, path: Path) -> None:
    figure = plots.new_figure(height=6.0)
    grid = figure.add_gridspec(2, 6, height_ratios=(3, 2))
    for place, field in enumerate(_SHOWN):
        _draw_bars(figure.add_subplot(grid[0, 2 * place : 2 * place + 2]), report, field)
    memory = report.processes.timeline if report.processes is not None else None
    speed = figure.add_subplot(grid[1, : 3 if memory else 6])
    _draw_line(speed, report.timeline, "tokens per second", plots.BLUE)
    if memory:
        megabytes = [(seconds, held / 1e6) for seconds, held in memory]
        _draw_line(figure.add_subplot(grid[1, 3:]), megabytes, "server memory, MB", plots.RED)
    entries = [(f"{kind} requests", _COLOURS[kind]) for kind in report.latency]
    plots.add_legend(figure, entries, columns=len(entries))
    figure.suptitle(_title(report), fontsize=11, x=0.5, y=0.985)
    figure.tight_layout(rect=(0, 0.05, 1, 0.99), w_pad=1.2, h_pad=1.6)
    plots.save_figure(figure, path)


def _draw_bars(panel: Any, report: ServeReport, field: str) -> None:
    """A group of bars per percentile, labelled in milliseconds."""
    kinds = list(report.latency)
    width = 0.9 / len(kinds)
    highest = 0.0
    for number, kind in enumerate(kinds):
        found: Percentiles = getattr(report.latency[kind], field)
        for place, value in enumerate((found.p50, found.p90, found.p99)):
            at = place + (number - (len(kinds) - 1) / 2) * width
            panel.bar(at, value, width=width * 0.95, color=_COLOURS[kind])
            panel.text(at, value, f"{value * 1e3:.0f}", ha="center", va="bottom", fontsize=8)
            highest = max(highest, value)
    panel.set_title(f"{LATENCIES[field]}, ms", fontsize=10.5)
    panel.set_ylim(0, highest * _HEADROOM or 1.0)
    panel.set_xticks(range(len(PERCENTS)), [f"p{percent}" for percent in PERCENTS])
    panel.set_yticks([])
    panel.tick_params(bottom=False)
    plots.hide_spines(panel, "top", "right", "left")


def _draw_line(panel: Any, points: list[tuple[float, float]], title: str, colour: str) -> None:
    panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.4)
    panel.set_title(title, fontsize=10.5)
    panel.set_xlabel("seconds", fontsize=9)
    panel.set_ylim(0, max(value for _, value in points) * _HEADROOM or 1.0)
    panel.set_xlim(left=0)
    panel.tick_params(labelsize=8.5)
    plots.hide_spines(panel, "top", "right")


def _title(report: ServeReport) -> str:
    return (
        f"{report.model} on {report.machine}: {report.load}\n{report.requests}; {report.tokens_per_second:.0f} tok/s, "
        f"{sum(report.errors.values())} errors"
    )
