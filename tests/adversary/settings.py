"""Hostile settings: what a caller may set in its own thread or process around our work."""

import ctypes
import ctypes.util
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np
import torch

from adversary.evidence import Evidence
from adversary.questions import QUESTIONS, Questions, ask
from holdfast.engine.engine import Engine

_ROUND_UP = {"aarch64": 0x400000, "arm64": 0x400000, "x86_64": 0x800, "AMD64": 0x800}
_SMALLEST = 1e-39  # a subnormal fp32 number


@dataclass(frozen=True)
class HostileSetting:
    """A setting of the caller: how it is set, and how its value is read."""

    name: str
    use: Callable[[], AbstractContextManager[Any]]
    read: Callable[[], object]


def switched(
    name: str, read: Callable[[], Any], write: Callable[[Any], object], hostile: Any
) -> HostileSetting:
    """A setting with a getter and a setter. `hostile` is written, and later the value before it."""

    @contextmanager
    def use() -> Iterator[None]:
        before = read()
        write(hostile)
        try:
            yield
        finally:
            write(before)

    return HostileSetting(name, use, read)


def rounding_mode() -> int:
    return int(_libm().fegetround())


def flushes_denormals() -> bool:
    """Whether this thread flushes subnormal numbers to zero."""
    return float(np.float32(_SMALLEST) * np.float32(1.0)) == 0.0


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@contextmanager
def _other_num_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 3)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rounding_modes() -> list[HostileSetting]:
    """Empty on a machine whose number for rounding up is not known here."""
    upward = _ROUND_UP.get(platform.machine())
    if upward is None:
        return []
    return [switched("rounding mode", rounding_mode, lambda mode: _libm().fesetround(mode), upward)]


SETTINGS: tuple[HostileSetting, ...] = (
    switched(
        "matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    HostileSetting("number of threads", _other_num_threads, torch.get_num_threads),
    switched("flushed denormals", flushes_denormals, torch.set_flush_denormal, True),
    *_rounding_modes(),
    HostileSetting(
        "autocast",
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.is_autocast_enabled("cpu"),
    ),
    switched("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    switched("default device", torch.get_default_device, torch.set_default_device, torch.device("meta")),
    switched(
        "deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
    ),
    HostileSetting(
        "mkldnn off",
        lambda: torch.backends.mkldnn.flags(enabled=False),
        lambda: torch.backends.mkldnn.enabled,
    ),
    HostileSetting("numpy errors", lambda: np.errstate(all="raise"), np.geterr),
    HostileSetting("gradients", torch.enable_grad, torch.is_grad_enabled),
    HostileSetting("inference mode", torch.inference_mode, torch.is_inference_mode_enabled),
)


def ask_under(
    engine: Engine, setting: HostileSetting, evidence: Evidence, questions: Questions = QUESTIONS
) -> None:
    with setting.use():
        ask(engine, evidence, questions)


def in_thread(work: Callable[[], None]) -> None:
    """Run in a new thread to its end; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
