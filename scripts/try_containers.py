"""Build deploy/Containerfile and use the image as it says: `python scripts/try_containers.py` (root, Linux).

buildah runs the steps as they are written, in a chroot: no daemon and no container runtime are needed. Where the base
image cannot be pulled, mmdebstrap makes one of Debian's packages, with Debian's Python in the place of the image's. pip and
apt need their index. Then, without a network, with the user, the environment and the entry point of the image:

    the server becomes ready, and the health check of the image agrees
    it answers, and the cache volume has the certificate
    SIGTERM lets a stream end, and the server ends with 0

Debian has what is needed: apt-get install buildah mmdebstrap.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
URL = "http://127.0.0.1:8000"
_DEBIAN = "bookworm"
_STREAMED = 8  # tokens: on a busy machine, too, they come before the server stops waiting
_IMAGE = "localhost/holdfast-trial"
_AS_THE_IMAGE = (  # Debian's Python under the names that the image has
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    'ln -s /usr/bin/python3 "$1"/usr/local/bin/python',
    'ln -s /usr/bin/pip3 "$1"/usr/local/bin/pip',
)


class Builder:
    """buildah with images of its own, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = [
            "buildah",
            f"--root={folder / 'images'}",
            f"--runroot={folder / 'run'}",
            "--storage-driver=vfs",
        ]

    def run(self, *arguments: str | Path) -> str:
        return _run(*self.command, *arguments)

    def has_base(self, name: str) -> bool:
        """Return whether a base image is here, or could be pulled."""
        tries = (("inspect", "--type=image", f"localhost/{name}"), ("pull", "--quiet", name))
        return any(
            subprocess.run([*self.command, *one], capture_output=True).returncode == 0 for one in tries
        )

    def make_base(self, name: str) -> None:
        """Make a stand-in of Debian's packages."""
        archive = self.folder / "base.tar"
        hooks = [f"--customize-hook={one}" for one in _AS_THE_IMAGE]
        packages = "--include=python3,python3-pip,ca-certificates"
        _run("mmdebstrap", "--quiet", "--variant=minbase", packages, *hooks, _DEBIAN, archive)
        container = self.run("from", "scratch").strip()
        self.run("add", "--quiet", container, archive, "/")
        self.run(
            "config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", container
        )
        self.run("commit", "--quiet", "--rm", container, f"localhost/{name}")
        archive.unlink()

    def build(self, containerfile: Path) -> None:
        mounts = [f"--volume={one}:{one}:ro" for one in _pip_paths()]
        settings = self.folder / "pip.conf"
        settings.write_text(_pip_settings())
        self.run(
            *("build", "--isolation=chroot", "--network=host", "--pull-never", "--format=docker"),
            *(f"--volume={settings}:/etc/pip.conf:ro", *mounts),
            *("--tag", _IMAGE, "--file", containerfile, ROOT),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "deploy" / "Containerfile")
    parser.add_argument("--folder", type=Path, help="for images; kept. Without it a temporary one")
    parser.add_argument(
        "--built", action="store_true", help="the image is in the folder, and there is no network"
    )
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-image-"))
        )
        builder = Builder(folder.resolve())
        if arguments.built:
            use(builder)
            return
        for base in sorted(set(re.findall(r"^FROM (\S+)", arguments.file.read_text(), re.MULTILINE))):
            if not builder.has_base(base):
                print(f"{base} cannot be pulled; Debian's packages stand in for it", flush=True)
                builder.make_base(base)
        builder.build(arguments.file)
        alone = f"ip link set lo up && exec {sys.executable} {__file__} --built --folder {builder.folder}"
        subprocess.run(["unshare", "--net", "sh", "-c", alone], check=True)


def use(builder: Builder) -> None:
    """Use the image."""
    config = json.loads(builder.run("inspect", "--type=image", _IMAGE))["Docker"]["config"]
    _require(config["User"] not in ("", "0", "root"), "the image runs as root")
    container = builder.run("from", "--pull-never", _IMAGE).strip()
    builder.run("config", "--volume=/cache-", container)  # a folder takes the place of the volume
    volume = builder.folder / "cache"
    shutil.rmtree(volume, ignore_errors=True)
    volume.mkdir()
    os.chown(volume, int(config["User"]), -1)
    inside = [*builder.command, "run", "--isolation=chroot", f"--volume={volume}:/cache", container, "--"]
    check = [*inside, *config["Healthcheck"]["Test"][1:]]
    try:
        with _started([*inside, *config["Entrypoint"]]) as server:
            _require(subprocess.run(check, capture_output=True).returncode != 0, "healthy before it is ready")
            _wait_until_ready(server)
            _run(*check)
            print(f"ready; it answers: {_answer(8)!r}", flush=True)
            _require(any(volume.glob("holdfast/certificates/*.json")), "the volume has no certificate")
            _drain(server)
    finally:
        builder.run("rm", container)


def _drain(server: "subprocess.Popen[bytes]") -> None:
    """Require that a stream that began before SIGTERM ends as it should, and the server with 0."""
    with _post(max_tokens=_STREAMED, stream=True, ignore_eos=True) as stream:
        first = stream.readline()
        os.kill(_entry_point(server.pid), signal.SIGTERM)
        lines = [first, *stream]
    chunks = [line for line in lines if line.startswith(b"data: {")]
    _require(
        lines[-2].strip() == b"data: [DONE]" and len(chunks) >= _STREAMED,
        f"the stream was cut: {lines[-3:]!r}",
    )
    _require(server.wait(60) == 0, f"the server ended with {server.returncode}")
    print(f"SIGTERM: {len(chunks)} chunks arrived, and the server ended", flush=True)


def _answer(max_tokens: int) -> str:
    with _post(max_tokens=max_tokens) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def _post(**settings: object):  # type: ignore[no-untyped-def]
    messages = [{"role": "user", "content": "What is a holdfast?"}]
    body = {"model": "smollm2", "messages": messages, "temperature": 0, **settings}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    return urllib.request.urlopen(request, timeout=300)


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(_entry_point(process.pid), signal.SIGKILL)
            process.wait(60)


def _wait_until_ready(server: "subprocess.Popen[bytes]") -> None:
    while True:
        _require(server.poll() is None, "the server ended")
        try:
            urllib.request.urlopen(f"{URL}/health", timeout=10).close()
            return
        except OSError:
            time.sleep(0.5)


def _entry_point(pid: int) -> int:
    """Return the process below buildah's that is no buildah."""
    while Path(f"/proc/{pid}/cmdline").read_text().startswith("buildah"):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = Path(f"/proc/{pid}/task").iterdir()
        children = children or [
            one for thread in threads for one in (thread / "children").read_text().split()
        ]
        _require(bool(children), "the container has no process")
        pid = int(children[0])
    return pid


def _pip_settings() -> str:
    """Return pip's configuration on this machine as a file."""
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in _pip_values().items())


def _pip_paths() -> list[str]:
    """Return the folders and files that pip's configuration names."""
    words = " ".join(_pip_values().values()).replace("file://", "").split()
    paths = [word.removesuffix("/simple") for word in words if word.startswith("/")]
    return sorted({one for one in paths if Path(one).exists()})


def _pip_values() -> dict[str, str]:
    listed = _run(sys.executable, "-m", "pip", "config", "list")
    return {
        name.lstrip("."): value
        for name, value in re.findall(r"^[^.]*?(\.?[a-z-]+)='(.*)'$", listed, re.MULTILINE)
    }


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    said = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    _require(done.returncode == 0, f"{' '.join(map(str, command))}\n{said}")
    return done.stdout


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        sys.exit(f"try_containers: {message}")


if __name__ == "__main__":
    main()
