"""One deterministic request inside random loads has one result, in models of every quantised format:
with C kernels in the blocks of the file, with torch dequantised."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from stress_helpers import MODES, SMALL, only_result, plain_probe

from holdfast import LLM
from holdfast.bench.stress import stress_test
from holdfast.numerics.blocks import BLOCK_FORMATS
from holdfast.numerics.recipe import KernelBackend
from support.tiny import VOCAB_SIZE, tiny_gguf

WIDE = {"hidden_size": 256, "intermediate_size": 256, "std": 0.1}  # K formats have blocks of 256
IN_GATE = ("Q4_K", "c")


def open_engine(path: Path, kernels: KernelBackend, **options: object) -> LLM:
    return LLM(str(path), kernels=kernels, kv_memory="64MiB", max_pass_tokens=64, **options)


def kept(llm: LLM) -> tuple[str | None, str]:
    """The formats that stay in blocks, and the dtype of activations, as the fingerprint says."""
    parts = cast(dict[str, Any], llm.engine.fingerprint.parts)
    return parts["recipe"].get("blocks"), parts["dtype"]


def _cases() -> list[object]:
    return [
        pytest.param(name, kernels, id=f"{name}-{kernels}", marks=() if (name, kernels) == IN_GATE else pytest.mark.long)
        for name in BLOCK_FORMATS
        for kernels in ("c", "torch")
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "kernels"), _cases())
def test_one_result_in_any_load(name: str, kernels: KernelBackend, tmp_path: Path) -> None:
    llm = open_engine(tiny_gguf(tmp_path / "model.gguf", "llama", name, **WIDE), kernels)
    assert kept(llm) == ((name, "float32") if kernels == "c" else (None, "bfloat16"))
    assert llm.engine.limits.refusal is None
    probe = plain_probe(0.0)
    probe = replace(probe, prompt=tuple(token % VOCAB_SIZE for token in probe.prompt))
    summary = stress_test(llm.engine, probe, MODES, 4, scale=SMALL)
    assert len(only_result(summary).choices[0].token_ids) == 24


def test_a_dtype_dequantises_the_blocks(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", "llama", "Q8_0")
    assert kept(open_engine(path, "c", dtype="bf16", determinism="off")) == (None, "bfloat16")
