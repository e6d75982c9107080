"""Plots of `bench paper`: throughput by share, latencies as CDFs, rolled-back tokens by window."""

from pathlib import Path
from typing import Any

from holdfast.bench import plots
from holdfast.bench.paper.published import LLM_42, LLM_42_ROLLED_BACK, SGLANG
from holdfast.bench.paper.report import PaperReport

_COLOURS = {"auto": plots.GREEN, "verify": plots.ORANGE, "off": plots.BLUE}
_GROUP_COLOURS = (plots.GREEN, plots.SKY, plots.PURPLE, plots.BLUE)


def plot_paper(report: PaperReport, folder: Path) -> list[Path]:
    """Write a file for each part that has points."""
    draws = (
        (report.throughput, _plot_throughput, "throughput"),
        (report.latency, _plot_latency, "latency"),
        (report.rollbacks, _plot_rollbacks, "rollbacks"),
    )
    written = []
    for points, draw, name in draws:
        if points:
            figure = draw(report)
            figure.tight_layout(rect=(0, 0.02, 1, 0.97), w_pad=1.5)
            plots.save_figure(figure, folder / f"bench-paper-{name}.png")
            written.append(folder / f"bench-paper-{name}.png")
    return written


def _plot_throughput(report: PaperReport) -> Any:
    figure = plots.new_figure()
    workloads = list(dict.fromkeys(one.workload for one in report.throughput))
    for panel, workload in zip(figure.subplots(1, len(workloads), squeeze=False)[0], workloads, strict=True):
        for mode in ("auto", "verify"):
            points = [one for one in report.throughput if (one.workload, one.mode) == (workload, mode)]
            panel.plot(
                [one.share for one in points],
                [one.of_off for one in points],
                "o-",
                color=_COLOURS[mode],
                label=f"Holdfast, {mode}",
                markersize=4,
            )
        published = LLM_42.get(workload, {})
        panel.plot(list(published), list(published.values()), "s--", color=plots.GREY, label="LLM-42 (H100)")
        if workload in SGLANG:
            panel.plot([100], [SGLANG[workload]], "D", color=plots.RED, label="SGLang deterministic (H100)")
        panel.set_title(workload, fontsize=10)
        panel.set_xlabel("deterministic requests, %")
        panel.set_ylim(0, 1.15)
        plots.hide_spines(panel, "top", "right")
    panel.legend(fontsize=8, frameon=False, loc="lower left")
    figure.suptitle(f"Output throughput relative to no determinism, {report.machine}", fontsize=11)
    return figure


def _plot_latency(report: PaperReport) -> Any:
    rates = list(dict.fromkeys(one.rate for one in report.latency))
    figure = plots.new_figure(height=4.8)
    grid = figure.subplots(2, len(rates), squeeze=False)
    for column, rate in enumerate(rates):
        for one in (point for point in report.latency if point.rate == rate):
            label = one.mode if one.mode == "off" else f"{one.mode}, {one.share} %"
            for row, values in enumerate((one.first_token, one.between_tokens)):
                milliseconds = [1e3 * value for value in values]
                grid[row][column].plot(
                    milliseconds, range(101), color=_COLOURS[one.mode], label=label, linewidth=1.4
                )
        grid[0][column].set_title(f"{rate:g} requests/s", fontsize=10)
        grid[0][column].set_xlabel("to the first token, ms", fontsize=8.5)
        grid[1][column].set_xlabel("between tokens, ms", fontsize=8.5)
        for row in (0, 1):
            plots.hide_spines(grid[row][column], "top", "right")
    grid[0][0].set_ylabel("% of requests", fontsize=8.5)
    grid[1][0].set_ylabel("% of tokens", fontsize=8.5)
    grid[0][-1].legend(fontsize=7.5, frameon=False, loc="lower right")
    figure.suptitle(f"Latency of requests that arrive one by one, {report.machine}", fontsize=11)
    return figure


def _plot_rollbacks(report: PaperReport) -> Any:
    figure = plots.new_figure()
    panel = figure.subplots()
    plain = [one for one in report.rollbacks if one.plain_candidates]
    for number, group in enumerate(dict.fromkeys(one.group for one in plain)):
        points = [one for one in plain if one.group == group]
        panel.plot(
            [one.window for one in points],
            [100 * one.rolled_back_share for one in points],
            "o-",
            color=_GROUP_COLOURS[number % len(_GROUP_COLOURS)],
            label=f"Holdfast, plain candidates, group {group}",
        )
    panel.plot(
        list(LLM_42_ROLLED_BACK),
        [100 * value for value in LLM_42_ROLLED_BACK.values()],
        "s--",
        color=plots.GREY,
        label="LLM-42, group 1 (H100)",
    )
    panel.set_xscale("log", base=2)
    panel.set_xlabel("candidates in a window, at most")
    panel.set_ylabel("rolled-back tokens per output token, %")
    panel.legend(fontsize=8, frameon=False)
    plots.hide_spines(panel, "top", "right")
    figure.suptitle(f"Rolled-back tokens by window and group, {report.machine}", fontsize=11)
    return figure
