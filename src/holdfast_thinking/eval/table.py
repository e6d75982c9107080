"""Tables of an evaluation."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast_thinking.eval.report import AnswerLatency, EvalReport, compare_pairs, task_label

_NONE = "-"


def show_eval(report: EvalReport, console: Console | None = None) -> None:
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 150  # for a file
    console.print(f"{report.machine}, torch {report.torch}; greedy, seed {report.settings['seed']}")
    for name, fields in report.models.items():
        chunk = "" if fields["chunk"] is None else f", chunks of {fields['chunk']}"
        tasks = ", ".join(map(task_label, fields["tasks"]))
        console.print(f"{name}: {fields['form']}, N = {fields['max_events']}, {tasks}{chunk}", markup=False)
    if report.accuracy:
        _show_accuracy(report, console)
        _show_details(report, console)
    if len(report.models) > 1 and report.accuracy:
        _show_pairs(report, console)
    if report.zeroed:
        _show_zeroed(report, console)
    if report.swapped:
        _show_swapped(report, console)
    if report.latency:
        _show_latency(report.latency, console)
    if report.examples:
        _show_examples(report, console)


def _show_accuracy(report: EvalReport, console: Console) -> None:
    lengths = sorted({cell.events for cell in report.accuracy if cell.events})
    table = _table(
        "right answers, % by number of events; mean over lengths of at least N, or over all texts of a file",
        *("model", "task", "texts"),
        *(str(one) for one in lengths),
        "mean",
    )
    for model, task in dict.fromkeys((cell.model, cell.task) for cell in report.accuracy):
        cells = {cell.events: cell for cell in report.accuracy if (cell.model, cell.task) == (model, task)}
        table.add_row(
            *(model, task_label(task), str(next(iter(cells.values())).count)),
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
                task_label(cell.task),
                str(cell.events or _NONE),
                f"{cell.prompt_tokens:.0f}",
                f"{cell.answer_tokens:.0f}",
            ),
            *(_percent(share) for share in (cell.gold_chunks, cell.gold_thoughts, cell.gold_prompts)),
            *(f"{cell.rounds:.1f}", f"{cell.guessed:.1f}", f"{cell.guessed_right:.1f}"),
            *(str(cell.cut_off), f"{cell.seconds:.1f}"),
        )
    console.print(table)


def _show_pairs(report: EvalReport, console: Console) -> None:
    """The first model beside each other one, text by text."""
    base, *others = report.models
    table = _table(
        f"{base} and the other models on the same texts; p: of so large a difference by chance",
        *("model", "task", "events", f"only {base} right", "only this one right", "p"),
    )
    cells = {(cell.model, cell.task, cell.events): cell for cell in report.accuracy}
    for name in others:
        for (model, task, events), cell in cells.items():
            if model == name and (base, task, events) in cells:
                only_base, only_this, p = compare_pairs(cells[base, task, events], cell)
                shown = (str(events or _NONE), str(only_base), str(only_this), f"{p:.3g}")
                table.add_row(name, task_label(task), *shown)
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
    task, events = found[0].task, found[0].events
    table = _table(
        f"one request at a time, the same {found[0].count} texts of {task_label(task, events)}; ms of prompt and answer",
        *("model", "form", "median", "p10", "p90", f"of {found[0].model}", "first token", "after the prompt"),
        *(f"of {found[0].model}", "% right", "prompt", "answer", "from n-grams", "rounds", "tokens an event"),
    )
    for one in found:
        table.add_row(
            *(one.model, one.form, f"{one.median_ms:.2f}", f"{one.p10_ms:.2f}", f"{one.p90_ms:.2f}"),
            *(_ratio(one.ratio), f"{one.first_ms:.2f}", f"{one.answer_ms:.2f}", _ratio(one.answer_ratio)),
            *(_percent(one.accuracy), f"{one.prompt_tokens:.0f}", f"{one.answer_tokens:.0f}"),
            *(f"{one.looked_up:.0f}", f"{one.rounds:.1f}"),
            _NONE if one.tokens_per_event is None else f"{one.tokens_per_event:.1f}",
        )
    console.print(table)
    for one in found:
        console.print(f"{one.model} answers an example with:{one.example}", markup=False)


def _show_examples(report: EvalReport, console: Console) -> None:
    for one in report.examples:
        verdict = "right" if one.is_right else f"wrong, gold: {one.gold}"
        console.print(f"{one.model}, {task_label(one.task)} ({verdict})", markup=False)
        console.print(f"  {one.prompt.strip()} {one.answer}", markup=False, soft_wrap=True)


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}"


def _ratio(ratio: float | None) -> str:
    return "1.00x" if ratio is None else f"{ratio:.2f}x"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole) if whole else _NONE


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    return table
