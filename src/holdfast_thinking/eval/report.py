"""The results of an evaluation: rows of plain data, in a file that is rewritten after every measurement, and
as tables.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from holdfast.cli.console import table, wide_stdout

REPORT_FILE = "eval-thinking.json"
Row = dict[str, Any]
_SHARES = ("accuracy", "gold_chunks", "gold_thoughts", "gold_prompts", "mean")  # shown in percent


def task_label(task: str) -> str:
    """Name a task as tables do: "babi:data/qa2_test.txt" is "babi qa2_test"."""
    kind, _, path = task.partition(":")
    return f"{kind} {Path(path).stem}" if path else kind


@dataclass
class EvalReport:
    machine: str
    torch: str
    settings: Row
    models: dict[str, Row] = field(default_factory=dict)
    accuracy: list[Row] = field(default_factory=list)
    zeroed: list[Row] = field(default_factory=list)

    def mean_accuracy(self, measured: list[Row]) -> list[Row]:
        """Return each model's mean over lengths of at least the longest it was trained on."""
        rows = []
        for model, task in _pairs(measured):
            least = self.models[model]["max_events"]
            shares = [
                each["accuracy"]
                for each in measured
                if (each["model"], each["task"]) == (model, task)
                and (each["events"] >= least or not each["events"])
            ]
            mean = fmean(shares) if shares else None
            rows.append({"model": model, "task": task, "from_events": least, "accuracy": mean})
        return rows

    def save(self, folder: Path | None) -> None:
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{REPORT_FILE}.tmp"
        fields = asdict(self) | {"mean_accuracy": self.mean_accuracy(self.accuracy)}
        draft.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / REPORT_FILE)


def show_eval(report: EvalReport, console: Console | None = None) -> None:
    console = console or wide_stdout(150)
    console.print(f"{report.machine}, torch {report.torch}; greedy, seed {report.settings['seed']}")
    for name, fields in report.models.items():
        chunk = "" if fields["chunk"] is None else f", chunks of {fields['chunk']}"
        tasks = ", ".join(map(task_label, fields["tasks"]))
        console.print(f"{name}: {fields['form']}, N = {fields['max_events']}, {tasks}{chunk}", markup=False)
    title = (
        "right answers, % by number of events; mean over lengths of at least N, or over all texts of a file"
    )
    _show(title, _by_events(report.accuracy, report), console)
    work = [
        {key: each[key] for key in each if key not in ("wrong", "count", "right")} for each in report.accuracy
    ]
    _show("thoughts equal to the gold ones, %, and the work of a prompt", work, console)
    _show("the same checkpoint without states, % right", _by_events(report.zeroed, report), console)


def _pairs(rows: list[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((each["model"], each["task"]) for each in rows))


def _by_events(rows: list[Row], report: EvalReport) -> list[Row]:
    lengths = sorted({each["events"] for each in rows if each["events"]})
    found = []
    for pair, mean in zip(_pairs(rows), report.mean_accuracy(rows), strict=True):
        own = {each["events"]: each for each in rows if (each["model"], each["task"]) == pair}
        shares = {str(one): f"{100 * own[one]['accuracy']:.1f}" if one in own else None for one in lengths}
        texts = next(iter(own.values()))["count"]
        found.append({"model": pair[0], "task": pair[1], "texts": texts, **shares, "mean": mean["accuracy"]})
    return found


def _show(title: str, rows: list[Row], console: Console) -> None:
    if not rows:
        return
    shown = table(title, [name.replace("_", " ") for name in rows[0]])
    for row in rows:
        shown.add_row(*(_shown(name, value) for name, value in row.items()))
    console.print(shown)


def _shown(name: str, value: Any) -> str:
    if value is None or (name == "events" and not value):
        return "-"
    if name == "task":
        return task_label(value)
    if isinstance(value, float):
        return f"{100 * value:.1f}" if name in _SHARES else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return str(value)
