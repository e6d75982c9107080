"""Build, check and try what is published: `make dist`, or `python scripts/dist.py`.

    dist/holdfast-VERSION.tar.gz                                  sources
    dist/holdfast-VERSION-py3-none-manylinux_2_34_x86_64.whl      with the C kernels of all instruction sets
    dist/holdfast-VERSION-py3-none-manylinux_2_34_aarch64.whl     where Debian's gcc-aarch64-linux-gnu is installed
    dist/holdfast-VERSION-py3-none-any.whl                        without them, for all other systems
    dist/holdfast_models-VERSION-py3-none-any.whl                 the models coin and smollm2-coin
    dist/SHA256SUMS, dist/sbom.json                               digests, and what each file contains or needs

The same commit gives the same bytes: times are those of the commit, owners and modes are fixed. `--twice` builds
everything again and compares. Tools are installed into build/dist.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from holdfast.numerics.backends.c import prebuilt  # noqa: E402

PORTABLE = ROOT / "tests" / "numerics" / "portable"
TOOLS = ROOT / "build" / "dist"
DIST = ROOT / "dist"
GLIBC = "2_34"  # what OpenMP's library of the oldest supported Debian needs
MAX_BYTES = 10 << 20  # of a wheel of holdfast itself
_PACKAGES = ("build", "twine", "check-wheel-contents", "auditwheel", "setuptools>=77", "wheel")
_LICENCES = {"libgomp.so.1": "GPL-3.0-or-later WITH GCC-exception-3.1"}
_TRIAL = """
import ctypes, json, pathlib
from holdfast.numerics.backends.c import prebuilt
from holdfast.version import __version__
found = prebuilt.find_prebuilt()
print(json.dumps([__version__, found and found.path.name, found and bool(ctypes.CDLL(str(found.path)))]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--twice", action="store_true", help="build again, and compare every byte")
    arguments = parser.parse_args()
    _install_tools()
    files = build_all(DIST)
    if arguments.twice:
        with tempfile.TemporaryDirectory() as folder:
            for one in build_all(Path(folder)):
                same = one.read_bytes() == (DIST / one.name).read_bytes()
                _require(same, f"{one.name} has other bytes the second time")
    for one in files:
        check(one)
        if "manylinux" in one.name:
            check_bits(one)
    try_wheels(files)
    write_sums(files)
    for one in sorted(DIST.iterdir()):
        print(f"{one.stat().st_size:>12,}  {one.name}")


def build_all(folder: Path) -> list[Path]:
    """Build every file into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.umask(0o022)  # modes are in the files
    with tempfile.TemporaryDirectory(prefix="holdfast-dist-") as work:
        source = Path(work) / "source"
        _export(source)
        _build(source, folder, "--sdist")
        _normalise(next(folder.glob("*.tar.gz")))
        for machine in ("x86_64", "aarch64"):
            if machine == platform.machine() or shutil.which(f"{machine}-linux-gnu-gcc"):
                named = {"HOLDFAST_WHEEL_PLATFORM": f"manylinux_{GLIBC}_{machine}"}
                _build(source, folder, "--wheel", HOLDFAST_WHEEL_MACHINE=machine, **named)
        _build(source, folder, "--wheel", HOLDFAST_PREBUILT="0")
        _build(_models_project(source, Path(work) / "models"), folder, "--wheel")
    return sorted(folder.iterdir())


def check(path: Path) -> None:
    """Check metadata, contents and, of a wheel for Linux, the libraries it needs."""
    _run(TOOLS / "bin" / "twine", "check", "--strict", path)
    is_ours = path.name.startswith("holdfast-")
    _require(not is_ours or path.stat().st_size < MAX_BYTES, f"{path.name} is larger than {MAX_BYTES} bytes")
    if path.suffix == ".whl":
        _run(TOOLS / "bin" / "check-wheel-contents", "--ignore", "W009", path)  # three packages are meant
    if "manylinux" in path.name:
        platform_tag = path.stem.rpartition("-")[2]
        said = " ".join(_run(TOOLS / "bin" / "auditwheel", "show", path).split())
        _require(f'is consistent with the following platform tag: "{platform_tag}"' in said, said)


def check_bits(wheel: Path) -> None:
    """Compare what the kernels in a wheel compute with the recorded digests: of every instruction set that this
    machine has or, for another architecture, with qemu-user.
    """
    machine = wheel.stem.partition("manylinux_")[2].removeprefix(f"{GLIBC}_")
    is_native = machine == platform.machine()
    emulator = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    if not is_native and emulator is None:
        print(f"{wheel.name}: not run, there is no qemu-{machine} (qemu-user)")
        return
    runner = [] if is_native else [str(emulator), "-cpu", "max", "-L", f"/usr/{machine}-linux-gnu"]
    compiler = "cc" if is_native else f"{machine}-linux-gnu-gcc"
    all_targets = [one for one in prebuilt.TARGETS if one.machine == machine]
    targets = prebuilt.supported_targets() if is_native else all_targets
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        (libraries,) = Path(folder).rglob(prebuilt.PREBUILT_DIR.name)
        for target in targets:
            program = Path(folder) / target.name
            library = libraries / f"{target.name}.so"
            linked = ("-fopenmp", f"-Wl,-rpath,{libraries}", "-o", program)
            _run(compiler, "-O1", PORTABLE / "driver.c", library, *linked)
            lines = (line.rpartition(" ") for line in _run(*runner, program).splitlines())
            computed = {name: digest for name, _, digest in lines}
            _require(
                computed == json.loads((PORTABLE / "digests.json").read_text()), f"{library}: other bits"
            )
            print(f"{wheel.name}: {target.name} gives the recorded bits", flush=True)


def try_wheels(files: list[Path]) -> None:
    """Install the wheel of this machine, the pure one and the sdist into empty environments without their
    dependencies, and load the kernels."""
    kinds = {f"_{platform.machine()}.whl": True, "holdfast-*-any.whl": False, ".tar.gz": None}
    for pattern, has_kernels in kinds.items():
        names = [one for one in files if one.match(pattern) or one.name.endswith(pattern)]
        for path in names:
            with tempfile.TemporaryDirectory() as folder:
                venv.create(folder, with_pip=True)
                python = Path(folder) / "bin" / "python"
                _run(python, "-m", "pip", "install", "--quiet", "--no-deps", path)
                _run(python, "-m", "pip", "install", "--quiet", "numpy")
                version, name, is_loaded = json.loads(_run(python, "-c", _TRIAL, cwd=folder))
                _require(version in path.name, f"{path.name} has the version {version}")
                _require(has_kernels in (None, bool(is_loaded)), f"{path.name} gives {name}")
                print(f"{path.name}: kernels {name}")


def write_sums(files: list[Path]) -> None:
    """Write digests, and a bill of materials in CycloneDX's words."""
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    components = [_component(one) for one in files if one.suffix == ".whl"]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    (DIST / "sbom.json").write_text(json.dumps(bill, indent=1) + "\n")


def _component(wheel: Path) -> dict[str, object]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(
            archive.read(next(one for one in names if one.endswith("/METADATA"))).decode()
        )
        shipped = [
            {"type": "library", "name": name, "licenses": [{"expression": licence}]}
            for name, licence in _LICENCES.items()
            if any(one.endswith(f"/{name}") for one in names)
        ]
    needed = [{"type": "library", "name": one} for one in metadata.get_all("Requires-Dist", [])]
    return {
        "type": "library",
        "name": metadata["Name"],
        "version": metadata["Version"],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        "licenses": [{"expression": metadata["License-Expression"]}],
        "properties": [{"name": "file", "value": wheel.name}],
        "components": [*shipped, *needed],
    }


def _install_tools() -> None:
    if not (TOOLS / "bin" / "twine").exists():
        venv.create(TOOLS, with_pip=True, clear=True)
        _run(TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet", *_PACKAGES)


def _export(folder: Path) -> None:
    """Copy the files that git knows, as they are now."""
    for name in _run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        source = ROOT / name
        if (
            name.startswith(("src/", "LICENSE", "README", "pyproject", "setup", "MANIFEST"))
            and source.is_file()
        ):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o644)


def _models_project(source: Path, folder: Path) -> Path:
    """Make the project of the wheel holdfast-models."""
    package = folder / "holdfast_models"
    shutil.copytree(source / "src" / "holdfast_models", package)
    (package / "pyproject.toml").rename(folder / "pyproject.toml")
    shutil.copyfile(source / "LICENSE", folder / "LICENSE")
    shutil.copyfile(package / "coin" / "README.md", folder / "README.md")
    return folder


def _build(source: Path, folder: Path, kind: str, **settings: str) -> None:
    when = _run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    for left in (source / "build", *source.glob("src/*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": when, "PYTHONPATH": "", **settings}
    command = [TOOLS / "bin" / "python", "-m", "build", "--no-isolation", kind, "--outdir", folder, source]
    _run(*command, env=environment)


def _normalise(sdist: Path) -> None:
    """Write a tar.gz anew: files by name, one time, no owners."""
    when = int(_run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            content = old.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = when, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() else 0o644, {}
            new.addfile(member, content)
    sdist.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=when))


def _run(*command: str | Path, **settings: object) -> str:
    done = subprocess.run(
        [str(one) for one in command],
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **settings,
    )  # type: ignore[call-overload]
    _require(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return str(done.stdout)


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        sys.exit(f"dist: {message}")


if __name__ == "__main__":
    main()
