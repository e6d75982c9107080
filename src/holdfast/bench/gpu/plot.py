"""Plots of `bench gpu`: tok/s beside the peer's, and where a decode step's time goes.

Drawn without a screen, in Okabe and Ito's palette, which people with colour-blindness can tell apart.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.bench.gpu.report import Breakdown, Report, Speed
from holdfast.bench.gpu.speed import AUTO, OFF, ORDINARY
from holdfast.bench.peers import SOURCE, peer_of

_PEER, _INVARIANT = SOURCE, f"{SOURCE}, batch-invariant"
_COLOURS = {
    AUTO.name: "#009E73",
    ORDINARY.name: "#56B4E9",
    OFF.name: "#0072B2",
    _PEER: "#999999",
    _INVARIANT: "#D55E00",
}
_KIND_COLOURS = (
    "#0072B2",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#D55E00",
    "#F0E442",
    "#999999",
    "#000000",
)
_WIDTH, _HEIGHT, _DPI = 9.0, 4.4, 200  # inches; shown 900 pixels wide, an inch is 100


def plot_report(report: Report, folder: Path) -> list[Path]:
    """A file for each section that has a picture."""
    written = []
    for name in ("speed", "small"):
        speed = report.sections.get(name)
        if speed is not None and speed.rows:
            written.append(_plot_speed(speed, report, folder / f"bench-gpu-{name}.png"))
    breakdown = report.sections.get("breakdown")
    if breakdown is not None and breakdown.steps:
        written.append(_plot_breakdown(breakdown, report, folder / "bench-gpu-breakdown.png"))
    return written


def _plot_speed(speed: Speed, report: Report, path: Path) -> Path:
    """A panel for each number of streams, a bar a variant: tok/s of different numbers cannot share a scale."""
    figure = _figure()
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
        _bare(panel)
    _legend(figure, [(name, _COLOURS[name]) for name, _ in _bars(speed, streams[-1])], columns=3)
    lengths = f"{speed.prompt_len} in / {speed.num_tokens} out"
    figure.suptitle(
        f"{speed.model} on {report.machine}, {speed.dtype}, {lengths}: tokens a second", fontsize=11
    )
    return _save(figure, path)


def _bars(speed: Speed, streams: int) -> list[tuple[str, float]]:
    rows = [speed.row(variant.name, streams) for variant in (AUTO, ORDINARY, OFF)]
    bars = [(row.variant, row.speed) for row in rows if row is not None]
    peer = peer_of(speed.model, streams)
    return bars + ([(_PEER, peer.speed), (_INVARIANT, peer.invariant_speed)] if peer is not None else [])


def _plot_breakdown(found: Breakdown, report: Report, path: Path) -> Path:
    """One bar for each number of streams, stacked by kind, the gap on top; the floor is a line across it."""
    figure = _figure()
    panel = figure.subplots()
    kinds = list(dict.fromkeys(kind for step in found.steps for kind in step.by_kind))
    colours = {kind: _KIND_COLOURS[number % len(_KIND_COLOURS)] for number, kind in enumerate(kinds)}
    for place, step in enumerate(found.steps):
        below = 0.0
        for kind in kinds:
            height = step.by_kind.get(kind, 0.0)
            panel.barh(place, height, left=below, color=colours[kind], height=0.6)
            below += height
        panel.barh(place, max(step.gap_ms, 0.0), left=below, color="#DDDDDD", height=0.6)
        panel.plot([step.floor_ms] * 2, [place - 0.42, place + 0.42], color="#000000", linewidth=1.5)
    panel.set_yticks(range(len(found.steps)), [f"N = {step.streams}" for step in found.steps])
    panel.set_xlabel("ms; the black line is the memory floor")
    _legend(figure, [*colours.items(), ("gap", "#DDDDDD")], columns=5)
    figure.suptitle(f"A decode step of {found.model} on {report.machine}, {found.dtype}", fontsize=11)
    return _save(figure, path)


def _figure() -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def _bare(panel: Any) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _legend(figure: Any, entries: Sequence[tuple[str, str]], columns: int) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, colour in entries]
    figure.legend(handles=patches, loc="lower center", ncols=columns, frameon=False, fontsize=8.5)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout(rect=(0, 0.12, 1, 0.98), w_pad=1.0)
    figure.savefig(path)
    return path
