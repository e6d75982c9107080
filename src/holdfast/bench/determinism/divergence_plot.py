"""A recording as a picture: each distinct answer is a row of tokens, coloured from where it leaves
the answer given alone. The rows of the guarantee come below.

The ground is white, so that the picture reads on light and on dark pages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.bench import plots
from holdfast.bench.determinism.recording import RecordedAnswer, RecordedSide, Recording

_MAX_ROWS = 16
_SAME, _OTHER = "#C9DFEE", plots.ORANGE
_INK, _FAINT = "#222222", "#666666"
_GAP = 1.6  # rows between the two sides
_ROW_INCHES = 0.235


def plot_recording(recording: Recording, path: Path) -> None:
    """Draw the file. The path's suffix is the format."""
    ordinary, controls = recording.ordinary, recording.controls
    shown = ordinary.answers[:_MAX_ROWS]
    num_rows = len(shown) + (len(ordinary.answers) > _MAX_ROWS) + _GAP + len(controls)
    figure = plots.new_figure(height=1.75 + num_rows * _ROW_INCHES)
    panel = figure.add_axes((0.13, 0.62 / figure.get_figheight(), 0.78, 1 - 1.55 / figure.get_figheight()))
    length = max(len(one.token_ids) for one in (*shown, *(side.answers[0] for side in controls)))
    for row, answer in enumerate(shown):
        _draw_row(panel, row, answer, shown[0], ordinary)
    row = len(shown)
    if len(ordinary.answers) > _MAX_ROWS:
        rest = ordinary.answers[_MAX_ROWS:]
        runs = sum(one.runs for one in rest)
        panel.text(0, row + 0.5, f"and {len(rest)} more answers in {runs} runs", va="center", fontsize=8.5)
        row += 1
    for number, side in enumerate(controls):
        _draw_control(panel, row + _GAP + number, side)
    panel.text(0, row + _GAP - 0.35, _control_title(controls), fontsize=9.5, weight="bold", color=_INK)
    panel.set_xlim(0, length)
    panel.set_ylim(num_rows, 0)
    panel.set_axis_off()
    _write_titles(figure, recording, length)
    plots.save_figure(figure, path)


def _draw_row(
    panel: Any, row: float, answer: RecordedAnswer, first: RecordedAnswer, side: RecordedSide
) -> None:
    at = len(answer.token_ids) if answer.first_difference is None else answer.first_difference
    colours = [_SAME] * at + [_OTHER] * (len(answer.token_ids) - at)
    _draw_cells(panel, row, colours)
    parted = "alone" if answer is first else f"from token {at}"
    panel.text(-0.4, row + 0.5, parted, ha="right", va="center", fontsize=8.5, color=_INK)
    _write_count(panel, row, answer.runs, side.runs)


def _draw_control(panel: Any, row: float, side: RecordedSide) -> None:
    """Every run of a control has the same tokens. If not, each answer would be a row of its own."""
    for answer in side.answers[:1]:
        _draw_cells(panel, row, [plots.GREEN] * len(answer.token_ids))
        panel.text(-0.4, row + 0.5, f"mode {side.mode}", ha="right", va="center", fontsize=8.5, color=_INK)
        _write_count(panel, row, answer.runs, side.runs)


def _draw_cells(panel: Any, row: float, colours: Sequence[str]) -> None:
    panel.barh(
        [row + 0.5] * len(colours),
        [0.9] * len(colours),
        left=[place + 0.05 for place in range(len(colours))],
        height=0.78,
        color=list(colours),
    )


def _write_count(panel: Any, row: float, runs: int, total: int) -> None:
    panel.annotate(
        f"{runs} of {total}",
        (1.0, row + 0.5),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=_INK,
    )


def _control_title(controls: Sequence[RecordedSide]) -> str:
    distinct = max(one.distinct for one in controls)
    found = "one answer, to the last bit of every logprob" if distinct == 1 else f"{distinct} answers"
    return f"The same loads, deterministic: {found}"


def _write_titles(figure: Any, recording: Recording, length: int) -> None:
    height, ordinary = figure.get_figheight(), recording.ordinary
    settings = recording.settings
    how = (
        "temperature 0"
        if not settings["temperature"]
        else f"temperature {settings['temperature']:g}, one seed"
    )
    title = f"One prompt, {how}, {ordinary.runs} times: {len(ordinary.answers)} different answers"
    figure.text(0.13, 1 - 0.3 / height, title, fontsize=12.5, weight="bold", color=_INK)
    text = (
        f"Alone and among 1 to {_most(ordinary)} other requests; same weights, kernels and settings. "
        f"{length} tokens, left to right."
    )
    figure.text(0.13, 1 - 0.56 / height, text, fontsize=9, color=_FAINT)
    machine, model = recording.machine, recording.model
    weights = " shape, random weights" if model.weights == "random" else ""
    versions = f"torch {machine.torch}" + (f", triton {machine.triton}" if machine.triton else "")
    made = f"{machine.device}, {model.name}{weights}, {model.dtype}, {versions}, {recording.date}"
    figure.text(0.13, 0.14 / height, made, fontsize=8.5, color=_FAINT)
    entries = [("as alone", _SAME), ("other tokens", _OTHER), ("deterministic", plots.GREEN)]
    _draw_key(figure, entries, 0.36 / height)


def _draw_key(figure: Any, entries: Sequence[tuple[str, str]], bottom: float) -> None:
    for number, (label, colour) in enumerate(entries):
        left = 0.13 + 0.14 * number
        figure.text(left, bottom, "■", fontsize=10, color=colour)
        figure.text(left + 0.018, bottom, label, fontsize=8.5, color=_FAINT)


def _most(side: RecordedSide) -> int:
    return max(count for one in side.answers for count in one.neighbours)
