"""The source digest: the same at any path, another with every changed byte of a file that decides
bits.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast
from holdfast.certification import source_digest as module
from holdfast.certification.source_digest import (
    ENGINE_FILES,
    FOLDERS,
    deciding_files,
    digest_source,
    own_source_digest,
)

HERE = Path(holdfast.__file__).parent
# Files that schedule, serve, configure or report.
DECIDES_NOTHING = {
    *(
        "__init__.py",
        "async_engine.py",
        "builder.py",
        "config.py",
        "engine.py",
        "engine_thread.py",
    ),
    *("llm.py", "receipt.py", "replay.py", "result_collector.py", "status.py", "tracer.py"),
}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    hidden = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(HERE, tmp_path / "elsewhere" / "holdfast", ignore=hidden))


def in_another_process(path: Path) -> str:
    """The digest that the package at this path computes of itself."""
    program = (
        "from holdfast.certification import source_digest as source; "
        "print(source.__file__, source.own_source_digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    file, digest = done.stdout.rsplit(maxsplit=1)
    assert file.startswith(str(path))
    return digest


def zipped(folder: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in folder.rglob("*.py"):
            archive.write(path, path.relative_to(folder.parent))
    return file


def test_digest_is_the_same_in_two_processes(copied: Path) -> None:
    digest = digest_source(copied)
    assert digest is not None
    assert in_another_process(copied.parent) == in_another_process(copied.parent) == digest


def test_own_digest_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = own_source_digest()
    assert digest is not None
    assert len(digest) == 64
    monkeypatch.setattr(module, "digest_source", lambda package: "changed while the process runs")
    assert own_source_digest() == digest


def test_digest_is_the_same_from_an_archive(copied: Path, tmp_path: Path) -> None:
    archive = zipped(copied, tmp_path / "holdfast.zip")
    assert digest_source(zipfile.Path(archive, "holdfast/")) == digest_source(copied)
    assert in_another_process(archive) == digest_source(copied)


DECIDING = [
    "certification/checks/operations.py",
    "certification/gemm/split_k.py",
    "core/stop_rules.py",
    "engine/input_processor.py",
    "engine/output.py",
    "models/decoder.py",
    "numerics/backends/c/kernels.py",
    "numerics/rope.py",
    "sandbox/template_worker.py",
    "structured/matcher.py",
    "text/bytewise.py",
    "text/chat_template.py",
    "text/detokenizer.py",
    "text/gguf_tokenizer.py",
    "text/tokenizer.py",
    "thinking/blocks.py",
    "worker/logits_processors/grammar_masks.py",
    "worker/logits_processors/penalties.py",
    "worker/sampler.py",
]
NOT_DECIDING = ["cli/main.py", "scheduler/policy.py", "engine/engine.py", "engine/replay.py"]


def test_digest_covers_the_files_that_decide_bits() -> None:
    found = {path for files in deciding_files(HERE).values() for path in files}
    assert not set(DECIDING) - found
    assert not found & {*NOT_DECIDING}
    assert all((HERE / path).is_file() for path in NOT_DECIDING)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one deciding file in each folder, and one that decides nothing."""
    for path in (*(f"{name}/one.py" for name in FOLDERS), "engine/output.py", "engine/engine.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


@pytest.mark.parametrize("folder", [*FOLDERS, "engine"])
def test_every_changed_byte_and_path_changes_the_digest(package: Path, folder: str) -> None:
    file = package / folder / ("output.py" if folder == "engine" else "one.py")
    before = digest_source(package)
    file.write_bytes(file.read_bytes() + b"\n")
    changed = digest_source(package)
    renamed = file.with_name("input_processor.py")
    file.rename(renamed)
    moved = digest_source(package)
    assert None not in (before, changed, moved) and len({before, changed, moved}) == 3


def test_other_files_do_not_change_the_digest(package: Path) -> None:
    before = digest_source(package)
    (package / "engine" / "engine.py").write_text("")
    (package / "worker" / "__pycache__").mkdir()
    (package / "worker" / "__pycache__" / "sampler.cpython-312.pyc").write_bytes(b"")
    assert digest_source(package) == before


def test_every_engine_file_is_listed() -> None:
    names = {path.name for path in (HERE / "engine").glob("*.py")}
    assert names - {*ENGINE_FILES} == DECIDES_NOTHING, (
        "a new file: does it decide bits? List it here or in ENGINE_FILES"
    )
    assert not {*ENGINE_FILES} - names, "a listed file does not exist"


@pytest.mark.parametrize("folder", [*FOLDERS, "engine"])
def test_missing_sources_have_no_digest(package: Path, folder: str) -> None:
    for file in (package / folder).rglob("*.py"):
        file.rename(file.with_suffix(".pyc"))
    assert digest_source(package) is None


@pytest.mark.parametrize("error", [OSError, ModuleNotFoundError, TypeError])
def test_package_without_folder_has_no_digest(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(package: str) -> Path:
        raise error("no such thing here")

    monkeypatch.setattr("importlib.resources.files", fail)
    assert own_source_digest.__wrapped__() is None
