"""`holdfast run-batch`: against a server, and killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.batch_files import write_batch
from support.serving import Server, serving


@pytest.fixture
def quick_server(tiny_llama: Path):
    with serving(tiny_llama, "--max-num-seqs", "16", "--served-model-name", "tiny") as server:
        yield server


@pytest.mark.long
def test_batch_that_is_killed_three_times_gives_the_file_of_an_undisturbed_one(
    quick_server: Server, tmp_path: Path
) -> None:
    batch = write_batch(tmp_path / "in.jsonl", 500)

    def start(output: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "holdfast", "run-batch", batch, tmp_path / output]
        return subprocess.Popen([*command, "--url", quick_server.url, "--concurrency", "8"])

    assert start("whole.jsonl").wait(120) == 0
    journal = tmp_path / "killed.jsonl.partial"
    for number in range(1, 4):
        child = start("killed.jsonl")
        until = time.monotonic() + 60
        while not journal.exists() or journal.read_bytes().count(b"\n") < 100 * number:
            assert time.monotonic() < until and child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert start("killed.jsonl").wait(120) == 0
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert (tmp_path / "killed.jsonl").read_bytes() == whole
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [one["custom_id"] for one in lines] == [*(f"c{number}" for number in range(500)), None]
    statuses = [one["response"]["status_code"] for one in lines]
    assert statuses == [200, 200, 200, 200, 400] * 100 + [400]
    receipts = (tmp_path / "killed.receipts.jsonl").read_text().splitlines()
    assert [json.loads(one)["custom_id"] for one in receipts] == [
        f"c{number}" for number in range(500) if number % 5 in (0, 1, 3)
    ]
    assert not journal.exists()
