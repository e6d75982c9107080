"""Environment variables that libraries read when they are loaded: the same bits, or another
fingerprint.

Each environment is tried in a child process, which runs this file. A child prints its fingerprint and digests of its
answers and of many values of single operations. Two children with one fingerprint must print the
same digests.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates, subnormal
from adversary.questions import ask, backend_of
from holdfast.errors import HoldfastError
from holdfast.numerics.arrays import arrays_on
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.sampling import SamplingBatch
from support.adversary_targets import FEW, small_target

ENVIRONMENTS: tuple[Mapping[str, str], ...] = (
    {"NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"},
    {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
    {"NPY_DISABLE_CPU_FEATURES": "ASIMDHP ASIMDFHM SVE"},
    {"OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "3"},
    {"OMP_DYNAMIC": "true"},
    {"OMP_THREAD_LIMIT": "1"},
    {"OMP_SCHEDULE": "dynamic,1"},
    {"MKL_NUM_THREADS": "1"},
    {"MKL_DYNAMIC": "TRUE"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    {"MKL_DEBUG_CPU_TYPE": "5"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"DNNL_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    {"DNNL_DEFAULT_FPMATH_MODE": "ANY"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"OPENBLAS_CORETYPE": "Prescott"},
    {"OPENBLAS_CORETYPE": "ARMV8"},
    {"OPENBLAS_NUM_THREADS": "1"},
    {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"},
    {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    {"TORCH_MKLDNN_MATMUL_MIN_DIM": "1"},
    {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-FMA,-FMA_Usable,-FMA4"},
    {"GLIBC_TUNABLES": "glibc.cpu.name=generic"},
    {"LD_BIND_NOW": "1"},
    {"PYTHONHASHSEED": "1"},
    {"PYTHONOPTIMIZE": "1"},
    {"LC_ALL": "C"},
    {"TZ": "Asia/Kathmandu"},
)
_LIMIT_S = 300


def observe(kernels: KernelBackend, dtype: str) -> dict[str, Any]:
    """This process's fingerprint, digests of its answers and of single operations."""
    target = Target(kernels, dtype, limits={"max_pass_tokens": 32})
    evidence = Evidence()
    try:
        engine = target.open(target.weights(subnormal))
    except HoldfastError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    ask(engine, evidence)
    answers = {question: sorted(found) for (_, question), found in evidence.answers.items()}
    with torch.inference_mode():
        operations = digest_operations(backend_of(engine))
    failures = [*evidence.failures, *evidence.refusals]
    return {
        "fingerprint": engine.fingerprint.digest,
        "answers": {**answers, **operations},
        "failures": failures,
    }


def digest_operations(backend: Backend, num_rows: int = 64, width: int = 512) -> dict[str, list[str]]:
    """A digest of each operation that has a transcendental function or a long sum, over many values."""
    generator = torch.Generator().manual_seed(5)
    xp = arrays_on(backend.device)
    wide = xp.from_numpy(torch.randn(num_rows, width, generator=generator, dtype=torch.float32) * 8)
    dtype = xp.dtype(backend.recipe.dtype)
    x = wide.to(dtype)
    weight = xp.from_numpy(torch.randn(width, width, generator=generator, dtype=torch.float32))
    ids = xp.arange(num_rows)
    batch = SamplingBatch(
        temperature=xp.full((num_rows,), 1.3),
        top_k=xp.zeros(num_rows, dtype=xp.int32),
        top_p=xp.full((num_rows,), 0.97),
        min_p=xp.zeros(num_rows),
        seeds=ids + 1000,
        positions=ids,
    )
    found: dict[str, Callable[[], torch.Tensor]] = {
        "logsumexp": lambda: backend.logsumexp(wide),
        "sample": lambda: backend.sample(wide, batch),
        "rms_norm": lambda: backend.rms_norm(x, xp.full((width,), 1.0, dtype=dtype), 1e-5),
        "silu_mul": lambda: backend.silu_mul(x),
        "linear": lambda: backend.linear(x, backend.pack(weight), canonical=True),
    }
    return {f"operation {name}": [_digest(make())] for name, make in found.items()}


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().view(arrays_on(tensor.device).uint8).numpy()
    return hashlib.sha256(data.tobytes()).hexdigest()


def run_child(kernels: str, dtype: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a new process with these variables observes."""
    done = subprocess.run(
        [sys.executable, __file__, kernels, dtype],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode != 0:
        return {"failures": (done.stderr.strip().splitlines() or ["no output"])[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def attack_environments(
    target: Target, environments: Sequence[Mapping[str, str]], *, num_controls: int = 2
) -> Evidence:
    """Children without a change, and one for each environment."""
    evidence = Evidence()
    every: list[Mapping[str, str]] = [*[{}] * num_controls, *environments]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda environment: run_child(target.kernels, target.dtype, environment), every)
        for environment, one in zip(every, found, strict=True):
            name = " ".join(f"{name}={value}" for name, value in environment.items())
            if "refused" in one:
                evidence.refusals[f"{name}: {one['refused']}"] += 1
            for failure in one.get("failures", ()):
                evidence.fail(f"{name}: {failure}")
            for question, digests in one.get("answers", {}).items():
                for digest in digests:
                    evidence.add(one["fingerprint"], question, digest)
    return evidence


def _changed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a large error. A small one would seldom show."""
    return lambda x, *rest, **named: function(x, *rest, **named) * 1.01


def test_functions_of_numpy_reach_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """NPY_DISABLE_CPU_FEATURES changes the last bits of numpy's logarithm and exponential."""
    evidence = Evidence()
    with fresh_certificates():
        engine = small_target("torch", num_hidden_layers=1).open(determinism="off")
        engine.limits = replace(engine.limits, refusal=None)  # not certified: every token is verified
        engine = engine.restarted(replace(engine.scheduler.config, determinism="verify"))
        ask(engine, evidence, FEW)
        for name in ("log", "log1p", "exp", "sin", "cos", "tanh", "sqrt", "power"):
            monkeypatch.setattr(np, name, _changed(getattr(np, name)))
        ask(engine, evidence, FEW)
    evidence.assert_held()


@pytest.mark.long
def test_children_with_one_fingerprint_have_the_same_bits() -> None:
    """Features that numpy dispatches on x86 and on Arm."""
    features = "AVX512F AVX512_SKX AVX2 FMA3 ASIMDHP ASIMDFHM SVE"
    environments = [{"NPY_DISABLE_CPU_FEATURES": features, "ATEN_CPU_CAPABILITY": "default"}]
    attack_environments(Target("torch", "fp32"), environments, num_controls=1).assert_held()


@pytest.mark.long
@pytest.mark.parametrize(("kernels", "dtype"), [("c", "bf16"), ("torch", "fp32")])
def test_every_environment(kernels: KernelBackend, dtype: str) -> None:
    attack_environments(Target(kernels, dtype), ENVIRONMENTS).assert_held(may_refuse=True)


if __name__ == "__main__":
    print(json.dumps(observe(sys.argv[1], sys.argv[2])))  # type: ignore[arg-type]
