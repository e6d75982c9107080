"""A trained model as a folder the engine opens: a normal checkpoint, and T and C beside it if it thinks."""

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from holdfast.thinking.config import WEIGHTS_FILE, write_thinking
from holdfast.training.build import Built
from holdfast.training.settings import Settings
from holdfast.training.tokenizer import save_tokenizer
from holdfast.training.training_record import write_record

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export(built: Built, settings: Settings, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer; for a thinking model thinking.json and .safetensors.

    training.json tells how it was trained.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(built.fields, indent=2) + "\n"
    folder.joinpath("config.json").write_text(config, encoding="utf-8")
    write_record(folder, settings)
    tensors = named_tensors(built, _DTYPES[settings.dtype])
    blocks = {name: tensor for name, tensor in tensors.items() if name.startswith(("t.", "c."))}
    backbone = {name: tensor for name, tensor in tensors.items() if name not in blocks}
    save_file(backbone, folder / "model.safetensors", metadata={"format": "pt"})
    thinking = built.model.thinking
    if thinking is not None:
        save_file(blocks, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        write_thinking(folder, thinking)
    if settings.backbone is None:
        save_tokenizer(built.tokenizer, folder)
        return
    for name in _TOKENIZER_FILES:
        if Path(settings.backbone, name).is_file():
            shutil.copyfile(Path(settings.backbone, name), folder / name)


def named_tensors(built: Built, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every parameter by its name in the checkpoint."""
    return {
        name: parameter.detach().to("cpu", dtype).contiguous()
        for name, parameter in built.model.named_parameters()
    }
