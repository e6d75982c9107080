"""Lengths around page and window edges, constant preemption, a long life with eviction; other
shapes, dtypes and file formats.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from adversary.certificates import ask_in_loads
from adversary.evidence import Evidence
from adversary.hostile_models import HOSTILE_SHAPES, Target
from adversary.schedules import attack_edges, attack_long_life, attack_preemption
from holdfast import LLM
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import assert_held, small_target

TARGETS: list[tuple[KernelBackend, str]] = [("c", "fp32"), ("c", "bf16"), ("c", "fp16"), ("torch", "fp32")]
GGUF_TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")


def test_page_and_window_edges() -> None:
    shape = HOSTILE_SHAPES["sliding window"]
    target = Target("c", "bf16", shape={**small_target("c").shape, **shape})
    assert_held(attack_edges(target, 0, shape["sliding_window"]))


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_SHAPES)
@pytest.mark.parametrize(("kernels", "dtype"), TARGETS)
def test_edges_on_every_shape(kernels: KernelBackend, dtype: str, name: str) -> None:
    shape = HOSTILE_SHAPES[name]
    assert_held(attack_edges(Target(kernels, dtype, shape=shape), 2, shape.get("sliding_window")))


def test_constant_preemption() -> None:
    assert_held(attack_preemption(small_target("c", num_hidden_layers=1), 2))


@pytest.mark.long
@pytest.mark.parametrize(("kernels", "dtype"), TARGETS)
def test_constant_preemption_long(kernels: KernelBackend, dtype: str) -> None:
    assert_held(attack_preemption(Target(kernels, dtype), 8))


@pytest.mark.parametrize("num_tokens", [150, pytest.param(20_000, marks=pytest.mark.long)])
def test_long_life_with_eviction(num_tokens: int) -> None:
    assert_held(attack_long_life(small_target("c", num_hidden_layers=1), num_tokens))


@pytest.mark.long
@pytest.mark.parametrize("quant", GGUF_TYPES)
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_gguf_types(tmp_path: Path, kernels: KernelBackend, quant: str) -> None:
    gguf = pytest.importorskip("gguf")
    assert quant in gguf.GGMLQuantizationType.__members__
    from support.tiny import tiny_gguf

    path = tiny_gguf(tmp_path / "model.gguf", "llama", quant)
    evidence = Evidence(quant, kernels)
    for dtype in ("bf16", "fp32"):
        llm = LLM(
            str(path), dtype=dtype, kernels=kernels, max_num_seqs=8, max_pass_tokens=64, kv_memory="8MiB"
        )
        ask_in_loads(llm.engine, evidence, 2)
    assert_held(evidence)
    assert evidence.result().fingerprints == 2  # one for each dtype


@pytest.mark.long
def test_limits_do_not_change_the_fingerprint_or_a_bit() -> None:
    evidence = Evidence("limits", "c fp32")
    target = small_target("c")
    weights = target.weights()
    for seqs, tokens, memory in ((2, 32, "1MiB"), (8, 64, "2MiB"), (32, 512, "8MiB")):
        limits = {"max_num_seqs": seqs, "max_pass_tokens": tokens, "kv_memory": memory}
        ask_in_loads(replace(target, limits=limits).open(weights), evidence, 2)
    assert_held(evidence)
    assert evidence.result().fingerprints == 1
