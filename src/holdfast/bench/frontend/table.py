"""The figures of `holdfast bench frontend` on the screen."""

from rich.console import Console

from holdfast.bench.frontend.report import FrontendReport
from holdfast.bench.tables import make_table, open_console


def show_frontend(report: FrontendReport, console: Console | None = None) -> None:
    console = console or open_console()
    how = f"{1e3 * report.step:g} ms a step" if report.step else "answers at once"
    table = make_table(
        f"{report.server}, engine: {how}; {report.machine}",
        "streams",
        "tok/s",
        "req/s",
        "first token p50 / p99, ms",
        "frontend us/tok",
        "engine us/tok",
        "client us/tok",
        "frontend's core",
    )
    for cell in report.cells:
        first, spent = cell.first_token, cell.cpu_us_per_token
        table.add_row(
            str(cell.num_streams),
            f"{cell.tokens_per_second:,.0f}",
            f"{cell.requests_per_second:,.1f}",
            f"{1e3 * first.p50:.1f} / {1e3 * first.p99:.1f}",
            *(f"{spent[name]:.1f}" if name in spent else "" for name in ("frontend", "engine", "client")),
            f"{cell.cpu_shares.get('frontend', 0.0):.0%}",
        )
    console.print(table)
    if report.tokens_per_core is not None:
        console.print(
            f"frontend: {report.request_us:,.0f} us a request, {report.token_us:.1f} us a token; one core carries "
            f"{report.tokens_per_core:,.0f} tok/s in answers of {report.cells[-1].num_tokens} tokens"
        )
    for name, share in report.profile:
        console.print(f"{share:6.1%}  {name}", markup=False, highlight=False)
    for cell in report.cells:
        for error in cell.errors:
            console.print(f"{cell.num_streams} streams: {error}", style="red", markup=False)
