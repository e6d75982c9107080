"""The fingerprint: every change that decides bits is a difference, and nothing else is."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from holdfast.engine.llm.llm import LLM
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.mixers import ConvSizes
from holdfast.models.rope import FactorsRope, LinearRope, YarnRope
from holdfast.numerics import rope as numerics_rope
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.numerics.versions import VERSIONS
from holdfast.receipts.engine_fingerprint import (
    FingerprintTask,
    config_parts,
    digest_rope_tables,
    digest_weights,
    engine_parts,
    library_parts,
)
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.sandbox.template_sandbox import TemplateSandbox
from holdfast.text import chat_template
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer
from holdfast.worker.device import device_parts
from support.tiny import CHAT_TEMPLATE, tiny_gguf, tiny_model


def fingerprint(model: Path, **settings: Any) -> Fingerprint:
    usual = {"dtype": "fp32", "determinism": "off", "max_pass_tokens": 64}
    llm = LLM(str(model), **{**usual, **settings})
    return llm.engine.fingerprint


def different_parts(one: Fingerprint, other: Fingerprint) -> list[str]:
    """The parts that differ; their digests differ, too."""
    names = [line.split(":")[0] for line in one.differences(other)]
    assert (one.digest != other.digest) == bool(names)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("fingerprint") / "model", num_hidden_layers=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("fingerprint") / "tiny.gguf", quant="Q8_0", num_hidden_layers=1)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Fingerprint:
    return fingerprint(folder)


@pytest.fixture(scope="module")
def plain_gguf(file: Path) -> Fingerprint:
    return fingerprint(file)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "elsewhere" / "under another name"))


def test_fingerprint_ignores_the_path(plain: Fingerprint, copied: Path) -> None:
    assert fingerprint(copied) == plain


def test_fingerprint_excludes_settings_that_decide_no_bit(plain: Fingerprint, folder: Path) -> None:
    some = {"determinism": "auto", "max_num_seqs": 3, "kv_memory": "1MiB", "speculation": "off"}
    more = {"determinism": "verify", "max_pass_tokens": 128, "prefix_cache": False, "spot_check_rate": 0.5}
    more |= {"max_model_len": 100, "dtype": "auto"}  # the checkpoint is stored in fp32
    assert fingerprint(folder, **some) == plain == fingerprint(folder, **more)


def test_sharding_does_not_change_the_weights_digest(plain: Fingerprint, tmp_path: Path) -> None:
    sharded = tiny_model(tmp_path / "sharded", sharded=True, num_hidden_layers=1)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert fingerprint(sharded) == plain


def flip_lowest_bit(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_one_bit_of_any_tensor_changes_the_digest(folder: Path, copied: Path) -> None:
    before = digest_weights(open_checkpoint(folder))
    path = copied / "model.safetensors"
    whole = path.read_bytes()
    header_len = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + header_len])
    seen = {before}
    names = [name for name in header if name != "__metadata__"]
    with safe_open(path, framework="np") as opened:
        assert set(names) == set(opened.keys())
    for name in names:
        for offset in (header[name]["data_offsets"][0], header[name]["data_offsets"][1] - 1):
            path.write_bytes(whole)
            flip_lowest_bit(path, 8 + header_len + offset)
            seen.add(digest_weights(open_checkpoint(copied)))
    assert len(seen) == 1 + 2 * len(names)


def test_one_bit_of_any_gguf_tensor_changes_the_digest(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    seen = {digest_weights(open_checkpoint(file))}
    tensors = GgufFile(file).tensors
    for tensor in tensors.values():
        changed = tmp_path / "changed.gguf"
        changed.write_bytes(whole)
        flip_lowest_bit(changed, tensor.start)
        seen.add(digest_weights(open_checkpoint(changed)))
        changed.unlink()
    assert len(seen) == 1 + len(tensors)


def test_changed_weight_is_the_only_difference(
    plain: Fingerprint, plain_gguf: Fingerprint, copied: Path, file: Path, tmp_path: Path
) -> None:
    weights = copied / "model.safetensors"
    flip_lowest_bit(weights, weights.stat().st_size - 4)
    assert different_parts(fingerprint(copied), plain) == ["weights"]
    changed = Path(shutil.copy(file, tmp_path / "other.gguf"))
    flip_lowest_bit(changed, GgufFile(file).tensors["output_norm.weight"].start)
    assert different_parts(fingerprint(changed), plain_gguf) == ["weights"]


def test_weights_digest_is_independent_of_the_file_format(folder: Path, tmp_path: Path) -> None:
    same = open_checkpoint(tiny_gguf(tmp_path / "f32.gguf", quant="F32", num_hidden_layers=1))
    assert digest_weights(same) == digest_weights(open_checkpoint(folder))
    other = open_checkpoint(tiny_gguf(tmp_path / "f16.gguf", quant="F16", num_hidden_layers=1))
    assert digest_weights(other) != digest_weights(same)


def test_changed_template_is_the_only_difference(plain: Fingerprint, copied: Path) -> None:
    path = copied / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": CHAT_TEMPLATE + " "}))
    assert different_parts(fingerprint(copied), plain) == ["chat_template", "canary.chat_template"]
    del config["chat_template"]
    path.write_text(json.dumps(config))
    line, canary_line = fingerprint(copied).differences(plain)
    assert line.startswith("chat_template: none here, ")
    assert canary_line.startswith("canary.chat_template: absent here, ")


def test_changed_tokenizer_is_the_only_difference(plain: Fingerprint, copied: Path) -> None:
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content))
    assert different_parts(fingerprint(copied), plain) == ["tokenizer"]
    path.write_text(json.dumps({**content, "version": content["version"]}, indent=3))
    assert different_parts(fingerprint(copied), plain) == ["tokenizer"]


def gguf_with(path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    from support import tiny

    metadata = {**tiny._gguf_tokenizer(), **{f"tokenizer.{key}": value for key, value in changes.items()}}
    monkeypatch.setattr(tiny, "_gguf_tokenizer", lambda: metadata)
    return tiny_gguf(path, quant="Q8_0", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"chat_template": CHAT_TEMPLATE + "x"}, ["chat_template", "canary.chat_template"]),
        ({"ggml.pre": "smollm"}, ["tokenizer", "canary.tokenizer"]),
    ],
)
def test_metadata_of_a_gguf_file_is_not_in_the_weights_digest(
    plain_gguf: Fingerprint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    parts: list[str],
) -> None:
    other = gguf_with(tmp_path / "t.gguf", monkeypatch, **changes)
    assert different_parts(fingerprint(other), plain_gguf) == parts


def test_changed_stop_id_is_the_only_difference(plain: Fingerprint, copied: Path) -> None:
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 9]}))
    assert fingerprint(copied).differences(plain) == [
        "config.eos_token_ids: [0, 9] here, [0] in the receipt",
    ]


def test_dtype_difference_is_listed(plain: Fingerprint, folder: Path) -> None:
    other = fingerprint(folder, dtype="bf16")
    assert "dtype: bfloat16 here, float32 in the receipt" in other.differences(plain)
    assert {name.split(".")[0] for name in different_parts(other, plain)} <= {"dtype", "recipe", "canary"}


def test_kernel_differences_are_listed_by_field(folder: Path) -> None:
    c, torch_ = (fingerprint(folder, kernels=path) for path in ("c", "torch"))
    names = different_parts(c, torch_)
    assert "recipe.path" in names
    assert {name.split(".")[0] for name in names} == {"recipe", "canary", "device", "settings", "libraries"}


def test_machine_is_left_out_where_the_recipe_alone_decides(folder: Path) -> None:
    c, torch_ = (fingerprint(folder, kernels=path).parts for path in ("c", "torch"))
    assert c["device"] == {"kind": "cpu"}
    assert "settings" not in c and "libraries" not in c
    assert "compiler" not in c["recipe"]  # type: ignore[operator]
    assert torch_["device"] == device_parts(torch.device("cpu"))
    capability = torch.backends.cpu.get_cpu_capability()
    assert torch_["settings"]["cpu_capability"] == capability  # type: ignore[index, call-overload]
    assert {"torch", "libc", "tokenizers"} <= {*torch_["libraries"]}  # type: ignore[misc]


def test_another_tokenizer_library_changes_the_canary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of the library is not named, its ids of a fixed text are."""
    before = fingerprint(folder)
    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, **options: encode(self, text + "!", **options)
    )
    assert different_parts(fingerprint(folder), before) == ["canary.tokenizer"]


def test_another_template_library_changes_the_canary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of the library is not named, its renderings of fixed messages are."""
    before = fingerprint(folder)
    render = TemplateSandbox.render
    monkeypatch.setattr(
        TemplateSandbox, "render", lambda self, *given, **options: render(self, *given, **options) + " "
    )
    chat_template._digest.cache_clear()
    assert different_parts(fingerprint(folder), before) == ["canary.chat_template"]
    chat_template._digest.cache_clear()


def test_rope_tables_are_a_part(folder: Path) -> None:
    config = open_checkpoint(folder).config
    digest = digest_rope_tables(config)
    assert digest == digest_rope_tables(dataclasses.replace(config, max_position_embeddings=9))
    assert digest != digest_rope_tables(dataclasses.replace(config, rope_theta=config.rope_theta + 1))


def test_another_sine_changes_the_rope_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another CPU's may: one bit of one entry, at the end of a long context."""
    config = open_checkpoint(folder).config
    before = digest_rope_tables(config)

    def rope_chunk(inv_freq: Any, scaling: float, start: int) -> tuple[Any, Any]:
        cos, sin = numerics_rope.rope_chunk(inv_freq, scaling, start)
        if start == 65536:
            sin.view(np.int32)[-1, -1] ^= 1
        return cos, sin

    monkeypatch.setattr("holdfast.receipts.engine_fingerprint.rope_chunk", rope_chunk)
    assert digest_rope_tables(config) != before


def test_own_code_is_named_by_versions(plain: Fingerprint) -> None:
    recipe = open_backend(torch.float32, num_threads=1).recipe
    assert plain.parts["code"] == {name: VERSIONS[name] for name in ("model", "sampling", "text")}
    assert plain.parts["recipe"]["version"] == VERSIONS[f"kernels/{recipe.path}"]  # type: ignore[index,call-overload]


def test_thinking_code_is_a_part_of_thinking_models_only(folder: Path) -> None:
    config, backend = open_checkpoint(folder).config, open_backend(torch.float32, num_threads=1)
    given = (config, [0], byte_tokenizer(), backend, apply_numeric_settings(), {"kind": "cpu"}, {})
    plain, thinking = engine_parts(*given)["code"], engine_parts(*given, extra={"thinking": {}})["code"]
    assert thinking == {**plain, "thinking": VERSIONS["thinking"]}  # type: ignore[dict-item]
    assert "thinking" not in plain  # type: ignore[operator]


PROGRAM = """
import json, sys
from holdfast.engine.llm.llm import LLM
llm = LLM(sys.argv[1], dtype="fp32", determinism="off", num_threads=int(sys.argv[2]), kernels=sys.argv[3])
print(json.dumps(llm.engine.receipts.fingerprint.parts))
"""


def start_process(folder: Path, threads: int, kernels: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(threads), kernels],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def fingerprint_from(process: "subprocess.Popen[str]") -> Fingerprint:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return Fingerprint.of(json.loads(output))


def test_other_processes_agree_and_settings_differences_are_listed(plain: Fingerprint, folder: Path) -> None:
    """With C kernels neither threads nor variables are a part."""
    by_torch = fingerprint(folder, kernels="torch")
    threads = by_torch.parts["settings"]["threads"]  # type: ignore[index, call-overload]
    assert isinstance(threads, int)
    started = [  # both at once: starting takes most of the time
        start_process(folder, threads + 1, kernels, ONEDNN_DEFAULT_FPMATH_MODE="BF16")
        for kernels in ("c", "torch")
    ]
    changed, other = map(fingerprint_from, started)
    assert changed.digest == plain.digest
    assert sorted(other.differences(by_torch)) == [
        "settings.environment.ONEDNN_DEFAULT_FPMATH_MODE: BF16 here, absent in the receipt",
        f"settings.threads: {threads + 1} here, {threads} in the receipt",
    ]
    assert any(one.endswith("absent here, BF16 in the receipt") for one in by_torch.differences(other))


CHANGES: dict[str, Any] = {
    "vocab_size": 1, "hidden_size": 1, "intermediate_size": 1, "num_layers": 9, "num_heads": 9, "num_kv_heads": 9,
    "head_dim": 2, "rms_norm_eps": 1e-3, "rope_theta": 7.0, "rope_scaling": LinearRope(2.0), "qkv_bias": True,
    "o_bias": True, "mlp_bias": True, "qk_norm": True, "tie_word_embeddings": True, "layer_windows": (8,),
    "activation": "gelu_tanh", "block": "sandwich", "norm": "rms_fp32", "norm_offset": 1.0, "whole_qk_norm": True,
    "fused_projections": True, "rotary_dim": 4, "interleaved_rope": True, "local_rope_theta": 7.0,
    "layer_ropes": ("none",), "attention_scale": 0.5, "attention_soft_cap": 50.0, "logits_soft_cap": 30.0,
    "embedding_scale": 2.0, "residual_scale": 0.5, "logits_scale": 0.5, "num_experts": 4, "experts_per_token": 2,
    "expert_size": 8, "shared_expert_size": 8, "normalizes_experts": True, "dense_layers": (0,),
    "router_bias": True, "interleaved_experts": True, "attention_sinks": True, "clip_qkv": 8.0,
    "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "expert_bias": True, "sigmoid_router": True, "routed_scale": 2.0,
    "shared_expert_gate": False, "gated_attention": True, "layer_kinds": ("recurrent",),
    "mixer": ConvSizes(3, 8, bias=False), "weight_scales": (("mlp.down_proj.weight", ((8, 0.5),)),),
    "recurrent_block": "post", "router_eps": 1e-20, "bare_layers": (0,), "splits_layers": True,
}  # fmt: skip
IDLE: dict[str, Any] = {
    "family": "mistral", "max_position_embeddings": 9, "bos_token_id": 5, "torch_dtype": "float16",
    "eos_token_ids": (1, 2, 3),  # listed together with the tokenizer's
}  # fmt: skip


def test_every_config_field_is_included_or_excluded(folder: Path) -> None:
    assert {one.name for one in dataclasses.fields(DecoderConfig)} == {*CHANGES, *IDLE}
    config = open_checkpoint(folder).config
    before = Fingerprint.of(config_parts(config, [0]))
    for name, value in CHANGES.items():
        changed = Fingerprint.of(config_parts(dataclasses.replace(config, **{name: value}), [0]))
        assert different_parts(changed, before) == [name]
    for name, value in IDLE.items():
        assert Fingerprint.of(config_parts(dataclasses.replace(config, **{name: value}), [0])) == before
    assert different_parts(Fingerprint.of(config_parts(config, [0, 2])), before) == ["eos_token_ids"]


def test_rope_scaling_differences_are_listed_by_field(folder: Path) -> None:
    def parts(scaling: Any) -> Fingerprint:
        return Fingerprint.of(config_parts(dataclasses.replace(config, rope_scaling=scaling), [0]))

    config = open_checkpoint(folder).config
    assert different_parts(parts(YarnRope(2.0, 128)), parts(YarnRope(2.0, 256))) == [
        "rope_scaling.original_max_position_embeddings"
    ]
    assert different_parts(parts(FactorsRope((1.0, 2.0))), parts(FactorsRope((1.0, 2.5)))) == [
        "rope_scaling.factors"
    ]
    assert "rope_scaling.kind" in different_parts(parts(LinearRope(2.0)), parts(YarnRope(2.0, 9)))


def test_every_recipe_field_is_included(plain: Fingerprint) -> None:
    recipe = open_backend(torch.float32, num_threads=1).recipe
    assert {*plain.parts["recipe"], "dtype"} == set(recipe.as_dict())  # type: ignore[misc]


def test_library_versions_depend_on_the_backend() -> None:
    backend = open_backend(torch.float32, num_threads=1, kernels="torch")
    of_all = {"torch", "torch_build", "libc", "tokenizers", "jinja2", "llguidance"}
    assert set(library_parts(backend.can.libraries)) == of_all
    assert set(library_parts(("triton",))) == {*of_all, "triton"}


def test_integral_floats_equal_integers() -> None:
    def digest(value: Any) -> str:
        return Fingerprint.of({"a": value}).digest

    assert digest({"b": 1.0, "c": [2.0]}) == digest({"c": [2], "b": 1})
    assert len({digest(1.5), digest(1), digest(True), digest("1")}) == 4
    assert digest(1e300) == digest(json.loads("1e300"))


@pytest.mark.parametrize(
    ("mine", "theirs", "lines"),
    [
        ({}, {"a": {}}, ["a: absent here, {} in the receipt"]),
        ({"a": None}, {}, ["a: none here, absent in the receipt"]),
        ({"a": 1}, {"a": "1"}, ["a: 1 here, 1 in the receipt"]),
        ({"a": {"b": 1}}, {"a": 3}, ["a: {'b': 1} here, 3 in the receipt"]),
        ({"a": "x\n\x1b[31m"}, {"a": ""}, ["a: 'x\\n\\x1b[31m' here, '' in the receipt"]),
        ({"a": "f" * 64}, {"a": "e" * 64}, ["a: ffffffffffff... here, eeeeeeeeeeee... in the receipt"]),
        ({"a": [1, 2]}, {"a": [1, 2.0]}, []),
        ({"\n\x1b[2J": {"b": 1}}, {"\n\x1b[2J": {"b": 2}}, ["'\\n\\x1b[2J'.b: 1 here, 2 in the receipt"]),
    ],
)
def test_differences_of_unusual_values(mine: Any, theirs: Any, lines: list[str]) -> None:
    assert Fingerprint.of(mine).differences(Fingerprint.of(theirs)) == lines


class Slow:
    """A checkpoint whose bytes can be read once `let` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.let = threading.Event()
        self.threads: set[str] = set()

    def names(self) -> tuple[str, ...]:
        return tuple(self._inner.names())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._inner.shape(name))

    def raw(self, name: str) -> Any:
        self.threads.add(threading.current_thread().name)
        assert self.let.wait(60)
        if name == "broken":
            raise OSError("the disk is gone")
        return self._inner.raw(name)

    def release(self) -> None:
        self._inner.release()


def test_hashing_runs_in_the_background(folder: Path) -> None:
    slow = Slow(open_checkpoint(folder))
    task = FingerprintTask(slow, lambda: {"more": 1})  # type: ignore[arg-type]
    assert slow.threads <= {"holdfast-fingerprint"}
    threading.Timer(0.2, slow.let.set).start()
    made = task.get()
    assert made is task.get()
    assert made.parts == {"weights": digest_weights(open_checkpoint(folder)), "more": 1}


def test_hashing_error_is_raised_by_get(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(open_checkpoint(folder))
    slow.let.set()
    monkeypatch.setattr(slow, "names", lambda: ("model.norm.weight", "broken"))
    monkeypatch.setattr(slow, "shape", lambda name: (1,))
    task = FingerprintTask(slow, dict)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            task.get()


def test_digest_covers_names_formats_and_shapes(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)

    class Changed(Slow):
        def __init__(self, swap: bool = False, flat: bool = False, kind: str | None = None) -> None:
            super().__init__(checkpoint)
            self.swap, self.flat, self.kind = swap, flat, kind

        def shape(self, name: str) -> tuple[int, ...]:
            shape = super().shape(name)
            return (int(np.prod(shape)),) if self.flat else shape

        def raw(self, name: str) -> Any:
            other = {"self_attn.k_proj": "self_attn.v_proj", "self_attn.v_proj": "self_attn.k_proj"}
            for one, two in other.items():
                if self.swap and one in name:
                    return checkpoint.raw(name.replace(one, two))
            raw = checkpoint.raw(name)
            return raw if self.kind is None else dataclasses.replace(raw, format=self.kind)

    digests = [
        digest_weights(one) for one in (checkpoint, Changed(swap=True), Changed(flat=True), Changed(kind="X"))
    ]  # type: ignore[arg-type]
    assert len(set(digests)) == 4
    assert digest_weights(Changed()) == digests[0]  # type: ignore[arg-type]


_ENDS_EARLY = """
import types, torch
from holdfast.receipts.engine_fingerprint import FingerprintTask
def describe():
    for _ in range(3000):
        torch.ones(64).sum().item()
    print("described")
    return {}
FingerprintTask(types.SimpleNamespace(names=lambda: ()), describe)
"""


def test_process_may_end_before_its_fingerprint() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS_EARLY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "described\n"), done.stderr
