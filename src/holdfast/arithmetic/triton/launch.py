"""How our kernels follow one another: each may be set up while the one before it still runs.

On Hopper and later a kernel can be launched before its predecessor is done (programmatic dependent launch); it must then wait
before it touches memory. A layer's kernels begin with `take_turn` and are launched with what `in_turn` says; those that run
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
def take_turn(TURNS: tl.constexpr):
    """The next kernel may be set up; wait until the one before is done and what it wrote can be read."""
    if TURNS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
