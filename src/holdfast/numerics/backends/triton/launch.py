"""How our kernels follow one another: each may be set up while the one before it still runs.

On Hopper and later a kernel can be launched before its predecessor is done (programmatic dependent launch); it must then wait
before it touches what that one writes. A layer's kernels begin with `take_turn`, or with its two halves and between them what
was written before the layers (weights, positions, pages), and are launched with what `in_turn` says. Kernels that run
once a pass are launched as ever, and begin when all before them is done.
"""

import os
from typing import TypedDict

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Turn(TypedDict, total=False):
    TURNS: bool
    launch_pdl: bool


def _turn() -> Turn:
    if INTERPRETED or not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        return {"TURNS": False}
    return {"TURNS": True, "launch_pdl": True}


in_turn: Turn = _turn()


@triton.jit
def let_next(TURNS: tl.constexpr):
    """The kernel behind this one may be set up."""
    if TURNS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def await_last(TURNS: tl.constexpr):
    """Wait until the kernel before this one is done and what it wrote can be read."""
    if TURNS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def take_turn(TURNS: tl.constexpr):
    let_next(TURNS)
    await_last(TURNS)
