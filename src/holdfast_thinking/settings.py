"""The settings of a training run: the same settings on the same machine give the same weights."""

import math
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, Literal

from holdfast.errors import ConfigError
from holdfast_thinking.data.names import known_tasks
from holdfast_thinking.data.text_examples import AnswerForm
from holdfast_thinking.model.loss import LossWeights
from holdfast_thinking.tasks.variables import ThoughtContent

_LARGEST_BATCH = 1 << 16
_LARGEST_PAGE = 64  # tokens of a KV page on a GPU; 16 on a CPU


@dataclass(frozen=True)
class BackboneSize:
    """Shape of a new backbone."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int


SIZES = {
    "tiny": BackboneSize(layers=4, hidden=64, inner=192, heads=4, kv_heads=2),
    "small": BackboneSize(layers=4, hidden=128, inner=384, heads=4, kv_heads=2),
    "coin": BackboneSize(layers=6, hidden=256, inner=704, heads=4, kv_heads=2),
    "large": BackboneSize(layers=8, hidden=512, inner=1408, heads=8, kv_heads=4),
}


@dataclass(frozen=True)
class TrainingSettings:
    """tasks: names (`data/names.py`). backbone: a model (a folder, a .gguf file, a built-in name) to
    start from, instead of a size.
    """

    tasks: tuple[str, ...] = ("parity",)
    shares: tuple[int, ...] = ()  # of a batch, for each task; empty: equal ones
    form: AnswerForm = "thinking"
    max_events: int = 10
    size: BackboneSize = SIZES["small"]
    backbone: str | None = None
    adapter: bool = False  # train T and C only, and export them without the backbone
    chat: bool = False  # texts are messages in the backbone's chat template
    follow_ups: float = 0.0  # share of the messages that follow another one and its answer
    window: int | None = 64  # of attention; None: none, or the backbone's own
    chunk: int = 8
    max_thought: int = 8
    l_in: int = 1
    l_out: int | None = None  # None: all layers but the last
    while_answering: bool = True
    carry: bool = (
        False  # a state stays up to the next thought; tasks may think all that holds, not what changed
    )
    variables_thought: ThoughtContent = "changed"
    long_texts: bool = True  # filler sentences between the events of half of the texts
    thought_delay: int = 0  # tokens after the one that settles a thought before it is written
    thinks_answer: bool = False  # the last thought about a chat message is the answer
    examples: int | None = None  # use only so many texts of each file and each task that is written as text
    context: int = 4096
    steps: int = 1500
    minutes: float | None = None  # if set, the run sets steps to fit, and then this to None
    most_steps: int | None = None  # with minutes: no more steps than this
    batch: int = 256
    accumulate: int = 1  # micro-batches of a step, by length of the texts, to need less memory
    learning_rate: float = 1e-3
    block_rate: float = 1.0  # learning rate of T and C, as a multiple of that
    warmup: int = 100
    weight_decay: float = 0.05
    clip: float = 1.0
    weights: LossWeights = field(default_factory=LossWeights)
    seed: int = 0
    compile: bool | None = None  # None: on a GPU
    workers: int | None = None  # processes that make batches; None: four with a GPU, else a thread
    eval_every: int = 250
    eval_texts: int = 128
    eval_events: tuple[int, ...] = ()  # empty: max_events and twice that
    save_every: int = 500
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the exported weights

    def __post_init__(self) -> None:
        for name in (
            "max_events",
            "chunk",
            "max_thought",
            "l_in",
            "steps",
            "batch",
            "accumulate",
            "eval_texts",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if _LARGEST_PAGE % self.chunk:
            raise ConfigError(
                f"chunk is {self.chunk}; it must divide a KV page to be served: 1, 2, 4, 8 or 16, on a GPU also 32 or 64"
            )
        for name in ("learning_rate", "block_rate", "clip", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be a number above 0")
        if self.batch > _LARGEST_BATCH:
            raise ConfigError(f"batch is {self.batch}; at most {_LARGEST_BATCH} texts are possible")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; it must be from 0 to 2^63 - 1")
        if not self.tasks:
            raise ConfigError(f"no task to train; name one: {known_tasks()}")
        if self.adapter and (self.backbone is None or self.form != "thinking"):
            raise ConfigError("an adapter has the form thinking and needs a backbone, which stays as it is")
        if self.adapter and self.window is not None:
            raise ConfigError("an adapter leaves its backbone as it is and has no window of its own")
        if self.chat and self.backbone is None:
            raise ConfigError("chat needs a backbone with a chat template")
        if not 0 <= self.follow_ups <= 1:
            raise ConfigError(f"follow_ups is {self.follow_ups}; expected a share from 0 to 1")
        if self.follow_ups and not self.chat:
            raise ConfigError(
                "follow_ups are messages of a chat; they need chat, and a backbone with a template"
            )
        if self.shares and (len(self.shares) != len(self.tasks) or min(self.shares) < 1):
            raise ConfigError(f"shares are {self.shares}; expected {len(self.tasks)} numbers of 1 or more")
        if self.accumulate > self.batch:
            raise ConfigError(f"a batch of {self.batch} texts cannot have {self.accumulate} passes")

    @property
    def eval_lengths(self) -> tuple[int, ...]:
        return self.eval_events or (self.max_events, 2 * self.max_events)


PRESETS = {
    # The built-in model: coins and variables, in fixed and in free wording, a few million parameters, a
    # sliding window for unseen lengths. What it knows is in the state it carries, not in the window.
    "coin": TrainingSettings(
        tasks=("parity", "variables", "coin-talk", "variable-talk", "outside"),
        shares=(2, 4, 8, 6, 2),
        max_events=40,
        size=SIZES["coin"],
        chunk=4,
        max_thought=12,
        carry=True,
        variables_thought="worked",
        steps=6000,
        batch=220,
        learning_rate=1e-3,
        warmup=200,
        # Most thoughts are trivial, so the mean loss of thoughts is small against that of answers.
        weights=LossWeights(thought=4.0),
        eval_every=1000,
        save_every=1000,
        dtype="bfloat16",
    ),
    # A pretrained language model: all tasks in chat form, backbone and blocks.
    "backbone": TrainingSettings(
        tasks=("coin-talk", "variable-talk"),
        backbone="smollm2",
        chat=True,
        window=None,
        max_events=12,
        chunk=8,
        max_thought=24,
        thought_delay=3,
        context=2048,
        steps=3000,
        batch=96,
        accumulate=2,
        learning_rate=4e-4,
        block_rate=2.5,
        weight_decay=0.01,
        weights=LossWeights(thought=2.0),
        eval_every=500,
        eval_texts=64,
        save_every=1000,
        dtype="bfloat16",
    ),
    # Learns parity of one to four events on a laptop in about a minute.
    "short": TrainingSettings(
        max_events=4,
        long_texts=False,
        size=SIZES["tiny"],
        steps=200,
        batch=64,
        accumulate=2,
        learning_rate=3e-3,
        warmup=30,
        eval_every=100,
        eval_texts=64,
    ),
}


def settings_to_json(settings: TrainingSettings) -> dict[str, Any]:
    return asdict(settings)


def settings_from_json(fields: dict[str, Any]) -> TrainingSettings:
    """The inverse of `settings_to_json`. Raises `ConfigError` for the settings of another version."""
    names = {each.name for each in dataclass_fields(TrainingSettings)}
    if unknown := sorted(fields.keys() - names):
        raise ConfigError(
            f"another version of Holdfast saved this run: there is no setting {unknown[0]} any more"
        )
    if missing := sorted(names - fields.keys()):
        raise ConfigError(
            f"another version of Holdfast saved this run: it does not have the setting {missing[0]}"
        )
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    plain |= {"size": BackboneSize(**fields["size"]), "weights": LossWeights(**fields["weights"])}
    return TrainingSettings(**plain)
