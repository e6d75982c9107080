"""What a layer does row by row, compiled: norms, rope and gates are a few kernels instead of many.

Two functions are compiled, once, for any number of rows; all layers of the backbone, T and C are calls of them. They are
tried forth and back before training begins: where compiling fails, training goes on as written, and says so.
"""

import logging

import torch

from holdfast.training.layer import DecoderLayer
from holdfast.training.model import Rowwise, ThinkingModel

_log = logging.getLogger(__name__)
_TRIED_ROWS = (192, 320)  # two numbers that have little in common: what is made for one is not for it alone


def compile_rowwise(model: ThinkingModel, device: torch.device) -> bool:
    """Whether the model's layers are compiled from now on."""
    plain = model.rowwise
    model.rowwise = Rowwise(
        torch.compile(DecoderLayer.before, dynamic=True, fullgraph=True),
        torch.compile(DecoderLayer.behind, dynamic=True, fullgraph=True),
    )
    try:
        for num_rows in _TRIED_ROWS:
            _try_rows(model, device, num_rows)
    except Exception as error:  # whatever a compiler may raise: it is not needed
        model.rowwise = plain
        message = (str(error).strip().splitlines() or [""])[0]
        _log.warning("training is not compiled: %s: %s", type(error).__name__, message)
        return False
    finally:
        model.zero_grad(set_to_none=True)
    return True


def _try_rows(model: ThinkingModel, device: torch.device, num_rows: int) -> None:
    layer, hidden = model.model.layer(0), model.config.hidden_size
    with autocast(device):
        x = torch.zeros(num_rows, hidden, device=device, requires_grad=True) + 0.0
        at = model.rotation(torch.arange(num_rows, device=device) % 8)
        q, k, v = model.rowwise.before(layer, x, at)
        y = model.rowwise.behind(layer, x, q)
        loss = y.float().sum() + k.float().sum() + v.float().sum()
    loss.backward()  # type: ignore[no-untyped-call]


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, nothing elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
