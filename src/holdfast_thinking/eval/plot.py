"""Plots of an evaluation: accuracy by length, one panel for each task; latencies as bars."""

from pathlib import Path
from typing import Any

from holdfast_thinking.eval.report import EvalReport, task_label

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")  # Okabe and Ito


def plot_eval(report: EvalReport, folder: Path) -> list[Path]:
    """Draw what the report has; returns the files written."""
    written = []
    if any(cell.events for cell in report.accuracy):
        written.append(_plot_accuracy(report, folder / "accuracy.png"))
    if any(not cell.events for cell in report.accuracy):
        written.append(_plot_tasks(report, folder / "tasks.png"))
    if report.latency:
        written.append(_plot_latency(report, folder / "latency.png"))
    return written


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(figure)
    return figure


def _plot_accuracy(report: EvalReport, path: Path) -> Path:
    tasks = list(dict.fromkeys(cell.task for cell in report.accuracy if cell.events))
    colours = dict(zip(report.models, _COLOURS * len(report.models), strict=False))
    figure = _figure(4.8 * len(tasks) + 0.6, 3.6)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        for model, colour in colours.items():
            cells = [cell for cell in report.accuracy if (cell.model, cell.task) == (model, task)]
            _draw_line(panel, cells, color=colour, label=model)
            without = [cell for cell in report.zeroed if (cell.model, cell.task) == (model, task)]
            _draw_line(panel, without, color=colour, linestyle=":", label=f"{model}, states zeroed")
            if cells:
                panel.axvline(report.models[model]["max_events"], color=colour, alpha=0.3, lw=1)
        panel.set_title(task)
        panel.set_xlabel("events; lines: the longest text trained on")
        panel.set_ylim(-0.02, 1.02)
        panel.grid(alpha=0.25)
        panel.legend(fontsize=8, frameon=False)
    panels[0].set_ylabel("right answers")
    return _save(figure, path)


def _plot_tasks(report: EvalReport, path: Path) -> Path:
    """Tasks without a number of events: a group of bars each."""
    cells = [cell for cell in report.accuracy if not cell.events]
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    models = list(dict.fromkeys(cell.model for cell in cells))
    figure = _figure(1.6 + 0.4 * len(tasks) * (len(models) + 1), 3.6)
    panel = figure.subplots()
    width = 0.8 / len(models)
    for number, model in enumerate(models):
        found = {cell.task: cell.accuracy for cell in cells if cell.model == model}
        places = [index + number * width for index, task in enumerate(tasks) if task in found]
        shares = [found[task] for task in tasks if task in found]
        panel.bar(places, shares, width, align="edge", color=_COLOURS[number % len(_COLOURS)], label=model)
    panel.set_xticks(
        [index + 0.4 for index in range(len(tasks))],
        [task_label(task) for task in tasks],
        rotation=20,
        ha="right",
        fontsize=8,
    )
    panel.set_ylim(0, 1.02)
    panel.set_ylabel("right answers")
    panel.grid(axis="y", alpha=0.25)
    panel.legend(fontsize=8, frameon=False)
    return _save(figure, path)


def _draw_line(panel: Any, cells: list[Any], **style: Any) -> None:
    if cells:
        panel.plot(
            [cell.events for cell in cells], [cell.accuracy for cell in cells], marker="o", ms=3, **style
        )


def _plot_latency(report: EvalReport, path: Path) -> Path:
    figure = _figure(6.6, 1.2 + 0.5 * len(report.latency))
    panel = figure.subplots()
    first = report.latency[0]
    for place, one in enumerate(reversed(report.latency)):
        colour = _COLOURS[(len(report.latency) - 1 - place) % len(_COLOURS)]
        panel.barh(place, one.median_ms, height=0.7, color=colour)
        ratio = "" if one.ratio is None else f", {one.ratio:.2f}×"
        panel.text(
            one.median_ms,
            place,
            f" {one.median_ms:.1f} ms{ratio}, {one.accuracy:.0%} right",
            va="center",
            fontsize=9,
        )
    panel.set_yticks(range(len(report.latency)), [one.model for one in reversed(report.latency)])
    panel.set_xlim(0, 1.5 * max(one.median_ms for one in report.latency))
    panel.set_xlabel(f"ms from request to complete answer, {task_label(first.task, first.events)}, median")
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, format="png")
    return path
