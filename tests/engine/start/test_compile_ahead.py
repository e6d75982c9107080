"""Kernels are compiled ahead by a worker process, if that helps, and the worker never outlives its
caller. No GPU is needed: Triton compiles for one that is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.config import EngineConfig
from holdfast.engine.start.compile_ahead import COMPILE_FOR, compile_ahead, start_worker
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.dummy import tiny_fields
from holdfast.models.shapes import published_config
from holdfast.worker.device import compute_capability

HOPPER = (9, 0)
_LIST = """
import json, logging, sys, torch
from holdfast.models.config import parse_config
from holdfast.models.shapes import published_config
from holdfast.certification.every_kernel import call_every_kernel
from holdfast.numerics.backends.triton.compile_only import list_compilations

failures = []
logging.getLogger("holdfast").setLevel(logging.DEBUG)
handler = logging.Handler()
handler.emit = lambda record: failures.append(logging.Formatter().format(record))
logging.getLogger("holdfast").addHandler(handler)

def list_kernels(model):
    found = list_compilations(lambda: call_every_kernel(model, torch.bfloat16))
    sources = [dict(zip(one.__code__.co_freevars, one.__closure__))["src"].cell_contents for one in found]
    return sorted({one.name for one in sources})

dense = list_kernels(published_config("smollm2-135m"))
recurrent = list_kernels(parse_config(json.loads(sys.argv[1])))
slow = [name for name in ("torch._dynamo",) if name in sys.modules]
print(json.dumps({"slow": slow, "dense": dense, "recurrent": recurrent, "failures": failures}))
"""


_RECURRENT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "hidden_act": "silu",
}


@pytest.fixture
def model() -> DecoderConfig:
    return parse_config(tiny_fields())


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "holdfast"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def test_kernels_of_passes_and_canary_are_listed_without_a_gpu() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), COMPILE_FOR: "9.0"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", _LIST, json.dumps(_RECURRENT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["slow"] == [], "an operation imports torch's tracing compiler, which takes seconds"
    for name in ("_attention_short", "_attention_hopper", "_merge_splits", "_list_work", "_radix_select"):
        assert name in found["dense"]
    for name in ("_rope_store", "_add_rms_norm", "_silu_mul", "_embed", "_finish_greedy", "_chunk_topk"):
        assert name in found["dense"]
    assert {"_list_tokens", "_prepare", "_recur", "_gated_norm", "_rope_store"} <= set(found["recurrent"])


def test_worker_ends_with_its_caller(model: DecoderConfig) -> None:
    worker = start_worker(model, "bfloat16", HOPPER, num_processes=2)
    assert worker.is_running
    worker.close()
    assert not worker.is_running
    worker.close()


def test_worker_that_ran_to_its_end_is_not_started_again(
    model: DecoderConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "triton").mkdir()
    monkeypatch.setattr(sys, "executable", "/bin/true")
    first = start_worker(model, "bfloat16", HOPPER, num_processes=2)
    first.wait()
    first.close()
    assert first._process is not None
    assert start_worker(model, "bfloat16", HOPPER, num_processes=2)._process is None
    for other in (("float16", HOPPER), ("bfloat16", (8, 0))):
        worker = start_worker(model, *other, num_processes=2)
        assert worker._process is not None
        worker.close()


def test_failed_worker_is_started_again(model: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for _ in range(2):
        worker = start_worker(model, "bfloat16", HOPPER, num_processes=2)
        assert worker._process is not None
        worker.wait()
        worker.close()


def test_nothing_is_started_with_one_core(model: DecoderConfig) -> None:
    assert start_worker(model, "bfloat16", HOPPER, num_processes=0)._process is None


def test_no_process_can_be_started(model: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError("not allowed here")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    worker = start_worker(model, "bfloat16", HOPPER, num_processes=2)
    assert worker._process is None and not worker.is_running
    worker.wait()
    worker.close()


@pytest.mark.parametrize(("device", "kernels"), [("cpu", "auto"), ("auto", "c"), ("cuda:x", "auto")])
def test_no_worker_without_a_gpu(device: str, kernels: str, model: DecoderConfig) -> None:
    assert compute_capability(device, kernels) is None
    assert compile_ahead(EngineConfig(device="cpu"), model)._process is None


@pytest.mark.long
def test_worker_fills_tritons_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = published_config("smollm2-135m")
    worker = start_worker(model, "bfloat16", HOPPER, num_processes=2)
    worker.wait()
    worker.close()
    process = worker._process
    assert process is not None and process.returncode == 0
    compiled = {path.stem for path in (tmp_path / "triton").rglob("*.cubin")}
    assert {"_attention_short", "_attention_hopper", "_radix_select", "_rope_store"} <= compiled
    assert start_worker(model, "bfloat16", HOPPER, num_processes=2)._process is None
