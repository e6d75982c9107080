"""The adversary's report as a table: a row per attack, then every remark."""

from rich.console import Console
from rich.markup import escape

from holdfast.bench.determinism.adversary.campaign import AdversaryReport
from holdfast.bench.determinism.adversary.evidence import AttackResult, Verdict
from holdfast.bench.tables import make_table, open_console

_COLOURS: dict[Verdict, str] = {"held": "green", "broken": "red", "skipped": "yellow"}
_COUNTS = ("answers", "distinct\nanswers", "finger-\nprints", "refused")


def show_campaign(report: AdversaryReport, console: Console | None = None) -> bool:
    """Print the table. True if no attack broke the promise."""
    console = console or open_console(file_width=120)
    table = make_table("Attacks on the promise", "attack", "target", *_COUNTS, "verdict", num_left=2)
    for one in report.attacks:
        counts = (one.runs, one.distinct, one.fingerprints, one.refused)
        verdict = f"[{_COLOURS[one.verdict]}]{one.verdict}[/]"
        table.add_row(escape(one.attack), escape(one.target), *map(str, counts), verdict)
    console.print(table)
    for one in report.attacks:
        if one.remark:
            console.print(_remark(one))
    total = sum(one.runs for one in report.attacks)
    if not report.is_good:
        console.print("[red]An attack broke the promise: this is a bug in Holdfast, please report it.[/]")
        return False
    console.print(f"[green]{len(report.attacks)} attacks, {total} answers: same fingerprint, same bits.[/]")
    return True


def _remark(one: AttackResult) -> str:
    return f"[{_COLOURS[one.verdict]}]{escape(f'{one.attack} ({one.target}): {one.remark}')}[/]"
