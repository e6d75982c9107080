"""The plot of a load: what clients waited, in bars; beneath, tokens a second and the server's memory over time.

Drawn without a screen, in Okabe and Ito's palette, which people with colour-blindness can tell apart.
"""

from pathlib import Path
from typing import Any

from holdfast.bench.serve.latency import PERCENTS, Percentiles
from holdfast.bench.serve.report import DETERMINISTIC, ORDINARY, Report
from holdfast.bench.serve.table import LATENCIES

_COLOURS = {ORDINARY: "#56B4E9", DETERMINISTIC: "#009E73"}
_SPEED, _MEMORY = "#0072B2", "#D55E00"
_SHOWN = ("first_text", "between_pieces", "end_to_end")
_WIDTH, _HEIGHT, _DPI = 9.0, 6.0, 200  # inches; shown 900 pixels wide, an inch is 100
_HEADROOM = 1.12  # for the figure on the highest bar


def plot_report(report: Report, path: Path) -> None:
    """Write the plot; the format is the path's suffix, PNG without one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI)
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 6, height_ratios=(3, 2))
    for place, field in enumerate(_SHOWN):
        _draw_bars(figure.add_subplot(grid[0, 2 * place : 2 * place + 2]), report, field)
    memory = report.processes.timeline if report.processes is not None else None
    speed = figure.add_subplot(grid[1, : 3 if memory else 6])
    _draw_line(speed, report.timeline, "tokens a second", _SPEED)
    if memory:
        megabytes = [(seconds, held / 1e6) for seconds, held in memory]
        _draw_line(figure.add_subplot(grid[1, 3:]), megabytes, "server memory, MB", _MEMORY)
    _name_kinds(figure, report)
    figure.suptitle(_title(report), fontsize=11, x=0.5, y=0.985)
    figure.tight_layout(rect=(0, 0.05, 1, 0.99), w_pad=1.2, h_pad=1.6)
    figure.savefig(path, format=path.suffix.removeprefix(".") or "png")


def _draw_bars(panel: Any, report: Report, field: str) -> None:
    """A group of bars a percentile; the figures on them are milliseconds."""
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
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _draw_line(panel: Any, points: list[tuple[float, float]], title: str, colour: str) -> None:
    panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.4)
    panel.set_title(title, fontsize=10.5)
    panel.set_xlabel("seconds", fontsize=9)
    panel.set_ylim(0, max(value for _, value in points) * _HEADROOM or 1.0)
    panel.set_xlim(left=0)
    panel.tick_params(labelsize=8.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _name_kinds(figure: Any, report: Report) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_COLOURS[kind], label=f"{kind} requests") for kind in report.latency]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=9.5)


def _title(report: Report) -> str:
    return (
        f"{report.model} on {report.machine}: {report.load}\n{report.requests}; {report.tokens_per_second:.0f} tok/s, "
        f"{sum(report.errors.values())} errors"
    )
