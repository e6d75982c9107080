"""Why the fingerprint of C kernels can leave out CPU and libraries: what numpy still computes there has one
correctly rounded result."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.bench.stress import submit
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.start.builder import build
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.arrays import HOST_ARRAYS, HostArray, host
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.recipe import KernelBackend
from support.tiny import tiny_gguf, tiny_model

# Operations that round one exact result. Functions of numpy that are no ufuncs copy.
EXACT = {"absolute", "add", "divide", "maximum", "minimum", "multiply", "negative", "subtract"}
TORCH_EXACT = {"_to_copy", "add", "mul", "sub", "copy_", "view", "index_select", "gather"}
FEATURES = SamplingParams(
    max_tokens=6,
    temperature=0.8,
    seed=1,
    top_p=0.9,
    top_k=20,
    min_p=0.01,
    presence_penalty=0.5,
    frequency_penalty=0.2,
    repetition_penalty=1.2,
    logit_bias={3: 1.5},
    logprobs=3,
    prompt_logprobs=2,
    ignore_eos=True,
)


class FloatOperations(TorchDispatchMode):
    """Collects the names of all torch operations of this thread that return floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, Tensor) and one.is_floating_point():
                self.names.add(str(func.overloadpacket).removeprefix("aten."))  # type: ignore[attr-defined]
        return result


@pytest.fixture(autouse=True)
def modes_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes outside of its caller's modes. Not here."""
    guard = "holdfast.numerics.backends.torch.settings_guard"
    monkeypatch.setattr(f"{guard}._disable_current_modes", contextlib.nullcontext)


@contextlib.contextmanager
def float_functions() -> Iterator[set[str]]:
    """Collect the names of all functions of numpy that return floating-point numbers from arrays of a backend."""
    names: set[str] = set()

    def plain(value: Any) -> Any:
        return value.view(np.ndarray) if isinstance(value, HostArray) else value

    def call(self: HostArray, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        if out:
            options["out"] = tuple(map(plain, out))
        result = getattr(function, method)(*map(plain, inputs), **options)
        if np.result_type(result).kind not in "biu":
            names.add(function.__name__ if method == "__call__" else f"{function.__name__}.{method}")
        return out[0] if out else host(result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostArray, "__array_ufunc__", call, raising=False)
        yield names


def of_answers(model: Path, kernels: KernelBackend, dtype: str) -> set[str]:
    """It steps in this thread, where the mode sees it."""
    engine = build(
        EngineConfig(str(model), kernels=kernels, dtype=dtype, max_pass_tokens=64, determinism="off")
    )
    with FloatOperations() as found, float_functions() as functions:
        submit(engine, [1, 2, 3, 4], FEATURES)
        submit(engine, [5, 6, 7], SamplingParams(max_tokens=6))
        while engine.has_work:
            engine.step()
    assert {"mul", "sub", "gather"} <= found.names or {"multiply", "subtract"} <= functions, (
        "it sees what runs"
    )
    return found.names | functions


def of_loading(model: Path, dtype: Any) -> set[str]:
    backend = open_backend(dtype, kernels="c", num_threads=1)
    with FloatOperations() as found, float_functions() as functions:
        load_decoder(open_checkpoint(model), backend, dtype, 64)
    return found.names | functions


MODELS: dict[str, Callable[[Path], Path]] = {
    "folder, bf16": lambda path: tiny_model(path, num_hidden_layers=1),
    "gguf, fp32": lambda path: tiny_gguf(path.with_suffix(".gguf"), quant="Q8_0", num_hidden_layers=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_numpy_computes_only_exact_operations_with_c_kernels(name: str, tmp_path: Path) -> None:
    model, dtype = MODELS[name](tmp_path / "model"), name[-4:]
    assert not of_answers(model, "c", dtype) - EXACT
    assert not of_loading(model, HOST_ARRAYS.bfloat16 if dtype == "bf16" else HOST_ARRAYS.float32) - EXACT


def test_torch_backend_is_not_exact(tmp_path: Path) -> None:
    assert of_answers(MODELS["folder, bf16"](tmp_path / "model"), "torch", "fp32") - EXACT - TORCH_EXACT
