"""The results of an evaluation as plain data. The file is rewritten after every measurement."""

import json
from dataclasses import asdict, dataclass, field
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

REPORT_FILE = "eval-thinking.json"


def task_label(task: str, events: int = 0) -> str:
    """A task as tables name it: "babi:data/qa2_test.txt" is "babi qa2_test"."""
    kind, _, path = task.partition(":")
    name = f"{kind} {Path(path).stem}" if path else kind
    return f"{name}, {events} events" if events else name


@dataclass
class AccuracyCell:
    """One model, task and number of events (0: the texts have none).

    rounds, guessed and guessed_right are means over prompts. gold_chunks is the share of all chunks
    with the gold thought, gold_thoughts of the chunks with a thought that is not trivial,
    gold_prompts of the prompts with gold thoughts only. None for a plain model.
    """

    model: str
    task: str
    events: int
    count: int
    right: int
    prompt_tokens: float
    answer_tokens: float
    rounds: float
    guessed: float
    guessed_right: float
    seconds: float
    gold_chunks: float | None = None
    gold_thoughts: float | None = None
    gold_prompts: float | None = None
    cut_off: int = 0  # answers that reached max_tokens
    wrong: list[int] = field(default_factory=list)  # which texts, to compare models text by text

    @property
    def accuracy(self) -> float:
        return self.right / self.count


def compare_pairs(first: AccuracyCell, second: AccuracyCell) -> tuple[int, int, float]:
    """Of the texts both have: how many only the first has right, how many only the second, and the
    probability of a difference at least as large if both were equally good (the exact sign test).
    """
    count = min(first.count, second.count)
    wrong, other = ({text for text in cell.wrong if text < count} for cell in (first, second))
    only_first, only_second = len(other - wrong), len(wrong - other)
    number = only_first + only_second
    tail = sum(comb(number, each) for each in range(min(only_first, only_second) + 1))
    return only_first, only_second, min(1.0, 2 * tail / 2**number)


@dataclass
class ZeroedStates:
    """The same checkpoint with thinking off."""

    model: str
    task: str
    events: int
    count: int
    right: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


@dataclass
class SwappedThoughts:
    """Parity with the last thought of each prompt forced: inverted, and for comparison unchanged.

    flipped: answers that became the opposite; unchanged: answers that stayed with the same thought.
    """

    model: str
    events: int
    count: int
    flipped: int
    unchanged: int
    without_thought: int  # prompts without a thought: not counted


@dataclass
class AnswerLatency:
    """Answers of one model to the same texts, one request at a time."""

    model: str
    form: str
    count: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    prompt_tokens: float
    answer_tokens: float
    looked_up: float  # of them, from n-grams
    rounds: float
    accuracy: float
    first_ms: float = 0.0  # from the request to the first token, median
    answer_ms: float = 0.0  # from the last token of the prompt to the end of the answer, median
    task: str = "parity"
    events: int = 40
    ratio: float | None = None  # of its time to the first model's
    answer_ratio: float | None = None  # of its answer_ms to the first model's
    tokens_per_event: float | None = None  # of a chain of thought
    example: str = ""


@dataclass
class ThoughtExample:
    """A prompt with the model's thoughts, each after the token of the prompt it follows."""

    model: str
    task: str
    prompt: str  # a thought in ‹› after the chunk it is about
    answer: str
    gold: str
    is_right: bool


@dataclass
class EvalReport:
    machine: str
    torch: str
    settings: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    accuracy: list[AccuracyCell] = field(default_factory=list)
    zeroed: list[ZeroedStates] = field(default_factory=list)
    swapped: list[SwappedThoughts] = field(default_factory=list)
    latency: list[AnswerLatency] = field(default_factory=list)
    examples: list[ThoughtExample] = field(default_factory=list)

    def mean_accuracy(self, model: str, task: str) -> float | None:
        """The mean over lengths of at least the longest the model was trained on. Texts of a file have
        no length.
        """
        least = self.models[model]["max_events"]
        shares = [
            cell.accuracy
            for cell in self.accuracy
            if (cell.model, cell.task) == (model, task) and (cell.events >= least or not cell.events)
        ]
        return fmean(shares) if shares else None

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("accuracy", "zeroed"):
            for row, cell in zip(fields[name], getattr(self, name), strict=True):
                row["accuracy"] = cell.accuracy
        pairs = dict.fromkeys((cell.model, cell.task) for cell in self.accuracy)
        fields["mean_accuracy"] = [
            {
                "model": model,
                "task": task,
                "from_events": self.models[model]["max_events"],
                "accuracy": self.mean_accuracy(model, task),
            }
            for model, task in pairs
        ]
        return fields

    def save(self, folder: Path | None) -> None:
        """Replace the file atomically."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{REPORT_FILE}.tmp"
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / REPORT_FILE)
