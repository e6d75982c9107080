"""Plots in one style, drawn without a screen.

The colours are Okabe and Ito's palette, which people with colour-blindness can tell apart.
matplotlib is imported when a plot is drawn: only the `bench` extra installs it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

GREEN, SKY, BLUE, ORANGE, RED = "#009E73", "#56B4E9", "#0072B2", "#E69F00", "#D55E00"
PURPLE, GREY, BLACK = "#CC79A7", "#999999", "#000000"
_WIDTH, _DPI = 9.0, 200  # inches; shown 900 pixels wide, an inch is 100


def new_figure(height: float = 4.4) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def hide_axes(panel: Any) -> None:
    """For bars that carry their figures: no ticks, and only the base line."""
    panel.set_xticks([])
    panel.set_yticks([])
    hide_spines(panel, "top", "right", "left")


def hide_spines(panel: Any, *sides: str) -> None:
    for side in sides:
        panel.spines[side].set_visible(False)


def add_legend(figure: Any, entries: Sequence[tuple[str, str]], columns: int, fontsize: float = 9.5) -> None:
    """A legend below the panels. entries are labels and colours."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=label) for label, colour in entries]
    figure.legend(handles=patches, loc="lower center", ncols=columns, frameon=False, fontsize=fontsize)


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure. The path's suffix is the format, PNG without one."""
    figure.savefig(path, format=path.suffix.removeprefix(".") or "png")
