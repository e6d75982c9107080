"""The settings of a training run: the same settings on the same machine give the same weights.

Those that are declared with `option` are options of `holdfast train thinking`; `--set` sets any other.
"""

# ruff: noqa: RUF009  (option() makes a dataclass field)

import math
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from importlib import resources
from typing import Any, Literal, get_type_hints

import msgspec

from holdfast.core.options import option
from holdfast.errors import ConfigError

# thinking: thoughts and a plain answer. none: the plain answer only. cot: a chain of thought says what is thought.
AnswerForm = Literal["thinking", "none", "cot"]
_LARGEST_BATCH = 1 << 16
_LARGEST_PAGE = 64  # tokens of a KV page on a GPU; 16 on a CPU
_ONE_OR_MORE = ("max_events", "chunk", "max_thought", "l_in", "steps", "batch", "accumulate", "eval_texts")
_ABOVE_ZERO = ("learning_rate", "block_rate", "clip", "minutes")

TASKS = ("parity", "variables", "any-variables", "coin-talk", "variable-talk", "outside")
_FILE_TASKS = ("jsonl", "chat")


def known_tasks() -> str:
    return ", ".join((*TASKS, *(f"{kind}:FILE" for kind in _FILE_TASKS), "FILE.py:CLASS"))


def require_tasks(names: Iterable[str]) -> None:
    for name in names:
        kind, _, rest = name.rpartition(":") if is_own_task(name) else name.partition(":")
        if name not in TASKS and not ((kind in _FILE_TASKS or is_own_task(name)) and rest):
            raise ConfigError(f"there is no task {name!r}; expected {known_tasks()}")


def is_own_task(name: str) -> bool:
    """Return whether the name is a class in a Python file."""
    return name.rpartition(":")[0].endswith(".py")


@dataclass(frozen=True)
class BackboneSize:
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int


GENERAL_FILE = "general.jsonl"  # in the folder of a run: the backbone's own answers
SIZES = {
    "tiny": BackboneSize(layers=4, hidden=64, inner=192, heads=4, kv_heads=2),
    "small": BackboneSize(layers=4, hidden=128, inner=384, heads=4, kv_heads=2),
    "coin": BackboneSize(layers=6, hidden=256, inner=704, heads=4, kv_heads=2),
    "large": BackboneSize(layers=8, hidden=512, inner=1408, heads=8, kv_heads=4),
}


@dataclass(frozen=True)
class LossWeights:
    answer: float = 1.0
    thought: float = 1.0


_TASK, _MODEL, _RUN = "What is trained", "The model", "The run"


@dataclass(frozen=True)
class TrainingSettings:
    tasks: tuple[str, ...] = option(
        ("parity",),
        f"One of {known_tasks()}, or NAME=SHARE, its share of a batch; may be repeated.",
        panel=_TASK,
        name="task",
        metavar="TASK",
    )
    shares: tuple[int, ...] = ()  # of a batch, for each task; empty: equal ones
    form: AnswerForm = option(
        "thinking",
        "A baseline: none has the answer only, cot writes the thoughts, or restates every event.",
        panel=_TASK,
        metavar="FORM",
    )
    max_events: int = 10
    size: BackboneSize = SIZES["small"]
    backbone: str | None = option(
        None,
        "A model to start from, instead of a new one: a folder, a .gguf file, a built-in name. T and C of a "
        "thinking model or an adapter are trained further.",
        panel=_MODEL,
    )
    adapter: bool = option(False, "Train T and C only; the backbone stays as it is.", panel=_MODEL)
    chat: bool = False  # texts are messages in the backbone's chat template
    follow_ups: float = 0.0  # share of the messages that follow another one and its answer
    window: int | None = option(
        64, "Attention window; 0: no limit, or the one --backbone has (its default).", panel=_MODEL
    )
    chunk: int = option(8, "Number of tokens of a chunk, C.", panel=_MODEL)
    max_thought: int = option(8, "Maximum number of tokens of a thought.", panel=_MODEL)
    l_in: int = option(1, "Number of layers after which a state is added.", panel=_MODEL)
    l_out: int | None = option(
        None, "Number of layers after which T reads. Default: all but the last.", panel=_MODEL
    )
    while_answering: bool = True
    carry: bool = option(
        False, "Add a state to all chunks up to the next thought, or to the next chunk only.", panel=_MODEL
    )
    settle: bool = option(
        False,
        "Close the last chunk of a prompt before its last token: the answer reads its thought.",
        panel=_MODEL,
    )
    long_texts: bool = True  # filler sentences between the events of half of the texts
    # Tokens read after the one that settles a thought before it is written: its chunk then has several that know it.
    thought_delay: int = 0
    # The last thought about a chat message is the answer, so that a frozen backbone only has to say it.
    thinks_answer: bool = False
    context: int = 4096
    steps: int = option(1500, "Number of steps.", panel=_RUN)
    minutes: float | None = option(
        None, "Duration of the run: as many steps as fit, with --steps at most those.", panel=_RUN
    )  # if set, the run sets steps to fit, and then this to None
    most_steps: int | None = None  # with minutes: no more steps than this
    batch: int = option(256, "Number of texts of a step.", panel=_RUN)
    accumulate: int = 1  # micro-batches of a step, by length of the texts, to need less memory
    learning_rate: float = option(1e-3, "Maximum learning rate.", panel=_RUN)
    block_rate: float = 1.0  # learning rate of T and C, as a multiple of that
    warmup: int = 100
    weight_decay: float = 0.05
    clip: float = 1.0
    weights: LossWeights = field(default_factory=LossWeights)
    seed: int = option(0, "Seed of weights and texts.", panel=_RUN)
    compile: bool | None = None  # None: on a GPU
    workers: int | None = None  # processes that make batches; None: four with a GPU, else a thread
    eval_every: int = option(250, "Number of steps between evaluations; 0: only at the end.", panel=_RUN)
    eval_texts: int = 128
    eval_events: tuple[int, ...] = ()  # empty: max_events and twice that
    save_every: int = option(
        500, "Number of steps between saved states; 0: as it is always, every five minutes.", panel=_RUN
    )
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the exported weights

    def __post_init__(self) -> None:
        for name in _ONE_OR_MORE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be a number above 0")
        _refuse(
            _LARGEST_PAGE % self.chunk != 0,
            f"chunk is {self.chunk}; it must divide a KV page to be served: 1, 2, 4, 8 or 16, on a GPU also 32 or 64",
        )
        _refuse(
            self.batch > _LARGEST_BATCH, f"batch is {self.batch}; at most {_LARGEST_BATCH} texts are possible"
        )
        _refuse(not 0 <= self.seed < 1 << 63, f"seed is {self.seed}; it must be from 0 to 2^63 - 1")
        _refuse(not self.tasks, f"no task to train; name one: {known_tasks()}")
        if self.adapter:
            _refuse(
                self.backbone is None or self.form != "thinking",
                "an adapter has the form thinking and needs a backbone, which stays as it is",
            )
            _refuse(
                self.window is not None,
                "an adapter leaves its backbone as it is and has no window of its own",
            )
        _refuse(self.chat and self.backbone is None, "chat needs a backbone with a chat template")
        _refuse(
            not 0 <= self.follow_ups <= 1, f"follow_ups is {self.follow_ups}; expected a share from 0 to 1"
        )
        _refuse(
            self.follow_ups > 0 and not self.chat,
            "follow_ups are messages of a chat; they need chat, and a backbone with a template",
        )
        _refuse(
            self.shares != () and (len(self.shares) != len(self.tasks) or min(self.shares) < 1),
            f"shares are {self.shares}; expected {len(self.tasks)} numbers of 1 or more",
        )
        _refuse(
            self.accumulate > self.batch,
            f"a batch of {self.batch} texts cannot have {self.accumulate} passes",
        )

    @property
    def eval_lengths(self) -> tuple[int, ...]:
        return self.eval_events or (self.max_events, 2 * self.max_events)


def _refuse(is_wrong: bool, said: str) -> None:
    if is_wrong:
        raise ConfigError(said)


def read_changes(texts: Iterable[str], weights: LossWeights) -> dict[str, Any]:
    """Read texts such as "max_events=4", "size=tiny", "eval_events=4,8" or "weights.thought=2"."""
    hints, changes = get_type_hints(TrainingSettings), dict[str, Any]()
    for each in texts:
        name, is_set, text = each.partition("=")
        name, _, part = name.strip().replace("-", "_").partition(".")
        if name not in hints or not is_set or bool(part) != (name == "weights"):
            raise ConfigError(f"--set {each}: expected FIELD=VALUE, with one of {', '.join(hints)}")
        if name == "size" and text not in SIZES:
            raise ConfigError(f"size is {text!r}; expected one of {', '.join(SIZES)}")
        if name == "weights" and part not in vars(weights):
            raise ConfigError(f"--set {each}: expected weights.answer or weights.thought")
        if name == "size":
            changes[name] = SIZES[text]
        elif name == "weights":
            value = convert_setting(f"{name}.{part}", text, float)
            changes[name] = replace(changes.get(name, weights), **{part: value})
        else:
            changes[name] = convert_setting(name, text, hints[name])
    return changes


def convert_setting(name: str, text: str, hint: Any) -> Any:
    """Read a value of a type from text. None is "null", items of a tuple are separated by commas."""
    is_tuple = getattr(hint, "__origin__", None) is tuple
    value = [each for each in text.split(",") if each] if is_tuple else text
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} is {text!r}: {error}") from None


def settings_from_json(fields: dict[str, Any]) -> TrainingSettings:
    """Read what `asdict` wrote. Raise `ConfigError` for the settings of another version."""
    names = {each.name for each in dataclass_fields(TrainingSettings)}
    if unknown := sorted(fields.keys() - names):
        raise ConfigError(
            f"another version of Holdfast saved this run: there is no setting {unknown[0]} any more"
        )
    if missing := sorted(names - fields.keys()):
        raise ConfigError(
            f"another version of Holdfast saved this run: it does not have the setting {missing[0]}"
        )
    settings: TrainingSettings = msgspec.convert(fields, TrainingSettings)
    return settings


def _read_presets() -> dict[str, TrainingSettings]:
    text = resources.files("holdfast_thinking").joinpath("presets.toml").read_text(encoding="utf-8")
    presets = {}
    for name, fields in tomllib.loads(text).items():
        size = {"size": asdict(SIZES[fields["size"]])} if "size" in fields else {}
        window = {"window": fields["window"] or None} if "window" in fields else {}
        presets[name] = msgspec.convert(fields | size | window, TrainingSettings)
    return presets


PRESETS = _read_presets()
