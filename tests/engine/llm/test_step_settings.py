"""Settings of torch at every build and step of an engine: ours inside, the caller's after, or refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import ConfigError
from holdfast.numerics.backends.torch import settings_guard
from holdfast.numerics.backends.torch.settings_guard import Setting
from holdfast.worker.model_runner import ModelRunner

PARAMS = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, logprobs=2, deterministic=True)


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> LLM:
    return LLM(str(tiny_llama), kernels="torch", device="cpu", max_pass_tokens=32)


@pytest.fixture
def their_precision() -> Any:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def _during_each_pass(monkeypatch: pytest.MonkeyPatch, llm: LLM, action: Callable[[], object]) -> None:
    runner = llm.engine.runner
    assert isinstance(runner, ModelRunner)
    start = runner._start_pass

    def start_pass(*arguments: Any) -> Any:
        action()
        return start(*arguments)

    monkeypatch.setattr(runner, "_start_pass", start_pass)


def test_setting_is_ours_in_every_pass_and_the_callers_after(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, their_precision: None
) -> None:
    seen: list[str] = []
    _during_each_pass(monkeypatch, tiny, lambda: seen.append(torch.get_float32_matmul_precision()))
    assert tiny.generate(["the fox"], PARAMS)[0].error is None
    assert seen and set(seen) == {"highest"}
    assert torch.get_float32_matmul_precision() == "medium"


def test_callers_setting_is_restored_after_a_failed_pass(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, their_precision: None
) -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        _during_each_pass(patch, tiny, fail)
        assert "no memory" in str(tiny.generate(["the fox"], PARAMS)[0].error)
    assert torch.get_float32_matmul_precision() == "medium"


def test_change_by_another_thread_ends_the_request_with_its_name(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tiny.generate(["the fox"], PARAMS)[0]

    def change() -> None:
        thread = threading.Thread(target=torch.set_float32_matmul_precision, args=("medium",))
        thread.start()
        thread.join()

    try:
        with monkeypatch.context() as patch:
            _during_each_pass(patch, tiny, change)
            failed = tiny.generate(["the fox"], PARAMS)[0]
        assert "torch.set_float32_matmul_precision (medium) was changed by another thread" in str(
            failed.error
        )
        assert failed.determinism == "none"
        again = tiny.generate(["the fox"], PARAMS)[0]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (again.token_ids, again.logprobs) == (expected.token_ids, expected.logprobs)


def test_setting_that_cannot_be_set_is_refused_by_step_and_build(
    tiny: LLM, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = Setting("torch.colour", lambda: "red", None, ("blue",))
    with monkeypatch.context() as patch:
        patch.setattr(settings_guard._process, "settings", [fixed])
        failed = tiny.generate(["the fox"], PARAMS)[0]
        assert "torch.colour is red, which changes the bits of answers; it must be blue" in str(failed.error)
        with pytest.raises(ConfigError, match=r"torch\.colour is red"):
            LLM(str(tiny_llama), kernels="torch", device="cpu")
    assert tiny.generate(["the fox"], PARAMS)[0].error is None


def test_build_keeps_the_callers_settings(tiny_llama: Path, tiny: LLM, their_precision: None) -> None:
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        other = LLM(str(tiny_llama), kernels="torch", device="cpu", max_pass_tokens=32)
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert torch.get_float32_matmul_precision() == "medium"
    assert other.engine.fingerprint.differences(tiny.engine.fingerprint) == []
