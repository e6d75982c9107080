"""Code versions: the version alone for the recorded sources, version and digest for any other; and
every file of the package is either guarded or known to decide no bit.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast
from holdfast.numerics.code_versions import versions
from holdfast.numerics.code_versions.__main__ import main
from holdfast.numerics.code_versions.components import COMPONENTS, component_files
from holdfast.numerics.code_versions.versions import (
    RECORDED,
    code_version,
    code_versions,
    digest_files,
    read_recorded,
)

HERE = Path(holdfast.__file__).parent
ROOT = Path(__file__).resolve().parents[2]

# Files and folders that decide no bit of an answer and nothing of a certificate.
DECIDES_NOTHING = {
    "__init__.py": "names of the public API",
    "__main__.py": "starts the command line",
    "bench/": "measures",
    "cli/": "commands and their output",
    "core/cancel_token.py": "ends work that no client waits for",
    "core/embeddings.py": "data for the client",
    "core/events.py": "data from the scheduler to the engine",
    "core/fast_dataclass.py": "a faster constructor",
    "core/framing.py": "messages to other processes",
    "core/logprobs.py": "data for the client",
    "core/options.py": "declares settings",
    "core/other_engines.py": "words",
    "core/results.py": "data for the client",
    "core/sent_answer.py": "data from the server to the engine; the engine verifies it",
    "engine/async_engine.py": "calls the engine",
    "engine/async_llm.py": "calls the engine",
    "engine/background_work.py": "when checks run; the certificate says what they found",
    "engine/builder.py": "connects the parts; its choices are in the fingerprint",
    "engine/certifier.py": "when the certificate is made",
    "engine/compile_ahead.py": "when kernels are compiled",
    "engine/compile_worker.py": "when kernels are compiled",
    "engine/continuation.py": "reads receipts; the engine verifies what they say",
    "engine/chat_tokenizer.py": "calls tokenizer and chat template",
    "engine/config.py": "settings; those that decide are in the fingerprint",
    "engine/choices.py": "queues requests",
    "engine/engine.py": "calls scheduler and worker",
    "engine/engine_thread.py": "calls the engine",
    "core/garbage_collection.py": "when garbage is collected",
    "engine/gpu_failures.py": "messages",
    "engine/llm.py": "calls the engine",
    "engine/loaded_model.py": "calls the builder",
    "engine/preflight.py": "checks settings",
    "engine/progress_bar.py": "shows progress",
    "engine/prompts.py": "forms of a prompt; the receipt has its ids",
    "engine/receipt.py": "an old name",
    "engine/replay.py": "compares answers",
    "engine/result_collector.py": "collects answers",
    "engine/shared_engine.py": "calls the engine",
    "engine/start_up.py": "measures time",
    "engine/status.py": "counts",
    "engine/token_stream.py": "hands out answers",
    "engine/tracer.py": "reports",
    "errors.py": "texts of errors",
    "kv_cache/": "which page holds what; the worker reads through it",
    "models/adapter.py": "finds files, which have digests",
    "models/dummy.py": "makes random weights, which have a digest",
    "models/locate.py": "finds files, which have digests",
    "models/shapes.py": "sizes for benchmarks; those of GEMM recipes are in the recipe",
    "numerics/cache_dir.py": "where files are kept",
    "numerics/code_versions/": "names versions",
    "numerics/recipe.py": "names what a backend computes with",
    "numerics/select_backend.py": "chooses the backend, which the recipe names",
    "ray/": "sends requests to replicas; deterministic ones to those with one fingerprint",
    "receipts/": "describes answers",
    "recordings/": "answers recorded on other machines",
    "sandbox/grammar_sandbox.py": "refuses grammars that take too long",
    "sandbox/supervisor.py": "starts and ends processes",
    "sandbox/tokenizer_sandbox.py": "refuses tokenizers that take too long",
    "sandbox/tokenizer_worker.py": "tries tokenizers",
    "sandbox/worker_process.py": "carries messages",
    "scheduler/": "what runs when; verification.py is guarded",
    "server/": "from HTTP to the engine; the receipt has the prompt's ids and all settings",
    "thinking/predictor.py": "candidates, which are verified",
    "version.py": "the release's number",
    "worker/device.py": "describes the device for the fingerprint",
    "worker/gpu_presence.py": "refuses a device that is not there",
    "worker/spot_check.py": "compares",
}


def guarded_files() -> set[str]:
    found: set[str] = set()
    for name in COMPONENTS:
        files = component_files(HERE, name)
        assert files is not None, f"{name}: a listed path does not exist"
        found |= files.keys()
    return found


def decides_nothing(path: str) -> bool:
    return any(path == one or (one.endswith("/") and path.startswith(one)) for one in DECIDES_NOTHING)


def test_every_file_is_guarded_or_decides_no_bit() -> None:
    files = {
        str(path.relative_to(HERE))
        for pattern in ("*.py", "*.c", "*.h")
        for path in HERE.rglob(pattern)
        if path.name != "__init__.py" or path.parent == HERE
    }
    unknown = sorted(path for path in files - guarded_files() if not decides_nothing(path))
    assert not unknown, (
        f"do these decide bits of an answer? {', '.join(unknown)}: list them in "
        "numerics/code_versions/components.py, or in DECIDES_NOTHING with the reason"
    )
    twice = sorted(path for path in guarded_files() & {*DECIDES_NOTHING})
    assert not twice, "listed both as deciding bits and as deciding none"
    gone = sorted(path for path in DECIDES_NOTHING if not (HERE / path).exists())
    assert not gone, "listed, but not there"


def test_init_files_outside_components_hold_no_code() -> None:
    inits = {str(path.relative_to(HERE)) for path in HERE.rglob("__init__.py")} - guarded_files()
    for path in inits - {"__init__.py"}:
        if not decides_nothing(path):
            assert digest_files({"x.py": (HERE / path).read_bytes()}) == digest_files({"x.py": b""}), path


def test_recorded_digests_are_those_of_the_sources() -> None:
    recorded = read_recorded(HERE)
    assert recorded.keys() == COMPONENTS.keys()
    changed = [
        name
        for name in COMPONENTS
        if digest_files(component_files(HERE, name) or {}) != recorded[name].digest
    ]
    assert not changed, (
        f"the sources of {', '.join(changed)} changed. If no bit changes (python scripts/compare_bits.py "
        "main): python -m holdfast.numerics.code_versions --record. If bits change: python -m "
        f"holdfast.numerics.code_versions --bump {' '.join(changed)}, and say so in CHANGELOG.md"
    )


def test_kernels_of_one_backend_are_not_in_another_component() -> None:
    for name in ("c", "torch", "triton"):
        files = component_files(HERE, f"kernels/{name}")
        assert files is not None
        folder = f"numerics/backends/{name}/"
        assert any(path.startswith(folder) for path in files)
        others = {
            path
            for one in COMPONENTS
            if one != f"kernels/{name}"
            for path in component_files(HERE, one) or {}
        }
        assert not any(path.startswith(folder) for path in others)


@pytest.fixture(scope="module")
def recorded_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, recorded as it is, and the digests' cache."""
    folder = tmp_path_factory.mktemp("recorded")
    without = shutil.ignore_patterns("__pycache__", "server", "cli", "bench", "builtin")
    shutil.copytree(HERE, folder / "holdfast", ignore=without)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOLDFAST_CACHE_DIR", str(folder / "cache"))
        (folder / "holdfast" / RECORDED).unlink()
        assert main(["--record"], folder / "holdfast") == 0
    return folder


@pytest.fixture
def copied(recorded_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package that `code_version` looks at: all versions are 1."""
    folder = Path(shutil.copytree(recorded_copy, tmp_path / "elsewhere"))
    monkeypatch.setattr(versions.resources, "files", lambda name: folder / "holdfast")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(folder / "cache"))
    return folder / "holdfast"


version_now = code_version.__wrapped__


def replace_in(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_recorded_sources_have_their_version(copied: Path) -> None:
    assert {name: version_now(name) for name in COMPONENTS} == dict.fromkeys(COMPONENTS, 1)


def test_comment_changes_no_version(copied: Path) -> None:
    for path in ("models/decoder.py", "numerics/backends/triton/norm.py"):
        replace_in(copied / path, "import torch\n", "# It is slow to import.\nimport torch\n\n")
    replace_in(copied / "numerics/backends/c/linear.c", "\n\n", "\n\n/* A comment. */\n// And another.\n")
    replace_in(copied / "worker/sampler.py", '"""The sampler', '"""A sampler')
    assert {version_now(name) for name in COMPONENTS} == {1}


@pytest.mark.parametrize(
    ("component", "path"),
    [
        ("kernels/c", "numerics/backends/c/simd.h"),
        ("kernels/c", "numerics/backends/c/build.py"),
        ("kernels/torch", "numerics/backends/torch/backend.py"),
        ("kernels/triton", "numerics/backends/triton/norm.py"),
        ("model", "numerics/rope.py"),
        ("model", "models/gguf/dequantize.py"),
        ("sampling", "worker/logits_processors/penalties.py"),
        ("sampling", "scheduler/verification.py"),
        ("text", "structured/matcher.py"),
        ("text", "engine/output.py"),
        ("thinking", "thinking/runner.py"),
        ("certification", "certification/checks/probes.py"),
    ],
)
def test_modified_sources_have_a_digest_after_their_version(copied: Path, component: str, path: str) -> None:
    with (copied / path).open("a") as file:
        file.write("x = 1\n" if path.endswith(".py") else "int x;\n")
    found = {name: version_now(name) for name in COMPONENTS}
    version, _, digest = str(found.pop(component)).partition("+")
    assert version == "1" and len(digest) == 32
    assert set(found.values()) == {1}


def test_new_file_in_a_guarded_folder_modifies_its_component(copied: Path) -> None:
    (copied / "text" / "more.py").write_text("x = 1\n")
    assert str(version_now("text")).startswith("1+")


def versions_in_another_process(path: Path) -> dict[str, int | str]:
    """The versions that the package at this path, a folder or an archive, computes of itself."""
    program = (
        f"import json, sys; sys.path.insert(0, {str(path)!r})\n"
        "from holdfast.numerics.code_versions import components, versions\n"
        f"assert versions.__file__.startswith({str(path)!r})\n"
        "print(json.dumps(versions.code_versions(components.COMPONENTS)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout))


def test_versions_are_the_same_at_any_path_and_from_an_archive(copied: Path, tmp_path: Path) -> None:
    with (copied / "text" / "tokenizer.py").open("a") as file:
        file.write("x = 1\n")
    archive = tmp_path / "holdfast.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for path in copied.rglob("*"):
            writer.write(path, path.relative_to(copied.parent))
    found = versions_in_another_process(copied.parent)
    assert found == versions_in_another_process(archive) == {name: version_now(name) for name in COMPONENTS}
    assert [name for name, version in found.items() if version != 1] == ["text"]


def test_compiled_files_have_a_digest_of_their_code(copied: Path) -> None:
    folders = [copied / name for name in ("text", "worker", "numerics/code_versions")]
    command = [sys.executable, "-m", "compileall", "-q", "-b", *map(str, folders)]
    subprocess.run(command, check=True, timeout=300)
    for path in [*folders[0].glob("*.py"), *folders[2].glob("*.py"), copied / "worker" / "sampler.py"]:
        path.unlink()
    found = {version_now(name) for name in ("text", "sampling")}
    assert len(found) == 2 and all(str(one).startswith("1+") and len(str(one)) == 34 for one in found)
    compiled = copied / "worker" / "sampler.pyc"
    before, content = version_now("sampling"), compiled.read_bytes()
    compiled.write_bytes(content[:8] + bytes(8) + content[16:])  # another time of the source
    assert version_now("sampling") == before
    compiled.write_bytes(content + b"\0")
    assert version_now("sampling") != before


def test_missing_files_are_unknown(copied: Path) -> None:
    (copied / "worker" / "sampler.py").unlink()
    shutil.rmtree(copied / "thinking")
    assert (version_now("sampling"), version_now("thinking")) == ("1+unknown", "1+unknown")


def test_digest_is_kept_on_disk_by_content(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in(copied / "worker" / "logprobs.py", "top - norms", "norms - top")
    first = version_now("sampling")

    def parse_again(files: object) -> str:
        raise AssertionError("the digest is on disk")

    with monkeypatch.context() as patched:
        patched.setattr(versions, "digest_files", parse_again)
        assert version_now("sampling") == first
    for kept in (copied.parent / "cache" / "code").iterdir():
        kept.write_text("cut off")
    assert version_now("sampling") == first
    replace_in(copied / "worker" / "logprobs.py", "norms - top", "top - norms")
    assert version_now("sampling") == 1


def test_cache_that_cannot_be_written_costs_only_time(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "file"))
    assert version_now("sampling") == 1


def test_installed_version_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_versions(COMPONENTS)
    monkeypatch.setattr(versions, "component_files", lambda *given: None)
    assert code_versions(COMPONENTS) == before


def test_record_renews_digests_and_bump_raises_versions(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], copied) == 0
    replace_in(copied / "worker" / "logprobs.py", "top - norms", "norms - top")
    replace_in(copied / "numerics" / "rope.py", "cos * factor", "sin * factor")
    assert main([], copied) == 1
    assert capsys.readouterr().out.count("1+") == 2
    assert main(["--bump", "model"], copied) == 0
    assert version_now("model") == 2
    assert str(version_now("sampling")).startswith("1+")
    assert main(["--record"], copied) == 0
    assert (version_now("model"), version_now("sampling")) == (2, 1)
    entries = json.loads((copied / RECORDED).read_text())
    assert list(entries) == list(COMPONENTS)
    assert entries["model"]["version"] == 2
    with pytest.raises(SystemExit):
        main(["--bump", "scheduler"], copied)


def test_recorded_file_is_installed() -> None:
    assert f'"{RECORDED}"' in (ROOT / "pyproject.toml").read_text()


def test_file_that_is_no_source_is_digested_as_it_is() -> None:
    """macOS leaves such files beside the real ones in archives."""
    contents = (b"\0\5\x16\7", b"\xff\xfe", b"def (")
    assert len({versions.digest_files({"models/._a.py": content}) for content in contents}) == 3
    assert versions.digest_files({"a.h": b"\xff"}) != versions.digest_files({"a.h": b"\xfe"})
