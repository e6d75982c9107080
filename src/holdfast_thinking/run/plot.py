"""The curves of a run as a PNG: losses on the left, accuracy by task and events on the right."""

from collections.abc import Sequence
from pathlib import Path

from holdfast_thinking.run.loop import StepMetrics

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")  # Okabe and Ito
_MIN_LOSS = 1e-5  # for the logarithmic axis


def plot_curves(metrics: Sequence[StepMetrics], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), dpi=150)
    FigureCanvasAgg(figure)
    losses, accuracies = figure.subplots(1, 2)
    steps = [each.step for each in metrics]
    for name, colour in zip(("loss", "answer", "thought"), _COLOURS, strict=False):
        losses.plot(
            steps, [max(_MIN_LOSS, getattr(each, name)) for each in metrics], color=colour, label=name, lw=1
        )
    losses.set_yscale("log")
    losses.set_title("loss")
    tested = [(each.step, each.accuracy) for each in metrics if each.accuracy]
    names = list(tested[-1][1]) if tested else []
    for index, name in enumerate(names):
        points = [(step, accuracy[name]) for step, accuracy in tested if name in accuracy]
        colour = _COLOURS[index % len(_COLOURS)]
        accuracies.plot(*zip(*points, strict=True), color=colour, marker="o", ms=3, label=f"{name} events")
    accuracies.set_ylim(-0.02, 1.02)
    accuracies.set_title("right answers, own thoughts")
    for panel in (losses, accuracies):
        panel.set_xlabel("step")
        panel.grid(alpha=0.25)
        if panel.lines:
            panel.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="png")
