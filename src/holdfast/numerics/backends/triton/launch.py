"""Programmatic dependent launch (PDL): a kernel of a layer is set up while the kernel before it
still runs.

On Hopper and later GPUs a kernel can start before the previous kernel has ended. It must then wait
before it reads what that kernel writes. The kernels of a layer are launched with `pdl_launch` and
begin with `pdl_begin`, or with `pdl_launch_next` and `pdl_wait`, and between the two read only what
was written before the first layer (weights, positions, page tables). Kernels that run once a pass
are launched in the usual way and start when all earlier kernels have ended.
"""

import os
from functools import cache
from typing import TypedDict

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
COMPILE_FOR = "HOLDFAST_COMPILE_FOR"  # in a process that only compiles: the compute capability, as "9.0"


class PdlLaunch(TypedDict, total=False):
    PDL: bool
    launch_pdl: bool


no_pdl: PdlLaunch = {"PDL": False}


@cache
def compute_capability(device: torch.device | None = None) -> tuple[int, int]:
    """Of the GPU that kernels are compiled for. (0, 0): there is none."""
    if chosen := os.environ.get(COMPILE_FOR):
        major, minor = map(int, chosen.split("."))
        return major, minor
    if INTERPRETED or not torch.cuda.is_available():
        return 0, 0
    return torch.cuda.get_device_capability(device)


pdl_launch: PdlLaunch = no_pdl if compute_capability() < (9, 0) else {"PDL": True, "launch_pdl": True}


@triton.jit
def pdl_launch_next(PDL: tl.constexpr):
    """Allow the next kernel to be set up."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Wait until the previous kernel has ended and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def pdl_begin(PDL: tl.constexpr):
    pdl_launch_next(PDL)
    pdl_wait(PDL)
