"""The plot of a speed report: a panel a cell, a bar a variant, on it its tok/s, in it how many times Hugging Face's.

Drawn without a screen. Colours are of Okabe and Ito's palette, which people with colour-blindness can tell apart; every
panel has its own scale, because tok/s of different cells cannot be compared.
"""

from pathlib import Path
from typing import Any

from holdfast.bench.speed.cpu import AUTO, HUGGING_FACE, ORDINARY, VERIFY, Report
from holdfast.bench.speed.table import cell_name

_COLOURS = {
    HUGGING_FACE.name: "#999999",
    ORDINARY.name: "#56B4E9",
    AUTO.name: "#009E73",
    VERIFY.name: "#E69F00",
}
_OTHER = "#CC79A7"
_WIDTH, _HEIGHT, _DPI = 9.0, 4.4, 200  # inches; shown 900 pixels wide, an inch is 100
_HEADROOM = 1.1  # for the figure on the highest bar


def plot_speed(report: Report, path: Path) -> None:
    """Write the plot; the format is the path's suffix, PNG without one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = list(next(iter(report.speed.values())))
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(cells), squeeze=False)[0]
    for panel, cell in zip(panels, cells, strict=True):
        _draw(panel, report, cell)
    _name_variants(figure, report)
    figure.suptitle(_title(report), fontsize=11, x=0.5, y=0.985)
    figure.tight_layout(rect=(0, 0.09, 1, 0.98), w_pad=1.2)
    figure.savefig(path, format=path.suffix.removeprefix(".") or "png")


def _draw(panel: Any, report: Report, cell: str) -> None:
    """The figures stand on the bars, so the panel needs neither scale nor grid."""
    highest = max(measured[cell] for measured in report.speed.values())
    for place, (variant, measured) in enumerate(report.speed.items()):
        speed = measured[cell]
        panel.bar(place, speed, width=0.88, color=_COLOURS.get(variant, _OTHER))
        panel.text(place, speed + 0.01 * highest, _figure(speed), ha="center", va="bottom", fontsize=9.5)
        if HUGGING_FACE.name in report.speed:
            ratio = f"{report.ratio(variant, HUGGING_FACE.name, cell):.2f}×"
            panel.text(place, speed - 0.02 * highest, ratio, ha="center", va="top", fontsize=9.5)
    panel.set_title(cell_name(cell), fontsize=11)
    panel.set_ylim(0, highest * _HEADROOM)
    panel.set_xticks([])
    panel.set_yticks([])
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _figure(speed: float) -> str:
    return f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"


def _name_variants(figure: Any, report: Report) -> None:
    from matplotlib.patches import Patch

    names = {name: name for name in report.speed}
    if report.hugging_face_dtype != report.dtype:
        names[HUGGING_FACE.name] = f"{HUGGING_FACE.name} ({report.hugging_face_dtype})"
    patches = [Patch(color=_COLOURS.get(name, _OTHER), label=label) for name, label in names.items()]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=9.5)


def _title(report: Report) -> str:
    return (
        f"{report.model} on {report.machine}: {report.threads} threads, {report.dtype}, torch {report.torch}\n"
        f"tokens a second, and how many times those of Hugging Face generate"
    )
