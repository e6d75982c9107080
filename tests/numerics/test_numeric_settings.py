"""The number of threads is decided once per process; variables are read at every call. Tested in a
child process."""

import json
import os
import subprocess
import sys

import pytest
import torch

from holdfast.numerics.settings import numeric_settings

_CHILD = """
import ctypes, json, os, threading, torch
from pathlib import Path
from holdfast.errors import ConfigError
from holdfast.numerics.settings import apply_numeric_settings, numeric_settings
from holdfast.numerics.settings_guard import our_settings

first = apply_numeric_settings(1)
assert apply_numeric_settings(1) == first and apply_numeric_settings(None) == first
try:
    apply_numeric_settings(2)
except ConfigError as error:
    refused = str(error)

maps = Path("/proc/self/maps").read_text().splitlines()
openmp = ctypes.CDLL(next(line.split()[-1] for line in maps if "gomp" in line))
num_threads = []
def look():
    num_threads.append(openmp.omp_get_max_threads())
    with our_settings(torch.device("cpu")):
        num_threads.append(openmp.omp_get_max_threads())
    num_threads.append(openmp.omp_get_max_threads())
thread = threading.Thread(target=look); thread.start(); thread.join()

os.environ["MKL_CBWR"] = "AVX2"
del os.environ["ONEDNN_MAX_CPU_ISA"]
later = numeric_settings()
torch.set_float32_matmul_precision("medium")
torch.set_num_threads(3)
apply_numeric_settings()
again = torch.get_float32_matmul_precision(), torch.get_num_threads()
torch.cuda.set_device = lambda device: None
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
on_gpu = apply_numeric_settings(None, device=torch.device("cuda", 0))
assert first.cuda == ()
print(json.dumps([first.as_dict(), later.as_dict(), again, refused, num_threads, on_gpu.as_dict()["cuda"]]))
"""


def test_threads_are_decided_once_and_variables_read_at_every_call() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment["ONEDNN_MAX_CPU_ISA"] = "DEFAULT"
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True, env=environment
    )
    first, later, applied_again, refused, num_threads, on_gpu = json.loads(done.stdout)
    assert first["threads"] == 1 and "cannot change to 2" in refused
    assert first["matmul_precision"] == "highest"
    assert first["environment"]["ONEDNN_MAX_CPU_ISA"] == "DEFAULT"
    assert later["environment"]["MKL_CBWR"] == "AVX2"
    assert later["environment"]["ONEDNN_MAX_CPU_ISA"] == "None (at start: DEFAULT)"
    assert applied_again == ["highest", 1]
    before, inside, after = num_threads  # OpenMP's in a new thread: before, inside and after a guard
    assert inside == 1 and after >= 1
    assert before > 1 or os.cpu_count() == 1  # the default of OpenMP
    assert on_gpu == {
        "allow_tf32": False,
        "allow_bf16_reduced_precision_reduction": False,
        "allow_fp16_reduced_precision_reduction": False,
    }


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_variables_that_libraries_read_are_recorded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = ("MKL_CBWR", "ONEDNN_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY")
    on_cpu += ("GLIBC_TUNABLES", "LD_PRELOAD", "OMP_DYNAMIC", "KMP_INHERIT_FP_CONTROL")
    on_gpu = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
    on_gpu += ("TORCH_BLAS_PREFER_CUBLASLT", "TRITON_F32_DEFAULT", "PYTORCH_TUNABLEOP_ENABLED")
    without_effect = ("OMP_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES", "TRITON_CACHE_DIR", "HOME")
    variables = dict.fromkeys((*on_cpu, *on_gpu, *without_effect), "x")
    monkeypatch.setattr(os, "environ", {**os.environ, **variables})  # torch must not see them
    found = dict(numeric_settings(device=torch.device(kind)).environment)
    expected = on_cpu if kind == "cpu" else (*on_cpu, *on_gpu)
    assert {name for name, value in found.items() if value.startswith("x")} == set(expected)
