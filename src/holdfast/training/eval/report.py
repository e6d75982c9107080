"""What an exam found, as plain data: written again whenever something is added, so that a run cut off leaves what it has."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

REPORT_FILE = "eval-thinking.json"


@dataclass
class Cell:
    """One model, task and number of events.

    rounds, guessed and guessed_right are means a prompt; the shares of thoughts are of the chunks of all prompts, of
    those with something to think, and of the prompts of which all are gold. None for a plain model.
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
    cut_off: int = 0  # answers that came to no end

    @property
    def accuracy(self) -> float:
        return self.right / self.count


@dataclass
class Zeroed:
    """The same checkpoint, asked not to think."""

    model: str
    task: str
    events: int
    count: int
    right: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


@dataclass
class Swapped:
    """Parity with the last thought of each prompt replaced: by its opposite, and for comparison by itself.

    flipped: answers that became the opposite; unchanged: those that stayed when the same was forced.
    """

    model: str
    events: int
    count: int
    flipped: int
    unchanged: int
    without_thought: int  # prompts of which nothing was thought: not counted


@dataclass
class Latency:
    """Answers of one model to the same texts, one request at a time."""

    model: str
    form: str
    count: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    prompt_tokens: float
    answer_tokens: float
    looked_up: float  # of them, found in the request's own text
    rounds: float
    accuracy: float
    ratio: float | None = None  # of its time to the thinking model's
    tokens_per_event: float | None = None  # of a chain of thought
    example: str = ""


@dataclass
class Rounds:
    """Speculative prefill against reading chunk by chunk, on texts of about the same length."""

    model: str
    density: str
    count: int
    prompt_tokens: float
    chunks: float
    thoughts: float
    rounds: float
    guessed: float
    guessed_right: float
    ms: float
    rounds_by_chunk: float
    ms_by_chunk: float
    same_answers: bool
    right: int

    @property
    def speedup(self) -> float:
        return self.ms_by_chunk / self.ms


@dataclass
class Cost:
    """Time a prompt token and an answer token, in microseconds; streams requests at once."""

    model: str
    variant: str  # thinks, does not think, plain folder
    texts: str
    streams: int
    prompt_tokens: float
    thoughts: float
    prompt_us: float
    answer_us: float


@dataclass
class Report:
    machine: str
    torch: str
    settings: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    accuracy: list[Cell] = field(default_factory=list)
    zeroed: list[Zeroed] = field(default_factory=list)
    swapped: list[Swapped] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    rounds: list[Rounds] = field(default_factory=list)
    cost: list[Cost] = field(default_factory=list)

    def mean_accuracy(self, model: str, task: str) -> float | None:
        """Over the lengths that are at least the longest the model was trained on; each counts alike."""
        least = self.models[model]["max_events"]
        shares = [
            cell.accuracy
            for cell in self.accuracy
            if (cell.model, cell.task) == (model, task) and cell.events >= least
        ]
        return fmean(shares) if shares else None

    def to_json(self) -> dict[str, Any]:
        held = asdict(self)
        for name in ("accuracy", "zeroed"):
            for row, cell in zip(held[name], getattr(self, name), strict=True):
                row["accuracy"] = cell.accuracy
        for row, rounds in zip(held["rounds"], self.rounds, strict=True):
            row["speedup"] = rounds.speedup
        pairs = dict.fromkeys((cell.model, cell.task) for cell in self.accuracy)
        held["mean_accuracy"] = [
            {
                "model": model,
                "task": task,
                "from_events": self.models[model]["max_events"],
                "accuracy": self.mean_accuracy(model, task),
            }
            for model, task in pairs
        ]
        return held

    def save(self, folder: Path | None) -> None:
        """All there is, in one file, replaced at once."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{REPORT_FILE}.tmp"
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / REPORT_FILE)
