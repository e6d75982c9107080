"""Settings of torch that a caller changes around or between steps reach no bit, and stay the caller's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engines import HAS_GPU, answers, open_engine, outcome, prompt
from holdfast import SamplingParams
from holdfast.engine.engine import Engine

PARAMS = SamplingParams(
    max_tokens=24, temperature=0.9, top_p=0.95, seed=11, ignore_eos=True, logprobs=2, deterministic=True
)
REQUESTS = [(prompt(9 + 40 * index, index), PARAMS) for index in range(5)]
MATMUL = torch.backends.cuda.matmul
DEVICE = "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine("smollm2-135m" if HAS_GPU else "tiny")


@pytest.fixture(scope="module")
def expected(engine: Engine) -> list[Any]:
    return [outcome(result) for result in answers(engine, REQUESTS)]


@contextmanager
def _set(write: Callable[[Any], object], theirs: Any, before: Any) -> Iterator[None]:
    write(theirs)
    try:
        yield
    finally:
        write(before)


def _matmul_flag(name: str, value: object) -> AbstractContextManager[None]:
    return _set(lambda one: setattr(MATMUL, name, one), value, getattr(MATMUL, name))


def _stream() -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream()) if HAS_GPU else nullcontext()


def _blas_library() -> AbstractContextManager[None]:
    if not HAS_GPU:
        return nullcontext()
    return _set(torch.backends.cuda.preferred_blas_library, "cublaslt", "cublas")


@contextmanager
def _other_device() -> Iterator[None]:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(1):
        yield


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast(DEVICE, torch.bfloat16),
    "matmul precision": lambda: _set(torch.set_float32_matmul_precision, "medium", "highest"),
    "bf16 sums": lambda: _matmul_flag("allow_bf16_reduced_precision_reduction", True),
    "fp16 sums": lambda: _matmul_flag("allow_fp16_reduced_precision_reduction", True),
    "fp16 accumulation": lambda: _matmul_flag("allow_fp16_accumulation", True),
    "blas library": _blas_library,
    "deterministic algorithms": lambda: _set(torch.use_deterministic_algorithms, True, False),
    "default dtype": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device(DEVICE),
    "fake tensors": FakeTensorMode,
    "another stream": _stream,
    "another device": _other_device,
    "inference mode off": lambda: torch.inference_mode(False),
    "gradients": torch.enable_grad,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_setting_around_the_steps_changes_no_bit(name: str, engine: Engine, expected: list[Any]) -> None:
    with CONTEXTS[name]():
        found = [outcome(result) for result in answers(engine, REQUESTS)]
    assert found == expected


def test_settings_before_a_build_change_neither_bits_nor_the_fingerprint(
    engine: Engine, expected: list[Any]
) -> None:
    names = ("matmul precision", "bf16 sums", "blas library", "default dtype", "autocast", "default device")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(CONTEXTS[name]())
        other = open_engine("smollm2-135m" if HAS_GPU else "tiny")
        found = [outcome(result) for result in answers(other, REQUESTS)]
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_float32_matmul_precision() == "medium"
    assert found == expected
    assert other.fingerprint.differences(engine.fingerprint) == []


def test_work_of_the_caller_between_steps_changes_no_bit(engine: Engine, expected: list[Any]) -> None:
    """A trainer computes on its own stream with TF32 while a plan is in flight."""
    x = torch.randn(512, 512, device=DEVICE, requires_grad=True)
    prepared = [engine.prepare(tokens, params) for tokens, params in REQUESTS]
    for request in prepared:
        engine.submit(request)
    results = {}
    torch.set_float32_matmul_precision("high")
    try:
        while engine.has_work:
            for update in engine.step():
                if update.result is not None:
                    results[update.request_id] = update.result
            with _stream(), torch.autocast(DEVICE, torch.bfloat16):
                (x @ x).sum().backward()
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [outcome(results[request.request_id]) for request in prepared] == expected
