"""Write a trained model as a model folder, with T and C if it thinks, and training.json. An adapter's
folder has T and C only.

training.json says how the model was trained; `holdfast eval` reads it. curves.jsonl has its losses. The state of
the run is one safetensors file: weights, but for frozen ones, optimizer moments, step, metrics. There is no
random state to save: batches are made from (seed, step), weights from the seed.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from holdfast.errors import BadWeights, ConfigError
from holdfast.models.adapter import AdapterInfo, norms_digest, read_adapter, write_adapter
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.text.tokenizer import open_tokenizer
from holdfast.thinking.config import WEIGHTS_FILE, write_thinking
from holdfast_thinking.model.build import BuiltModel
from holdfast_thinking.model.model import BLOCKS, ThinkingModel
from holdfast_thinking.model.tokenizer import save_tokenizer
from holdfast_thinking.settings import AnswerForm, TrainingSettings

if TYPE_CHECKING:
    from holdfast_thinking.run.loop import StepMetrics

INFO_FILE = "training.json"
STATE_FILE = "training.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export(built: BuiltModel, settings: TrainingSettings, folder: Path) -> None:
    """Write a model folder with training.json; of an adapter only T, C and adapter.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_training_info(folder, settings)
    tensors = {
        name: parameter.detach().to("cpu", _DTYPES[settings.dtype]).contiguous()
        for name, parameter in built.model.named_parameters()
    }
    blocks = {name: tensor for name, tensor in tensors.items() if name.startswith(BLOCKS)}
    thinking = built.model.thinking
    if thinking is not None:
        save_file(blocks, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        write_thinking(folder, thinking)
    if settings.adapter:
        assert settings.backbone is not None
        located = locate(settings.backbone)
        base = settings.backbone if located.adapter is None else read_adapter(located.adapter).base
        write_adapter(folder, AdapterInfo(_absolute(base), norms_digest(open_checkpoint(located.path))))
        return
    config = json.dumps(built.fields, indent=2) + "\n"
    folder.joinpath("config.json").write_text(config, encoding="utf-8")
    backbone = {name: tensor for name, tensor in tensors.items() if name not in blocks}
    save_file(backbone, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(built, settings, folder)


def _absolute(backbone: str) -> str:
    """Return a path that holds in other working folders; a name stays as it is."""
    path = Path(backbone).expanduser()
    return str(path.resolve()) if path.exists() else backbone


def _write_tokenizer(built: BuiltModel, settings: TrainingSettings, folder: Path) -> None:
    if settings.backbone is None:
        save_tokenizer(built.tokenizer, folder)
        return
    source = locate(settings.backbone).path
    if source.is_dir() and source.joinpath("tokenizer.json").is_file():
        for name in _TOKENIZER_FILES:
            if source.joinpath(name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    folder.joinpath("tokenizer.json").write_text(built.tokenizer.to_str(), encoding="utf-8")
    backbone = open_tokenizer(source)
    fields: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": built.tokenizer.id_to_token(built.eos_id),
        **backbone.special_tokens,
    }
    if backbone.chat_template is not None:
        fields["chat_template"] = backbone.chat_template
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TrainingInfo:
    """The contents of training.json. max_events is N: the events of the longest training text."""

    form: AnswerForm
    tasks: tuple[str, ...]
    max_events: int
    seed: int = 0
    steps: int = 0
    long_texts: bool = True
    chat: bool = False
    thought_delay: int = 0
    thinks_answer: bool = False


def write_training_info(folder: Path, settings: TrainingSettings) -> None:
    info = TrainingInfo(**{name: getattr(settings, name) for name in TrainingInfo.__dataclass_fields__})
    folder.joinpath(INFO_FILE).write_text(json.dumps(asdict(info), indent=2) + "\n", encoding="utf-8")


def read_training_info(folder: Path) -> TrainingInfo:
    """Read training.json; without one, the settings of a run saved in the folder."""
    path = folder / INFO_FILE
    try:
        if path.is_file():
            fields = json.loads(path.read_text(encoding="utf-8"))
        elif folder.joinpath(STATE_FILE).is_file():
            fields = read_run_info(folder)["settings"]
        else:
            raise BadWeights(
                f"{folder} has no {INFO_FILE}, which says how it was trained; train it with holdfast train "
                'thinking, or write one: {"form": "thinking", "tasks": ["parity"], "max_events": 40}'
            )
        info: TrainingInfo = msgspec.convert(fields, TrainingInfo)
        return info
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path} does not say how the model was trained: {error!r}") from error


def write_curves(metrics: "Sequence[StepMetrics]", path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in metrics), encoding="utf-8")


def save_state(
    folder: Path, model: ThinkingModel, optimizer: torch.optim.Optimizer, info: dict[str, Any]
) -> None:
    """Written atomically: a run that is killed while saving keeps the previous state."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        for moment in _MOMENTS if parameter in optimizer.state else ():
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{STATE_FILE}.new"
    save_file(tensors, draft, metadata={"run": json.dumps(info)})
    os.replace(draft, folder / STATE_FILE)


def read_run_info(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} has no {STATE_FILE}: there is no run to resume")
    try:
        with safe_open(path, framework="pt") as file:
            info: dict[str, Any] = json.loads((file.metadata() or {})["run"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise BadWeights(f"{path} is not a complete saved run: {error}") from error
    return info


def load_state(folder: Path, model: ThinkingModel, optimizer: torch.optim.Optimizer) -> None:
    tensors: dict[str, Tensor] = load_file(folder / STATE_FILE)
    model.load_tensors(
        {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith("weight/")}
    )
    is_fused = bool(optimizer.defaults["fused"])  # then its step counts are on the device
    for name, parameter in model.named_parameters():
        if f"exp_avg/{name}" in tensors:
            held = {moment: tensors[f"{moment}/{name}"] for moment in _MOMENTS}
            optimizer.state[parameter] = {
                moment: tensor if moment == "step" and not is_fused else tensor.to(parameter.device)
                for moment, tensor in held.items()
            }
