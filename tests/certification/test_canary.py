"""The canary gives the same digests every time, and a changed operation changes its own digest."""

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.certification import canary
from holdfast.certification.canary import run_canary
from holdfast.models.config import parse_config
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.blocks import BLOCK_FORMATS
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings_guard import enter_default_environment

MODEL = parse_config(
    {
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "use_sliding_window": False,
        "eos_token_id": 2,
    }
)
GEMMS = ("qkv 128x64", "o 64x64", "gate_up 192x64", "down 64x96", "head 300x64")


@pytest.fixture(params=["c", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(torch.float32, kernels=request.param, num_threads=2)


def test_inputs_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(canary._values().tobytes()).hexdigest()
    assert digest == "6515484d1d74a100c06ff75bd440aa30a6ed2c5f4b351bc6fb1b5921c9474c75"


def test_every_build_finds_the_same_digests(backend: Backend) -> None:
    first = run_canary(backend, MODEL)
    assert run_canary(backend, MODEL) == first
    assert set(GEMMS) < set(first.reference)
    assert len(set(first.reference.values())) == len(first.reference)


def _flip_last_bit(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        target: Tensor = args[0] if out is None else out[0] if isinstance(out, tuple) else out
        target.flatten()[-1:].view(torch.int32).bitwise_xor_(1)
        return out

    return call


@pytest.mark.parametrize(
    ("method", "operations"),
    [
        ("rms_norm", {"rms_norm"}),
        ("silu_mul", {"silu_mul"}),
        ("rope", {"rope"}),
        ("attention", {"attention"}),
        ("logsumexp", {"logsumexp"}),
        ("sample_greedy", {"greedy"}),
        ("topk", {"topk"}),
        ("logits", {*GEMMS, "subnormal numbers"}),
    ],
)
def test_one_changed_bit_shows_in_its_operation(
    method: str, operations: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(torch.float32, kernels="c", num_threads=1)
    before = run_canary(backend, MODEL).reference
    monkeypatch.setattr(backend, method, _flip_last_bit(getattr(backend, method)))
    after = run_canary(backend, MODEL).reference
    assert {name for name in before if before[name] != after[name]} == operations


def test_fast_form_has_a_digest_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend(torch.float32, kernels="torch", num_threads=1)
    before = run_canary(backend, MODEL)
    plain = backend.logits

    def logits(x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out = plain(x, w, canonical=canonical)
        return out if canonical else _flip_last_bit(lambda: out)()

    monkeypatch.setattr(backend, "logits", logits)
    after = run_canary(backend, MODEL)
    assert after.reference == before.reference
    assert after.fast != before.fast


def test_flushed_subnormal_numbers_show() -> None:
    """The guard prevents this; a library may flush all the same."""
    backend = open_backend(torch.float32, kernels="torch", num_threads=1)
    before = run_canary(backend, MODEL).reference
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    try:
        after = run_canary(backend, MODEL).reference
    finally:
        enter_default_environment()
    assert before["subnormal numbers"] != after["subnormal numbers"]


def test_a_large_weight_is_cut_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend(torch.float32, kernels="c", num_threads=1)
    before = run_canary(backend, MODEL).reference
    monkeypatch.setattr(canary, "_MAX_C_WEIGHT", 200 * 64)
    after = run_canary(backend, MODEL).reference
    assert {name for name in before if before[name] != after[name]} == {"head 300x64"}


def block_backend() -> Backend:
    return open_backend(torch.float32, kernels="c", num_threads=2, block_formats=frozenset(BLOCK_FORMATS))


def test_block_products_have_the_recorded_digests() -> None:
    """They are the same on every CPU."""
    made = run_canary(block_backend(), MODEL)
    assert run_canary(block_backend(), MODEL) == made
    of_blocks = {name: digest for name, digest in made.reference.items() if name.startswith("blocks ")}
    assert set(of_blocks) == {f"blocks {name}{what}" for name in BLOCK_FORMATS for what in ("", ", rows")}
    lines = "\n".join(f"{name} {digest}" for name, digest in sorted(of_blocks.items()))
    assert (
        hashlib.sha256(lines.encode()).hexdigest()
        == "cda21a1a1f021f53c9a17375b5eb40471767a01c89e3d2e04995d40cc4bbfb4a"
    )


@pytest.mark.parametrize(
    ("kernel", "differing"), [("block_linear", "blocks Q4_1"), ("packed_rows", "blocks Q4_1, rows")]
)
def test_one_changed_bit_of_a_block_kernel_shows(
    kernel: str, differing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(torch.float32, kernels="c", num_threads=2, block_formats=frozenset({"Q4_1"}))
    assert isinstance(backend, CBackend)
    before = run_canary(backend, MODEL)
    run = getattr(backend._kernels.run, kernel)

    def run_wrong(*arguments: Any) -> None:
        run(*arguments)
        ctypes.c_uint32.from_address(arguments[0]).value ^= 1

    monkeypatch.setattr(backend._kernels.run, kernel, run_wrong)
    after = run_canary(backend, MODEL)
    assert {name for name in before.reference if before.reference[name] != after.reference[name]} == {
        differing
    }
    assert (before.fast != after.fast) == (kernel == "block_linear")
