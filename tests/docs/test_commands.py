"""The commands of the documentation run as they are written, each block in a folder with the files that it names.

Those that do not run are listed here, with the reason.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import PAGES, ROOT, Block, blocks_of, lines_of
from support.serving import Server, serving

PROGRAMS = ("bash", "curl", "jq")
pytestmark = [
    pytest.mark.long,
    pytest.mark.smollm2,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"one of {PROGRAMS} is not installed"),
]

NOT_RUN = {
    "^make |^pip |^cd ": "the gate, `make dist` and other tests do",
    "^pytest ": "tests/plugin runs examples/pytest",
    "-m pytest|PYTEST|-m abuse|-m support|(scripts|tests)/": "for the development of Holdfast itself",
    "benchmarks/|^holdfast bench|build-llama-cpp": "measures for minutes, or on a GPU; tests/bench starts each",
    "^podman ": "needs a builder of images",
    "--replicas|^serve ": "Ray: tests/ray",
    "(train|eval) (thinking|samples) (?!.*pile)": "trains for long, or on a GPU",
    "Qwen3-8B|model.Q4_K_M": "a model of gigabytes",
    "--install-completion": "changes the settings of the shell",
    "^(lm-eval|inspect|npx|llm|guidellm) ": "`make clients` drives them",
    "^(printf|jq -r|openssl) ": "tests/receipts/test_receipt_docs.py does",
}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]}
RECEIPTS = ("r", "other", "good", "bad", "monday", "tuesday")
ASKED = "generate -d --seed 7 --temperature 0.8 --max-tokens 64 --ignore-eos --receipt-key key.pem"


def reason_of(line: str) -> str | None:
    """Return why a line is not run."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def shell_blocks() -> list[Block]:
    return [one for page in PAGES for one in blocks_of(page, "console", "sh")]


def run(line: str, folder: Path) -> str:
    """Return what a command line writes. It must end with 0."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "KEY": "secret"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}"
    return done.stdout


def start_and_stop(line: str, folder: Path) -> None:
    """Run a server until it is ready."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {sys.executable} -m {line.partition('#')[0]} --port 0"],
        cwd=folder,
        env={**os.environ, "KEY": "secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = Server(process)
    try:
        server.wait_ready()
    finally:
        code = server.stop()
    assert code == 0, server.text


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(None, "--deterministic") as server:
        yield server


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that commands read."""
    folder = tmp_path_factory.mktemp("prepared")
    run("holdfast receipt keygen key.pem > public-key.pem", folder)
    run(f'holdfast {ASKED} --receipt receipt.json "Why is the sea salt?"', folder)
    receipt = json.loads((folder / "receipt.json").read_text())
    for name in RECEIPTS:
        shutil.copyfile(folder / "receipt.json", folder / f"{name}.json")
    (folder / "receipts.jsonl").write_text(f"{json.dumps(receipt)}\n" * 3)
    (folder / "person.json").write_text(json.dumps(SCHEMA))
    (folder / "in.jsonl").write_text(blocks_of(ROOT / "docs" / "batches.md", "json")[0].text)
    (folder / "pile.py").write_text(blocks_of(ROOT / "docs" / "thinking-states.md", "python")[0].text)
    return folder


@pytest.mark.parametrize(
    "block", [one for one in shell_blocks() if not all(reason_of(line) for line, _ in lines_of(one))], ids=str
)
def test_commands_run(block: Block, prepared: Path, server: Server, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "folder"))
    for line, output in lines_of(block):
        if reason_of(line):
            continue
        typed = re.sub(r"(http://)?(127\.0\.0\.1|localhost):8000", server.url, line).replace(
            "MODEL", "smollm2"
        )
        if typed.startswith("holdfast serve"):
            start_and_stop(typed, folder)
        else:
            printed = run(typed, folder)
            assert_shown(output, printed)
            assert not printed.startswith('{"error"'), printed


def assert_shown(expected: str, printed: str) -> None:
    """What a page shows was printed. Line breaks may be others, and so may words that a page cuts off with `...`."""
    pattern = r"\s+".join(r"\S+" if "..." in word else re.escape(word) for word in expected.split())
    assert re.search(pattern, printed), printed


def test_every_reason_is_needed() -> None:
    lines = [line for one in shell_blocks() for line, _ in lines_of(one)]
    assert [one for one in NOT_RUN if not any(re.search(one, line) for line in lines)] == []
