"""What an exported folder says of its training: `training.json`, read by who asks the model what it learnt."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from holdfast.errors import BadWeights
from holdfast.training.settings import Settings
from holdfast.training.tasks.task import Form
from holdfast.training.tasks.variables import Thought
from holdfast.training.train_state import STATE_FILE, read_told

RECORD_FILE = "training.json"


@dataclass(frozen=True)
class Record:
    """max_events is N: the longest text trained on has so many events."""

    form: Form
    tasks: tuple[str, ...]
    max_events: int
    seed: int = 0
    steps: int = 0
    long_texts: bool = True
    variables_thought: Thought = "changed"


def write_record(folder: Path, settings: Settings) -> None:
    record = Record(**{name: getattr(settings, name) for name in Record.__dataclass_fields__})
    folder.joinpath(RECORD_FILE).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path) -> Record:
    """Of a folder without one, what a run saved there says."""
    path = folder / RECORD_FILE
    try:
        if path.is_file():
            held = json.loads(path.read_text(encoding="utf-8"))
        elif folder.joinpath(STATE_FILE).is_file():
            held = read_told(folder)["settings"]
        else:
            raise BadWeights(
                f"{folder} holds no {RECORD_FILE}, which says how it was trained; train it with holdfast train "
                'thinking, or write one: {"form": "thinking", "tasks": ["parity"], "max_events": 40}'
            )
        return _parse(held)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path} does not say how the model was trained: {error!r}") from error


def _parse(held: dict[str, Any]) -> Record:
    known = {name: held[name] for name in Record.__dataclass_fields__ if name in held}
    record = Record(**known | {"tasks": tuple(held["tasks"])})
    if record.form not in get_args(Form) or not isinstance(record.max_events, int):
        raise ValueError(f"form {record.form!r}, max_events {record.max_events!r}")
    return record
