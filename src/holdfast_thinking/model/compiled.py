"""Compile the row-wise parts: the norms, rope and gates of a layer become a few kernels, and the loss
reads its logits without a copy in fp32.

Three functions are compiled once, for any number of rows. All layers of the backbone, T and C call
the first two. They are tried forward and backward before training starts. If compilation fails,
training runs without it, with a warning.
"""

import logging

import torch
import torch._dynamo.config

from holdfast_thinking.model.layer import DecoderLayer
from holdfast_thinking.model.model import Rowwise, ThinkingModel, summed_loss

_log = logging.getLogger(__name__)
_TRIED_ROWS = (192, 320)  # two different numbers, so that the graphs are compiled for any number

_VARIANTS = 32


def compile_rowwise(model: ThinkingModel, device: torch.device) -> bool:
    """Compile the model's layers; returns whether that succeeded."""
    # Frozen and trained layers, and passes without gradients, have variants of their own.
    torch._dynamo.config.recompile_limit = max(_VARIANTS, torch._dynamo.config.recompile_limit)
    plain = model.rowwise
    model.rowwise = Rowwise(
        torch.compile(DecoderLayer.before_attention, dynamic=True, fullgraph=True),
        torch.compile(DecoderLayer.after_attention, dynamic=True, fullgraph=True),
        torch.compile(summed_loss, dynamic=True, fullgraph=True),
    )
    try:
        for num_rows in _TRIED_ROWS:
            _try_rows(model, device, num_rows)
    except Exception as error:  # a compiler may raise anything
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
        y = model.rowwise.after(layer, x, q)
        ids = torch.zeros(num_rows, dtype=torch.long, device=device)
        loss = model.rowwise.loss(model.logits(y), ids) + k.float().sum() + v.float().sum()
    loss.backward()  # type: ignore[no-untyped-call]


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, no autocast elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
