"""Hostile environments: variables that libraries read when they are loaded.

Each environment is tried in a child process. A child prints its fingerprint and digests of its
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
from typing import Any

import torch

from adversary.evidence import Evidence
from adversary.hostile_models import Target, subnormal
from adversary.questions import ask, backend_of
from holdfast.errors import HoldfastError
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.sampling import SamplingBatch

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
    wide = torch.randn(num_rows, width, generator=generator, dtype=torch.float32) * 8
    dtype: torch.dtype = getattr(torch, backend.recipe.dtype)
    x = wide.to(dtype)
    weight = torch.randn(width, width, generator=generator, dtype=torch.float32)
    ids = torch.arange(num_rows)
    batch = SamplingBatch(
        temperature=torch.full((num_rows,), 1.3),
        top_k=torch.zeros(num_rows, dtype=torch.int32),
        top_p=torch.full((num_rows,), 0.97),
        min_p=torch.zeros(num_rows),
        seeds=ids + 1000,
        positions=ids,
    )
    found: dict[str, Callable[[], torch.Tensor]] = {
        "logsumexp": lambda: backend.logsumexp(wide),
        "sample": lambda: backend.sample(wide, batch),
        "rms_norm": lambda: backend.rms_norm(x, torch.ones(width, dtype=dtype), 1e-5),
        "silu_mul": lambda: backend.silu_mul(x),
        "linear": lambda: backend.linear(x, backend.pack(weight), canonical=True),
    }
    return {f"operation {name}": [_digest(make())] for name, make in found.items()}


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes()).hexdigest()


def run_child(kernels: str, dtype: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a new process with these variables observes."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, kernels, dtype],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode != 0:
        return {"crashed": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def attack_environments(
    target: Target,
    environments: Sequence[Mapping[str, str]] = ENVIRONMENTS,
    *,
    num_jobs: int = 1,
    num_controls: int = 2,
) -> Evidence:
    """Children without a change, and one for each environment."""
    evidence = Evidence()
    every: list[Mapping[str, str]] = [*[{}] * num_controls, *environments]
    with ThreadPoolExecutor(num_jobs) as pool:
        found = pool.map(lambda environment: run_child(target.kernels, target.dtype, environment), every)
        for environment, one in zip(every, found, strict=True):
            note_child(evidence, environment, one)
    return evidence


def note_child(evidence: Evidence, environment: Mapping[str, str], found: Mapping[str, Any]) -> None:
    """Add what a child observed."""
    name = " ".join(f"{name}={value}" for name, value in environment.items())
    if "crashed" in found:
        evidence.fail(f"{name}: {found['crashed']}")
        return
    if "refused" in found:
        evidence.refusals[f"{name}: {found['refused']}"] += 1
        return
    for failure in found["failures"]:
        evidence.fail(f"{name}: {failure}")
    for question, digests in found["answers"].items():
        for one in digests:
            evidence.add(found["fingerprint"], question, one)


if __name__ == "__main__":
    print(json.dumps(observe(sys.argv[1], sys.argv[2])))  # type: ignore[arg-type]
