"""The C kernels give the recorded bits, in every form: NEON, AVX2, AVX-512, plain C; by gcc and by clang.

`portable/driver.c` calls every kernel with fixed numbers, ordinary and hostile, and prints digests.
`portable/digests.json` holds those of this version of the kernels. A change of the digests is a change of
bits: record them with `python tests/numerics/test_portable_bits.py` and raise the version of kernels/c.

Forms of another CPU, and of instructions that this one does not have (i8mm), run under qemu-user; Debian's
packages are qemu-user or qemu-user-static, gcc-x86-64-linux-gnu, gcc-aarch64-linux-gnu and clang. No emulator has
AVX-512 or AMX: on a CPU without them, their forms are compiled, and run with the intrinsics of `portable/emulated_avx512`.
"""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.models.config import parse_config
from holdfast.numerics.backends.c import build as build_module
from holdfast.numerics.backends.c.kernels import load_kernels
from holdfast.receipts.engine_fingerprint import digest_rope_tables

HERE = Path(__file__).parent / "portable"
SOURCES = Path(build_module.__file__).parent
RECORDED = HERE / "digests.json"


@dataclass(frozen=True)
class Form:
    """How the kernels are built: the CPU they run on, the compiler, its further flags. needs: a flag of
    /proc/cpuinfo."""

    cpu: str
    compiler: str
    flags: tuple[str, ...]
    needs: str = ""


_IS_X86 = platform.machine() == "x86_64"
_FMA = ("-mfma",) if _IS_X86 else ()  # without it, fmaf is a function of libm
_AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq"
FORMS = {
    "neon-gcc": Form("aarch64", "gcc", ("-O3",)),
    "neon-dotprod-gcc": Form("aarch64", "gcc", ("-O3", "-march=armv8.2-a+dotprod"), "asimddp"),
    "neon-i8mm-gcc": Form("aarch64", "gcc", ("-O3", "-march=armv8.2-a+dotprod+i8mm"), "i8mm"),
    "neon-gcc-unoptimised": Form("aarch64", "gcc", ("-O0",)),
    "neon-clang": Form("aarch64", "clang", ("-O2",)),
    "avx2-gcc": Form("x86_64", "gcc", ("-O3", "-march=haswell"), "avx2"),
    "avx-vnni-gcc": Form("x86_64", "gcc", ("-O3", "-march=haswell", "-mavxvnni"), "avx_vnni"),
    "avx2-clang": Form("x86_64", "clang", ("-O2", "-march=haswell"), "avx2"),
    "avx512-gcc": Form("x86_64", "gcc", ("-O3", "-march=haswell", *_AVX512.split()), "avx512bw"),
    "avx512-vnni-gcc": Form(
        "x86_64", "gcc", ("-O3", "-march=haswell", *_AVX512.split(), "-mavx512vnni"), "avx512_vnni"
    ),
    "avx512-clang": Form("x86_64", "clang", ("-O2", "-march=haswell", *_AVX512.split()), "avx512bw"),
    "avx512-emulated": Form(
        platform.machine(),
        "gcc",
        ("-O0", f"-I{HERE / 'emulated_avx512'}", "-D__AVX512F__=1", "-D__AVX512BW__=1"),
    ),
    "avx512-vnni-emulated": Form(
        platform.machine(),
        "gcc",
        ("-O0", f"-I{HERE / 'emulated_avx512'}", *(f"-D__AVX512{part}__=1" for part in ("F", "BW", "VNNI"))),
    ),
    "amx-int8-gcc": Form(
        "x86_64",
        "gcc",
        ("-O3", "-march=haswell", *_AVX512.split(), "-mavx512vnni", "-mamx-tile", "-mamx-int8"),
        "amx_int8",
    ),
    "amx-int8-emulated": Form(
        platform.machine(),
        "gcc",
        (
            *("-O0", f"-I{HERE / 'emulated_avx512'}", "-D__AMX_TILE__=1", "-D__AMX_INT8__=1"),
            *(f"-D__AVX512{part}__=1" for part in ("F", "BW", "VNNI")),
        ),
    ),
    "plain-8": Form(platform.machine(), "gcc", ("-O1", "-DHOLDFAST_PLAIN=8", *_FMA)),
    "plain-16": Form(platform.machine(), "clang", ("-O1", "-DHOLDFAST_PLAIN=16", *_FMA)),
}


def recorded() -> dict[str, str]:
    digests: dict[str, str] = json.loads(RECORDED.read_text())
    return digests


def read_digests(command: list[str]) -> dict[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    lines = (line.rpartition(" ") for line in done.stdout.splitlines())
    return {name: digest for name, _, digest in lines}


def digests_of_installed_kernels(folder: Path) -> dict[str, str]:
    """Of the library that this machine's engine runs."""
    library, program = load_kernels().built.path, folder / "driver"
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no C compiler ({compiler}) for the driver")
    run([compiler, "-O1", str(HERE / "driver.c"), str(library), "-fopenmp", "-o", str(program)])
    return read_digests([str(program)])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def compiler_for(form: Form) -> list[str]:
    """The compiler of a form as a command; skips without it."""
    is_native = form.cpu == platform.machine()
    name = form.compiler if is_native or form.compiler == "clang" else f"{form.cpu}-linux-gnu-gcc"
    if shutil.which(name) is None or not (is_native or Path(f"/usr/{form.cpu}-linux-gnu").exists()):
        pytest.skip(f"no {name} with a C library for {form.cpu}")
    if form.compiler == "clang":
        return [name, f"--target={form.cpu}-linux-gnu", "-fuse-ld=bfd"]
    return [name]


def runner_for(form: Form) -> list[str] | None:
    """What runs a program of this form: nothing, or an emulator. None: it can only be compiled."""
    is_native = form.cpu == platform.machine()
    if is_native:
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        if not form.needs or form.needs in flags.split():
            return []
    if form.needs.startswith(("avx512", "avx_vnni", "amx")):
        return None
    emulator = shutil.which(f"qemu-{form.cpu}") or shutil.which(f"qemu-{form.cpu}-static")
    if emulator is None:
        pytest.skip(f"no qemu-{form.cpu} (qemu-user) to run a program for {form.cpu}")
    return [emulator, "-cpu", "max", "-L", "/" if is_native else f"/usr/{form.cpu}-linux-gnu"]


def test_installed_kernels_give_the_recorded_bits(tmp_path: Path) -> None:
    assert digests_of_installed_kernels(tmp_path) == recorded()


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_recorded_bits(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    if _IS_X86 and "emulated" in name:
        pytest.skip("the compiler of this CPU has the intrinsics themselves")
    compiler, runner = compiler_for(form), runner_for(form)
    program = tmp_path / "driver"
    flags = [flag for flag in build_module.FLAGS if flag not in ("-O3", "-fopenmp", "-fno-schedule-insns")]
    sources = [str(SOURCES / unit) for unit in build_module._UNITS]
    run([*compiler, *flags, *form.flags, *sources, str(HERE / "driver.c"), "-o", str(program)])
    if runner is None:
        pytest.skip(f"compiled only: this CPU has no {form.needs}, and no emulator has it")
    assert read_digests([*runner, str(program)]) == recorded()


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to list the functions that a library calls")
def test_kernels_call_no_function_of_libm() -> None:
    """A number that libm computes depends on its version."""
    names = subprocess.run(
        ["nm", "-D", load_kernels().built.path], capture_output=True, text=True, check=True
    )
    undefined = {line.split()[1].split("@")[0] for line in names.stdout.splitlines() if " U " in line}
    allowed = {"abort", "aligned_alloc", "fprintf", "free", "memcpy", "memmove", "memset", "stderr"}
    allowed |= {"syscall"}  # asks the kernel for AMX tiles
    runtime = ("GOMP_", "omp_", "__kmpc", "__tls", "__stack_chk", "__cxa", "_")
    assert not {name for name in undefined - allowed if not name.startswith(runtime)}


ROPES = {
    "default": {},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
}
ROPE_DIGESTS = {
    "default": "b9386b8daced3ee1bc77508cddae1fd431667e7869fa07fdc4e3fa4e8fb5c852",
    "llama3": "5522dea7a9d4f4c2e3af47f35dfd36f647113ba98b0e289b9302c52171ee8d01",
    "yarn": "a9bdd84d9cc43795cef63a1ce3d8957dc8ea5a5df74b0a97de13bc74e958a416",
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_tables_have_the_recorded_bits(name: str) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {**ROPES[name], "original_max_position_embeddings": 8192}
        if name != "default"
        else None,
    }
    assert digest_rope_tables(parse_config(config)) == ROPE_DIGESTS[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RECORDED.write_text(json.dumps(digests_of_installed_kernels(Path(folder)), indent=2) + "\n")
