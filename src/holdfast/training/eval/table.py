"""Tables of an evaluation."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.training.eval.latency import EVENTS, TASK
from holdfast.training.eval.report import AnswerLatency, EvalReport

_NONE = "-"


def show_eval(report: EvalReport, console: Console | None = None) -> None:
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 150  # for a file
    mode = "deterministic" if report.settings["deterministic"] else "ordinary"
    console.print(f"{report.machine}, torch {report.torch}; greedy, {mode}, seed {report.settings['seed']}")
    for name, fields in report.models.items():
        chunk = "" if fields["chunk"] is None else f", chunks of {fields['chunk']}"
        tasks = " and ".join(fields["tasks"])
        console.print(f"{name}: {fields['form']}, N = {fields['max_events']}, {tasks}{chunk}", markup=False)
    if report.accuracy:
        _show_accuracy(report, console)
        _show_details(report, console)
    if report.zeroed:
        _show_zeroed(report, console)
    if report.swapped:
        _show_swapped(report, console)
    if report.latency:
        _show_latency(report.latency, console)
    if report.rounds:
        _show_rounds(report, console)
    if report.cost:
        _show_cost(report, console)


def _show_accuracy(report: EvalReport, console: Console) -> None:
    lengths = sorted({cell.events for cell in report.accuracy})
    table = _table(
        "right answers, % by number of events; mean over lengths of at least N",
        *("model", "task", "texts"),
        *(str(one) for one in lengths),
        "mean",
    )
    for model, task in dict.fromkeys((cell.model, cell.task) for cell in report.accuracy):
        cells = {cell.events: cell for cell in report.accuracy if (cell.model, cell.task) == (model, task)}
        table.add_row(
            *(model, task, str(next(iter(cells.values())).count)),
            *(_percent(cells[one].accuracy) if one in cells else _NONE for one in lengths),
            _percent(report.mean_accuracy(model, task)),
        )
    console.print(table)


def _show_details(report: EvalReport, console: Console) -> None:
    table = _table(
        "thoughts equal to the gold ones, %, and the work of a prompt",
        *("model", "task", "events", "prompt", "answer", "chunks", "thoughts", "whole prompts"),
        *("rounds", "guessed", "right", "cut off", "s in all"),
    )
    for cell in report.accuracy:
        table.add_row(
            *(
                cell.model,
                cell.task,
                str(cell.events),
                f"{cell.prompt_tokens:.0f}",
                f"{cell.answer_tokens:.0f}",
            ),
            *(_percent(share) for share in (cell.gold_chunks, cell.gold_thoughts, cell.gold_prompts)),
            *(f"{cell.rounds:.1f}", f"{cell.guessed:.1f}", f"{cell.guessed_right:.1f}"),
            *(str(cell.cut_off), f"{cell.seconds:.1f}"),
        )
    console.print(table)


def _show_zeroed(report: EvalReport, console: Console) -> None:
    lengths = sorted({cell.events for cell in report.zeroed})
    table = _table(
        "the same checkpoint without states, % right", "model", "task", *(str(one) for one in lengths)
    )
    for model, task in dict.fromkeys((cell.model, cell.task) for cell in report.zeroed):
        cells = {cell.events: cell for cell in report.zeroed if (cell.model, cell.task) == (model, task)}
        table.add_row(
            model, task, *(_percent(cells[one].accuracy) if one in cells else _NONE for one in lengths)
        )
    console.print(table)


def _show_swapped(report: EvalReport, console: Console) -> None:
    table = _table(
        "parity with the last thought forced: inverted, and unchanged",
        *("model", "events", "texts", "answers flipped", "same if forced unchanged", "no thought"),
    )
    for one in report.swapped:
        table.add_row(
            *(one.model, str(one.events), str(one.count)),
            *(_share(one.flipped, one.count), _share(one.unchanged, one.count), str(one.without_thought)),
        )
    console.print(table)


def _show_latency(found: Sequence[AnswerLatency], console: Console) -> None:
    table = _table(
        f"one request at a time, the same {found[0].count} {TASK} texts of {EVENTS} events; ms of prompt and answer",
        *("model", "form", "median", "p10", "p90", f"of {found[0].model}", "% right"),
        *("prompt", "answer", "from n-grams", "rounds", "tokens an event"),
    )
    for one in found:
        table.add_row(
            *(one.model, one.form, f"{one.median_ms:.2f}", f"{one.p10_ms:.2f}", f"{one.p90_ms:.2f}"),
            *("1.00x" if one.ratio is None else f"{one.ratio:.2f}x", _percent(one.accuracy)),
            *(f"{one.prompt_tokens:.0f}", f"{one.answer_tokens:.0f}", f"{one.looked_up:.0f}"),
            *(f"{one.rounds:.1f}", _NONE if one.tokens_per_event is None else f"{one.tokens_per_event:.1f}"),
        )
    console.print(table)
    for one in found:
        console.print(f"{one.model} answers two events with:{one.example}", markup=False)


def _show_rounds(report: EvalReport, console: Console) -> None:
    table = _table(
        "prefill with predicted thoughts against chunk by chunk, one request at a time",
        *("model", "thoughts", "tokens", "chunks", "thoughts", "guessed", "right", "rounds", "ms"),
        *("rounds, by chunk", "ms, by chunk", "faster", "same", "% right"),
    )
    for one in report.rounds:
        table.add_row(
            *(one.model, one.density, f"{one.prompt_tokens:.0f}", f"{one.chunks:.0f}", f"{one.thoughts:.1f}"),
            *(f"{one.guessed:.1f}", f"{one.guessed_right:.1f}", f"{one.rounds:.1f}", f"{one.ms:.2f}"),
            *(f"{one.rounds_by_chunk:.1f}", f"{one.ms_by_chunk:.2f}", f"{one.speedup:.2f}x"),
            *("yes" if one.same_answers else "[red]no[/]", _share(one.right, one.count)),
        )
    console.print(table)


def _show_cost(report: EvalReport, console: Console) -> None:
    table = _table(
        "microseconds for each token, all requests together",
        *("model", "texts", "requests", "variant", "tokens", "thoughts", "prompt", "answer"),
        *("prompt, of plain", "answer, of plain"),
    )
    plain = {(one.model, one.texts, one.streams): one for one in report.cost if one.variant == "plain folder"}
    for one in report.cost:
        base = plain[one.model, one.texts, one.streams]
        table.add_row(
            *(one.model, one.texts, str(one.streams), one.variant, f"{one.prompt_tokens:.0f}"),
            *(f"{one.thoughts:.1f}", f"{one.prompt_us:.2f}", f"{one.answer_us:.2f}"),
            *(f"{one.prompt_us / base.prompt_us:.2f}x", f"{one.answer_us / base.answer_us:.2f}x"),
        )
    console.print(table)


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole) if whole else _NONE


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    return table
