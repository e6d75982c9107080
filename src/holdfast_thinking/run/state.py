"""The state of a training run in one safetensors file: weights, optimizer moments, step, metrics.
Frozen weights are those of the backbone and are not saved.

There is no random state to save: batches are made from (seed, step), weights from the seed.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadWeights, ConfigError
from holdfast_thinking.model.model import ThinkingModel

STATE_FILE = "training.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_state(
    folder: Path, model: ThinkingModel, optimizer: torch.optim.Optimizer, info: dict[str, Any]
) -> None:
    """Written atomically: a run that is killed while saving keeps the previous state."""
    from safetensors.torch import save_file

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
    from safetensors import SafetensorError, safe_open

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
    from safetensors.torch import load_file

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
