"""The figures of `bench paper` as tables, beside the published ones."""

from rich.console import Console

from holdfast.bench.paper.published import LLM_42, LLM_42_ROLLED_BACK, SGLANG, SOURCE
from holdfast.bench.paper.report import PaperReport
from holdfast.bench.tables import make_table, open_console

_NONE = "-"


def show_paper(report: PaperReport, console: Console | None = None) -> None:
    console = console or open_console(file_width=140)
    console.print(f"{report.machine}, torch {report.torch}, triton {report.triton}; published: {SOURCE}")
    if report.throughput:
        _show_throughput(report, console)
    if report.latency:
        _show_latency(report, console)
    if report.rollbacks:
        _show_rollbacks(report, console)
    for name, error in report.errors.items():
        console.print(f"{name}: {error}", markup=False, style="red")


def _show_throughput(report: PaperReport, console: Console) -> None:
    table = make_table(
        "output tok/s by share of deterministic requests",
        *(
            "workload",
            "mode",
            "share",
            "tok/s",
            "of off",
            "rolled back",
            "LLM-42",
            "SGLang, all deterministic",
        ),
        num_left=2,
    )
    for one in report.throughput:
        published = LLM_42.get(one.workload, {}).get(one.share)
        sglang = SGLANG.get(one.workload) if one.share == 100 else None
        table.add_row(
            *(one.workload, one.mode, f"{one.share} %", f"{one.speed:,.0f}", f"{one.of_off:.3f}"),
            str(one.rolled_back),
            *(_NONE if value is None else f"{value:.2f}" for value in (published, sglang)),
        )
    console.print(table)


def _show_latency(report: PaperReport, console: Console) -> None:
    table = make_table(
        "requests that arrive one by one, ms",
        *("workload", "requests/s", "mode", "share", "first token p50", "p90", "p99"),
        *("between tokens p50", "p90", "p99", "p99.9", "overloaded"),
        num_left=1,
    )
    for one in report.latency:
        times = [
            *(one.first_token[percent] for percent in (50, 90, 99)),
            *(one.between_tokens[percent] for percent in (50, 90, 99)),
            one.between_p999,
        ]
        table.add_row(
            *(one.workload, f"{one.rate:g}", one.mode, f"{one.share} %"),
            *(f"{1e3 * value:.1f}" for value in times),
            "yes" if one.is_overloaded else "no",
        )
    console.print(table)


def _show_rollbacks(report: PaperReport, console: Console) -> None:
    table = make_table(
        "rolled-back tokens per output token, all deterministic, verify",
        *("candidates by", "window", "group", "mean window", "rolled back", "tok/s", "LLM-42, group 1"),
    )
    for one in report.rollbacks:
        near = LLM_42_ROLLED_BACK.get(64 if one.window == 62 else one.window)
        table.add_row(
            "plain products" if one.plain_candidates else "the recipe",
            *(str(one.window), str(one.group), f"{one.mean_window:.1f}"),
            *(f"{100 * one.rolled_back_share:.1f} %", f"{one.speed:,.0f}"),
            _NONE if near is None or one.group != 1 else f"{100 * near:.1f} %",
        )
    console.print(table)
