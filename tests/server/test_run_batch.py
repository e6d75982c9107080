"""`holdfast run-batch` against a running server: all routes, twice the same bytes, and its receipts replay."""

import json
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.main import app
from support.batch_files import write_batch
from support.serving import Server


def test_two_runs_give_the_same_bytes_and_receipts_replay(tiny_server: Server, tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "in.jsonl", 10)
    for name in ("first.jsonl", "second.jsonl"):
        ran = CliRunner().invoke(
            app, ["run-batch", str(batch), str(tmp_path / name), "--url", tiny_server.url]
        )
        assert ran.exit_code == 0, ran.stderr
        assert "11 lines answered, 3 of them with an error" in ran.stderr
    first = (tmp_path / "first.jsonl").read_bytes()
    assert first == (tmp_path / "second.jsonl").read_bytes()
    statuses = [json.loads(line)["response"]["status_code"] for line in first.splitlines()]
    assert statuses == [200, 200, 200, 200, 400] * 2 + [400]
    kept = json.loads((tmp_path / "first.receipts.jsonl").read_text().splitlines()[1])
    assert tiny_server.post("/v1/replay", {"receipt": kept["receipt"]}).json()["same"]
