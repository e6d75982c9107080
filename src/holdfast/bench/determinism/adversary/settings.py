"""Hostile settings: what a caller may set in its own thread or process around our work.

A setting is tried before an engine is built, on a live engine, between two steps of one answer, and
in a thread of its own. The caller's setting must be the same after our work as before it.
"""

import ctypes
import ctypes.util
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Thread

import numpy as np
import torch

from holdfast.bench.determinism.adversary.evidence import Evidence
from holdfast.bench.determinism.adversary.models import Target, fresh_certificates, subnormal
from holdfast.bench.determinism.adversary.questions import QUESTIONS, Questions, ask, note_answer
from holdfast.bench.determinism.stress import submit
from holdfast.bench.determinism.stress_load import ProbeRequest
from holdfast.engine.engine import Engine

_ROUND_UP = {"aarch64": 0x400000, "arm64": 0x400000, "x86_64": 0x800, "AMD64": 0x800}
_SMALLEST = 1e-39  # a subnormal fp32 number


@dataclass(frozen=True)
class HostileSetting:
    """A setting of the caller: how it is set, and how its value is read."""

    name: str
    use: Callable[[], AbstractContextManager[None]]
    read: Callable[[], object]


def rounding_mode() -> int:
    return int(_libm().fegetround())


def flushes_denormals() -> bool:
    """Whether this thread flushes subnormal numbers to zero."""
    return float(np.float32(_SMALLEST) * np.float32(1.0)) == 0.0


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@contextmanager
def _round_up() -> Iterator[None]:
    before = rounding_mode()
    _libm().fesetround(_ROUND_UP[platform.machine()])
    try:
        yield
    finally:
        _libm().fesetround(before)


@contextmanager
def _flush_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 3)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _default_device() -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def _numpy_errors() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield


@contextmanager
def _autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@contextmanager
def _no_mkldnn() -> Iterator[None]:
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@contextmanager
def _grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


@contextmanager
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


SETTINGS: tuple[HostileSetting, ...] = (
    HostileSetting("matmul precision", _precision, torch.get_float32_matmul_precision),
    HostileSetting("number of threads", _threads, torch.get_num_threads),
    HostileSetting("flushed denormals", _flush_denormals, flushes_denormals),
    HostileSetting("rounding mode", _round_up, rounding_mode),
    HostileSetting("autocast", _autocast, lambda: torch.is_autocast_enabled("cpu")),
    HostileSetting("default dtype", _default_dtype, torch.get_default_dtype),
    HostileSetting("default device", _default_device, lambda: str(torch.get_default_device())),
    HostileSetting("deterministic algorithms", _deterministic, torch.are_deterministic_algorithms_enabled),
    HostileSetting("mkldnn off", _no_mkldnn, lambda: torch.backends.mkldnn.enabled),
    HostileSetting("numpy errors", _numpy_errors, lambda: str(np.geterr())),
    HostileSetting("gradients", _grad, torch.is_grad_enabled),
    HostileSetting("inference mode", _inference_mode, torch.is_inference_mode_enabled),
)


def attack_setting(target: Target, setting: HostileSetting, questions: Questions = QUESTIONS) -> Evidence:
    """One setting against one kind of engine, in every way a caller can make it."""
    evidence = Evidence(setting.name, target.name)
    with fresh_certificates():
        weights = target.weights(subnormal)
        engine = target.open(weights)
        ask(engine, evidence, questions)
        with setting.use():
            before = setting.read()
            ask(engine, evidence, questions)
            _compare(setting, before, evidence)
        for name, probe in questions.items():
            with evidence.refusing():
                _change_between_steps(engine, setting, evidence, name, probe)
        in_thread(lambda: _ask_under(engine, setting, evidence, questions))
        with setting.use(), evidence.refusing():
            other = target.open(weights)
            _compare(setting, before, evidence)
            ask(other, evidence, questions)
        ask(target.open(weights), evidence, questions)
        ask(engine, evidence, questions)
    return evidence


def _compare(setting: HostileSetting, before: object, evidence: Evidence) -> None:
    after = setting.read()
    if after != before:
        evidence.fail(f"the caller's {setting.name} was {before} and is {after}")


def _ask_under(engine: Engine, setting: HostileSetting, evidence: Evidence, questions: Questions) -> None:
    with setting.use():
        ask(engine, evidence, questions)


def _change_between_steps(
    engine: Engine, setting: HostileSetting, evidence: Evidence, name: str, probe: ProbeRequest
) -> None:
    """Every other step runs under the setting."""
    request_id = submit(engine, probe.prompt, probe.params)
    number = 0
    while engine.has_work:
        number += 1
        if number % 2:
            outputs = engine.step()
        else:
            with setting.use():
                outputs = engine.step()
        for update in outputs:
            if update.request_id == request_id and update.result is not None:
                note_answer(engine, evidence, name, update.result)


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
