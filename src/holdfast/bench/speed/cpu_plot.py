"""The plot of a CPU speed report: a panel per cell, a bar per variant with its tok/s and its ratio
to the peer.

Every panel has its own scale: tok/s of different cells are not comparable.
"""

from pathlib import Path
from typing import Any

from holdfast.bench import plots
from holdfast.bench.speed.cpu import AUTO, HUGGING_FACE, LLAMA_CPP, ORDINARY, VERIFY, CpuSpeedReport
from holdfast.bench.speed.cpu_table import cell_name

_COLOURS = {
    HUGGING_FACE.name: plots.GREY,
    LLAMA_CPP.name: plots.GREY,
    ORDINARY.name: plots.SKY,
    AUTO.name: plots.GREEN,
    VERIFY.name: plots.ORANGE,
}
_HEADROOM = 1.1  # for the figure on the highest bar


def plot_speed(report: CpuSpeedReport, path: Path) -> None:
    cells = list(next(iter(report.speed.values())))
    figure = plots.new_figure()
    panels = figure.subplots(1, len(cells), squeeze=False)[0]
    for panel, cell in zip(panels, cells, strict=True):
        _draw(panel, report, cell)
    plots.add_legend(figure, _legend(report), columns=len(report.speed))
    figure.suptitle(_title(report), fontsize=11, x=0.5, y=0.985)
    figure.tight_layout(rect=(0, 0.09, 1, 0.98), w_pad=1.2)
    plots.save_figure(figure, path)


def _draw(panel: Any, report: CpuSpeedReport, cell: str) -> None:
    highest = max(measured[cell] for measured in report.speed.values())
    for place, (variant, measured) in enumerate(report.speed.items()):
        speed = measured[cell]
        panel.bar(place, speed, width=0.88, color=_COLOURS[variant])
        panel.text(place, speed + 0.01 * highest, _figure(speed), ha="center", va="bottom", fontsize=9.5)
        if report.peer in report.speed:
            ratio = f"{report.ratio(variant, report.peer, cell):.2f}×"
            panel.text(place, speed - 0.02 * highest, ratio, ha="center", va="top", fontsize=9.5)
    panel.set_title(cell_name(cell), fontsize=11)
    panel.set_ylim(0, highest * _HEADROOM)
    plots.hide_axes(panel)


def _figure(speed: float) -> str:
    return f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"


def _legend(report: CpuSpeedReport) -> list[tuple[str, str]]:
    labels = {name: name for name in report.speed}
    if report.hugging_face_dtype not in (None, report.dtype):
        labels[HUGGING_FACE.name] = f"{HUGGING_FACE.name} ({report.hugging_face_dtype})"
    return [(label, _COLOURS[name]) for name, label in labels.items()]


def _title(report: CpuSpeedReport) -> str:
    return (
        f"{report.model} on {report.machine}: {report.threads} threads, {report.dtype}, torch {report.torch}\n"
        f"tokens per second, and the ratio to {report.peer}"
    )
