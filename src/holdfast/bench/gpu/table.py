"""The rows of `bench gpu` as Markdown tables, and a plot of the cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench import plots
from holdfast.bench.gpu.cells import DETERMINISTIC, OFF, ORDINARY, VARIANTS, VERIFY
from holdfast.bench.gpu.measure import Row, markdown, shown, table

_TITLES = {
    "start": "From the start of a process, in seconds; speeds in tok/s",
    "cells": "Output tok/s through `LLM.generate`, best round (in brackets ms of a decode step)",
    "breakdown": "A decode step, all requests deterministic, ms",
    "breakdown of a prompt": "The prefill of one prompt, ms",
    "certificate": "GEMMs; `at N`: time with N rows relative to the plain call",
    "stress": "One request inside random loads",
}
_FURTHER = ("prefill_seconds", "cached_tokens", "preemptions", "ngram_candidates", "rolled_back", "without")


@dataclass(frozen=True)
class CellRows:
    """The rows of one cell: its first and its best round in each variant."""

    cell: str
    title: str
    first: Mapping[str, Row]
    best: Mapping[str, Row]

    @property
    def name(self) -> str:
        """The variant that is compared with the others."""
        return next((one.name for one in VARIANTS if one.deterministic and one.name in self.best), OFF.name)

    def ratio(self, other: str) -> float | None:
        if other not in self.best or other == self.name:
            return None
        own: float = self.best[self.name]["speed"]
        return own / float(self.best[other]["speed"])


def read_cells(rows: Sequence[Row]) -> list[CellRows]:
    """The cells that were measured, in the order of the rows."""
    measured = [row for row in rows if row["part"] == "cells" and "speed" in row]
    cells = []
    for name in dict.fromkeys(row["cell"] for row in measured):
        own = [row for row in measured if row["cell"] == name]
        first = {row["variant"]: row for row in reversed(own)}
        best = {row["variant"]: row for row in sorted(own, key=lambda row: float(row["speed"]))}
        cells.append(CellRows(name, own[0]["title"], first, best))
    return cells


def tables(rows: Sequence[Row]) -> str:
    """A table for each part and model, the cuts and the errors."""
    found = []
    for part, title in _TITLES.items():
        measured = [row for row in rows if row["part"] == part and ("speed" in row or "error" not in row)]
        for model in dict.fromkeys(row["model"] for row in measured if "model" in row):
            own = [row for row in measured if row.get("model") == model]
            lines = cells_table(own) if part == "cells" else table(own, "part", "model")
            found.append(f"{title}: {model}\n\n{lines}")
    found += [f"{row['part']}: {row['cut_off']}" for row in rows if "cut_off" in row]
    for row in rows:
        if "error" in row:
            names = [str(row[name]) for name in ("part", "model", "cell", "variant", "round") if name in row]
            found.append(f"Error in {', '.join(names)}: {row['error']}")
    return "\n\n".join(found)


def cells_table(rows: Sequence[Row]) -> str:
    """A line for each cell. The ratios, `first use` (the speed in the first round of a process), `answers`
    and `further` are those of deterministic requests."""
    cells = read_cells(rows)
    variants = [one.name for one in VARIANTS if any(one.name in cell.best for cell in cells)]
    headings = ["cell", "requests", *variants, "/ ordinary", "/ off", "first use", "answers", "further"]
    return markdown(headings, [_cell_line(cell, variants) for cell in cells])


def _cell_line(cell: CellRows, variants: Sequence[str]) -> list[object]:
    best = cell.best[cell.name]
    ratios = [cell.ratio(other) for other in (ORDINARY.name, OFF.name)]
    kept = [f"{best[name]} {name}" for name in ("certified", "verified") if name in best]
    return [
        cell.cell,
        cell.title,
        *(_speed(cell.best[name]) if name in cell.best else "" for name in variants),
        *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
        cell.first[cell.name]["speed"],
        ", ".join(kept) or best["answers"],
        ", ".join(f"{name.replace('_', ' ')} {shown(best[name])}" for name in _FURTHER if name in best),
    ]


def _speed(row: Row) -> str:
    return shown(row["speed"]) + (f" ({row['step_ms']:.2f})" if "step_ms" in row else "")


def plot_cells(header: Row, rows: Sequence[Row], path: Path) -> None:
    """A bar for each cell of the first model: its speed over that of the same requests with the guarantee
    off."""
    model = next((row["model"] for row in rows if row["part"] == "cells"), "nothing")
    own = [row for row in rows if row.get("model") == model]
    bars = [(cell, cell.ratio(OFF.name)) for cell in read_cells(own)]
    shown_bars = [(cell, ratio) for cell, ratio in reversed(bars) if ratio is not None]
    figure = plots.new_figure(height=1.4 + 0.3 * len(shown_bars))
    panel = figure.subplots()
    for place, (cell, ratio) in enumerate(shown_bars):
        panel.barh(place, ratio, color=plots.ORANGE if cell.name == VERIFY.name else plots.GREEN, height=0.7)
        label = f"{ratio:.2f}   {shown(cell.best[cell.name]['speed'])} tok/s"
        panel.text(ratio + 0.01, place, label, va="center", fontsize=8)
    panel.set_yticks(range(len(shown_bars)), [cell.cell for cell, _ in shown_bars], fontsize=8.5)
    panel.axvline(1.0, color=plots.BLACK, linewidth=1)
    panel.set_xlim(0, 1.35 * max((ratio for _, ratio in shown_bars), default=1.0))
    panel.set_xlabel("tok/s over that of the same requests with the guarantee off")
    plots.hide_spines(panel, "top", "right")
    plots.add_legend(figure, [(DETERMINISTIC.name, plots.GREEN), (VERIFY.name, plots.ORANGE)], columns=2)
    figure.suptitle(f"{model} on {header['machine']}, through LLM.generate", fontsize=11)
    figure.tight_layout(rect=(0, 0.12, 1, 0.98), w_pad=1.0)
    plots.save_figure(figure, path)
