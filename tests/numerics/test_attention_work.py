"""The work list of short attention tiles, and the kernel for Hopper GPUs as far as it can be tested
without one."""

import os
import subprocess
import sys

import pytest
import torch

from holdfast.numerics.backends.triton.attention.work import list_work
from holdfast.numerics.forward_batch import AttentionWork

SPLIT = 256

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels without a GPU need Triton's interpreter"
)


def work_of(contexts: list[int], kv_heads: int = 8, padding: int = 0) -> AttentionWork:
    """One decode token for each context."""
    tiles = [[row, 1, 0, 0, 0, 0] for row in range(len(contexts))] + [[0] * 6] * padding
    positions = torch.tensor([length - 1 for length in contexts])
    found = list_work(
        torch.tensor(tiles, dtype=torch.int32), positions, kv_heads=kv_heads, split_len=SPLIT, max_len=1 << 17
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    "contexts",
    [[1], [640], [131072], [100000, *[640] * 31], [640] * 256, [30000] * 4, [131072] * 20, [1, 257, 5000]],
    ids=["one", "short", "long", "long among short", "many short", "few long", "many long", "mixed"],
)
@pytest.mark.parametrize("kv_heads", [1, 8, 40])
def test_every_split_has_one_program_and_one_slot(contexts: list[int], kv_heads: int) -> None:
    work = work_of(contexts, kv_heads, padding=3)
    entries = [entry for entry in work.programs.tolist() if entry[0] >= 0]
    counts: dict[int, int] = {}
    for tile, program, programs, _ in entries:
        assert program == counts.get(tile, 0) < programs
        counts[tile] = program + 1
    assert [counts[tile] for tile in range(len(contexts))] == [
        next(programs for tile, _, programs, _ in entries if tile == at) for at in range(len(contexts))
    ]
    shared = [entry for entry in work.shared.tolist() if entry[0] >= 0]
    assert {tile for tile, _, _ in shared} == {tile for tile, count in counts.items() if count > 1}
    slots: set[int] = set()
    for tile, first, splits in shared:
        assert splits == -(-contexts[tile] // SPLIT) and first + splits <= work.num_slots
        assert not slots & set(range(first, first + splits)), "two splits have one slot"
        slots |= set(range(first, first + splits))
        assert {slot for number, _, _, slot in entries if number == tile} == {first}


def test_long_context_gets_many_programs_and_short_ones_get_one() -> None:
    programs = [
        count for _, program, count, _ in work_of([100000, *[640] * 31]).programs.tolist() if not program
    ]
    assert programs[0] > 20 and set(programs[1:32]) == {1}


@pytest.mark.parametrize("contexts", [[1200] * 24, [8300] * 16, [30000] * 4], ids=["1200", "8300", "30000"])
def test_programs_of_equal_contexts_run_at_the_same_time(contexts: list[int]) -> None:
    entries = [entry for entry in work_of(contexts).programs.tolist() if entry[0] >= 0]
    assert len(entries) * 8 <= 264


def test_kernel_for_hopper_compiles() -> None:
    """Compiled for compute capability 9.0, which needs no GPU. Its bits are compared in tests/gpu."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wgmma" in done.stdout and "cp.async.bulk.tensor" in done.stdout


_COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from holdfast.numerics.backends.triton.attention.hopper import _attention_hopper as kernel

layout = gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16)
pool = f"tensordesc<bf16[64, 128],{layout!r}>"
types = dict(out="*bf16", marks="*i1", q="*bf16", keys=pool, values=pool, positions="*i64", tiles="*i32", pages="*i32",
             scale="fp32", window="i32")
shape = dict(KV_HEADS=8, GROUP=4, WIDTH=128, BLOCK_N=64, PER_SPLIT=4, WINDOWED=False, STAGES=4)
names = kernel.arg_names
source = GluonASTSource(
    fn=kernel,
    signature={name: types.get(name, "constexpr") for name in names},
    constexprs={(names.index(name),): value for name, value in shape.items()},
)
options = dict(num_warps=4, enable_fp_fusion=False)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
"""
