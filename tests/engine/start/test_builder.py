"""Building an engine: the device, its limits and settings, CUDA graphs, dummy weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import SamplingParams
from holdfast.engine.config import EngineConfig, default_gpu_kv_bytes
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.engine.start import builder as build
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import ConfigError, ModelError
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.numerics.arrays import HOST
from holdfast.numerics.backends.select_backend import open_backend, uses_triton
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.settings import NumericSettings
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.worker import device
from holdfast.worker.device import choose_device, device_parts
from support.stepping import answer

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(gpus=2, triton=True)`: what the choice of a device sees."""

    def make(
        gpus: int, triton: bool, name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(device, "has_triton", lambda: triton)
        monkeypatch.setattr(device, "_why_no_gpu", lambda: None)

    return make


@pytest.mark.parametrize(
    ("gpus", "triton", "wanted", "kernels", "found"),
    [
        (1, True, "auto", "auto", "cuda:0"),
        (1, False, "auto", "auto", "cpu"),
        (0, True, "auto", "auto", "cpu"),
        (1, True, "auto", "c", "cpu"),
        (1, True, "cpu", "auto", "cpu"),
        (1, True, "cuda", "auto", "cuda:0"),
        (2, True, "cuda:1", "auto", "cuda:1"),
    ],
)
def test_auto_device_follows_the_machine(
    machine: Any, gpus: int, triton: bool, wanted: str, kernels: str, found: str
) -> None:
    machine(gpus, triton)
    assert str(choose_device(wanted, kernels)) == found


@pytest.mark.parametrize(
    ("gpus", "triton", "wanted", "message"),
    [
        (0, True, "cuda", "sees no CUDA device"),
        (1, False, "cuda", "needs triton"),
        (1, True, "cuda:1", "only 1 CUDA device"),
    ],
)
def test_missing_device_is_refused(machine: Any, gpus: int, triton: bool, wanted: str, message: str) -> None:
    machine(gpus, triton)
    with pytest.raises(ConfigError, match=message):
        choose_device(wanted)


def test_old_gpu_is_refused_and_auto_takes_the_cpu(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    machine(1, True, "Tesla T4", (7, 5))
    with pytest.raises(
        ConfigError, match=r"Tesla T4 has compute capability 7\.5.*8\.0 or newer; use device cpu"
    ):
        choose_device("cuda")
    assert choose_device("auto") is HOST
    assert "Tesla T4" in caplog.text


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "cuda:-1", "mps", "", "cuda:12345"])
def test_unknown_device_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="device must be auto, cpu, cuda or cuda:N"):
        EngineConfig(device=wanted)


def test_kernels_must_match_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for kernels in ("c", "torch"):
        with pytest.raises(ConfigError, match="are for a CPU"):
            open_backend(torch.float32, kernels=kernels, num_threads=1, device=GPU)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="interpreter"):
        open_backend(torch.float32, kernels="triton", num_threads=1)
    assert uses_triton("auto", GPU) and not uses_triton("auto", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert uses_triton("triton", CPU)
    monkeypatch.setattr("holdfast.numerics.backends.select_backend.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install triton"):
        uses_triton("triton", CPU)


def test_batch_limits_default_to_the_device() -> None:
    def limits(kind: str, **given: int) -> tuple[int, int]:
        found = EngineConfig(**given).batch_limits(kind)  # type: ignore[arg-type]
        return found.max_num_seqs, found.max_pass_tokens

    assert limits("cpu") == (64, 512)
    assert limits("cuda") == (512, 8192)
    assert EngineConfig().batch_limits("cuda", num_experts=8).max_pass_tokens == 16384
    assert EngineConfig().batch_limits("cpu", num_experts=8).max_pass_tokens == 512
    assert limits("cuda", max_num_seqs=3, max_pass_tokens=700) == (3, 700)
    assert limits("cpu", max_pass_tokens=32) == (32, 32)
    assert limits("cpu", max_num_seqs=1000) == (1000, 1000)


def test_gpu_kv_cache_leaves_a_reserve() -> None:
    gib = 1 << 30
    assert default_gpu_kv_bytes(100 * gib) == 86 * gib
    assert default_gpu_kv_bytes(6 * gib) == 3 * gib


def test_gpu_settings_leave_out_cpu_threads() -> None:
    on_cpu = NumericSettings(2, "highest", "AVX2", (("MKL_X", "1"),))
    assert on_cpu.deciding() == {
        "threads": 2,
        "matmul_precision": "highest",
        "cpu_capability": "AVX2",
        "environment": {"MKL_X": "1"},
    }
    on_gpu = NumericSettings(2, "highest", "AVX2", (), (("allow_tf32", False),))
    assert on_gpu.deciding() == {
        "matmul_precision": "highest",
        "cpu_capability": "AVX2",
        "environment": {},
        "cuda": {"allow_tf32": False},
    }


def test_device_parts_of_a_gpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        multi_processor_count = 132

    machine(1, True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda one: Properties)
    parts = device_parts(GPU)
    assert parts["kind"] == "cuda" and parts["name"] == "NVIDIA H200"
    assert (parts["capability"], parts["multiprocessors"]) == ("9.0", 132)
    assert set(parts) == {"kind", "name", "capability", "multiprocessors", "cuda", "cublas"}
    assert set(device_parts(CPU)) == {"kind", "name", "instructions"}


def test_dummy_weights_have_the_folder_s_shape(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    settings: dict[str, Any] = {
        "dtype": "fp32",
        "determinism": "off",
        "load_format": "dummy",
        "device": "cpu",
    }
    llm = LLM(str(tmp_path), **settings)
    result = llm.generate(["abc"], SamplingParams(max_tokens=3, ignore_eos=True))[0]
    assert len(result.prompt_token_ids) == 3  # a token a byte
    assert len(result.token_ids) == 3
    with_tokenizer = LLM(str(tiny_llama), **settings)
    assert (
        with_tokenizer.engine.tokenizer.digest()
        == LLM(str(tiny_llama), dtype="fp32", determinism="off", device="cpu").engine.tokenizer.digest()
    )
    with pytest.raises(ModelError, match="no shape called"):
        LLM("llama-9", **settings)
    with pytest.raises(ConfigError, match="needs a model"):
        LLM(**settings)


def test_cpu_has_no_gemm_recipes(tiny_llama: Path) -> None:
    assert build.gemm_recipes(EngineConfig(str(tiny_llama), device="cpu")) == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here")
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")  # of the interpreter
def test_interpreted_triton_engine_gives_the_torch_backend_s_tokens() -> None:
    pytest.importorskip("triton")
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300, "eos_token_id": 299}
    checkpoint = DummyCheckpoint(tiny_config(**sizes, **heads), deviation=0.25)
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    limits: dict[str, Any] = {"device": "cpu", "dtype": "fp32", "kv_memory": "4MiB", "max_num_seqs": 4}
    stages: list[str] = []

    def run(kernels: KernelBackend) -> tuple[Engine, list[tuple[int, ...]]]:
        opened = OpenedModel(EngineConfig(kernels=kernels, determinism="off", **limits), checkpoint.config)
        engine = assemble(opened, checkpoint, lambda stage, *_: stages.append(stage))
        requests = [engine.prepare(prompt, params) for prompt in ([1, 2, 3], [5] * 4)]
        return engine, [result.token_ids for result in answer(engine, requests)]

    engine, tokens = run("triton")
    assert sorted(set(stages)) == ["Choosing recipes", "Loading weights"]
    assert engine.scheduler.pool.page_size == 64
    parts: Any = engine.fingerprint.parts
    assert parts["recipe"]["path"] == "triton" and "300x32/" in parts["recipe"]["products"]
    assert parts["libraries"]["triton"] is not None
    by_torch, expected = run("torch")
    assert tokens == expected  # in fp32 no logits are close enough to tie
    assert "products" not in by_torch.fingerprint.parts["recipe"]  # type: ignore[operator]


class Recording:
    """A runner that records what is captured."""

    def __init__(self) -> None:
        self.captured: list[Any] = []

    def capture(self, sizes: Any, canonical: Any, *, max_len: int, lazily: bool) -> None:
        assert lazily
        self.captured.append((tuple(sizes), tuple(canonical), max_len))


@pytest.mark.parametrize(("mode", "canonical"), [("auto", (256, 512)), ("verify", (256, 512)), ("off", ())])
def test_captured_graph_sizes_by_mode(mode: Any, canonical: tuple[int, ...]) -> None:
    runner = Recording()
    build._plan_graphs(runner, SchedulerConfig(30, 4096, 256, determinism=mode), 1000)  # type: ignore[arg-type]
    ((sizes, decided, max_len),) = runner.captured
    assert sizes[:6] == (1, 2, 4, 8, 16, 24) and sizes[-1] == 4096
    assert (decided, max_len) == (canonical, 1000)


def test_gpu_passes_are_padded_to_sizes_with_a_graph() -> None:
    class OnGpu:
        device = GPU

    limits = EngineConfig(max_pass_tokens=1024).batch_limits("cuda")
    certified = [*range(1, 513), 576, 640, 1024]
    sizes = build._padded_sizes(certified, OnGpu(), limits)  # type: ignore[arg-type]
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-4:] == (512, 576, 640, 1024)
    assert build._padded_sizes([3, 5], OnGpu(), limits) == ()  # type: ignore[arg-type]
    OnGpu.device = CPU
    assert build._padded_sizes([3, 5], OnGpu(), limits) == (3, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kernels", "error"), [("torch", torch.OutOfMemoryError), ("c", MemoryError)])
def test_memory_that_runs_out_while_building_is_explained(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any, error: type[Exception]
) -> None:
    def load(*_: object) -> None:
        raise error("CUDA out of memory. Tried to allocate 224.00 MiB.")

    monkeypatch.setattr(build, "load_decoder", load)
    with pytest.raises(ConfigError, match=r"ran out of memory .* GiB in float32.* lower kv_memory"):
        build.build(EngineConfig(str(tiny_llama), device="cpu", kernels=kernels, dtype="float32"))
