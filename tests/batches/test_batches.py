"""Batch files: what a line becomes, what a crash leaves, what is tried again."""

import asyncio
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.batches import lines as lines_module
from holdfast.batches import runner as runner_module
from holdfast.batches.journal import Journal, to_json
from holdfast.batches.lines import BatchLine, BatchRequest, LineParser, read_lines
from holdfast.batches.runner import BatchRunner
from holdfast.errors import ConfigError, ServerError

ABOUT = {"input": "a"}


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> bytes:
    content = {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "a", **body}}
    return json.dumps(content).encode()


class StubServer:
    """Answers after a moment, with a different time and different statistics each time."""

    def __init__(self, *, dies_after: int | None = None, busy: int = 0, status: int = 200) -> None:
        self.asked: Counter[str] = Counter()
        self.dies_after = dies_after
        self.busy = busy
        self.status = status

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        total = self.asked.total()
        if self.dies_after is not None and total >= self.dies_after:
            raise KeyboardInterrupt
        await asyncio.sleep(zlib.crc32(body["prompt"].encode()) % 7 / 1000)
        if self.busy:
            self.busy -= 1
            return httpx.Response(429, headers={"Retry-After": "0"})
        self.asked[body["prompt"]] += 1
        if self.status != 200:
            return httpx.Response(self.status, text="no")
        about = {"mode": "certified", "seed": body["seed"], "stats": {"windows": total}}
        about["receipt"] = {"format": "r", "salt": total}
        usage = {"total_tokens": 1, "prompt_tokens_details": {"cached_tokens": total}}
        content = {"id": f"cmpl-{request.headers['X-Request-Id']}", "created": total, "usage": usage}
        return httpx.Response(200, json={**content, "holdfast": about, "text": body["prompt"].upper()})


def run(stub: StubServer, path: Path, about: dict[str, str] = ABOUT) -> list[dict[str, Any]]:
    """Answer a batch, or go on with it. Returns what the journal has."""

    async def answer() -> list[dict[str, Any]]:
        journal = Journal(path.with_suffix(".partial"), about)
        try:
            async with httpx.AsyncClient(
                transport=httpx.MockTransport(stub), base_url="http://stub"
            ) as client:
                await BatchRunner(client, journal, LineParser(), concurrency=4).run(path)
            return list(journal.records())
        finally:
            journal.close()

    return asyncio.run(answer())


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(line(f"c{number}", prompt=f"p{number}") for number in range(20)))
    return path


def outputs(records: list[dict[str, Any]]) -> bytes:
    return b"\n".join(to_json(one["output"]) for one in records)


def test_batch_that_was_cut_off_gives_the_same_output_and_asks_no_answered_line_again(batch: Path) -> None:
    whole = outputs(run(StubServer(), batch))
    journal = batch.with_suffix(".partial")
    journal.unlink()
    answered: Counter[str] = Counter()
    for num in (3, 0, 5):
        stub = StubServer(dies_after=num)
        with pytest.raises(KeyboardInterrupt):
            run(stub, batch)
        answered += stub.asked
    num_before = len(journal.read_bytes().splitlines()) - 1
    last = StubServer()
    assert outputs(run(last, batch)) == whole
    assert last.asked.total() == 20 - num_before and max(last.asked.values()) == 1
    assert answered.total() >= num_before > 0


def test_journal_that_is_cut_at_any_byte_is_gone_on_with(batch: Path) -> None:
    batch.write_bytes(line("a", prompt="p1") + b"\n" + line("b", prompt="p2"))
    whole = outputs(run(StubServer(), batch))
    journal = batch.with_suffix(".partial")
    written = journal.read_bytes()
    for length in range(0, len(written), 37):
        journal.write_bytes(written[:length])
        num_whole = max(0, written[:length].count(b"\n") - 1)
        stub = StubServer()
        assert outputs(run(stub, batch)) == whole
        assert stub.asked.total() == 2 - num_whole


def test_damaged_record_is_computed_again(batch: Path) -> None:
    whole = outputs(run(StubServer(), batch))
    journal = batch.with_suffix(".partial")
    journal.write_bytes(journal.read_bytes().replace(b'"text":"P7"', b'"text":"Q7"'))
    stub = StubServer()
    assert outputs(run(stub, batch)) == whole
    assert stub.asked == {"p7": 1}


def test_what_differs_from_run_to_run_is_left_out_and_the_receipt_is_apart(batch: Path) -> None:
    record = run(StubServer(), batch)[3]
    body = record["output"]["response"]["body"]
    assert body["created"] == 0 and body["usage"] == {"total_tokens": 1}
    assert body["holdfast"].keys() == {"seed"} and body["holdfast"]["seed"] < 1 << 53
    assert record["receipts"][0]["format"] == "r"
    assert body["id"].removeprefix("cmpl-") == record["output"]["response"]["request_id"]


def test_seed_is_that_of_the_line_unless_it_has_one() -> None:
    def seed_of(raw: bytes, number: int = 1) -> int:
        _, request = LineParser().parse(BatchLine(number, raw))
        assert isinstance(request, BatchRequest) and request.body["deterministic"] is True
        return int(request.body["seed"])

    assert seed_of(line("a")) == seed_of(line("a"), number=9) != seed_of(line("b"))
    assert seed_of(line("c", seed=5)) == 5


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"nonsense", None),
        (b"\xff{}", None),
        (b"[" * 100_000, None),
        (b"[]", None),
        (b'{"custom_id":"a","custom_id":"b"}', None),
        (b'{"custom_id":"a","url":"/v1/completions","body":{"n":NaN}}', None),
        (b'{"custom_id":"a","url":"/v1/completions","body":{"n":' + b"1" * 9999 + b"}}", None),
        (b"{}", "custom_id"),
        (b'{"custom_id":7}', "custom_id"),
        (line("used"), "custom_id"),
        (line("a", url="/v1/models"), "url"),
        (b'{"custom_id":"a","method":"GET"}', "method"),
        (b'{"custom_id":"a","url":"/v1/completions","body":[]}', "body"),
        (line("a", stream=True), "stream"),
    ],
)
def test_hostile_line_ends_alone(tmp_path: Path, raw: bytes, param: str | None) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line("used", prompt="first") + b"\r\n\n" + raw + b"\n" + line("c", prompt="last"))
    stub = StubServer()
    first, bad, last = (one["output"]["response"] for one in run(stub, path))
    assert (first["status_code"], bad["status_code"], last["status_code"]) == (200, 400, 200)
    assert bad["body"]["error"]["param"] == param
    assert stub.asked == {"first": 1, "last": 1}


def test_line_that_is_too_long_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 200)
    path = tmp_path / "in.jsonl"
    path.write_bytes(line("a" * 900) + b"\n" + line("b"))
    assert [(one.number, one.raw is None) for one in read_lines(path)] == [(1, True), (2, False)]


def test_busy_server_is_asked_again_and_another_error_is_the_answer(batch: Path) -> None:
    assert all(one["output"]["response"]["status_code"] == 200 for one in run(StubServer(busy=9), batch))
    batch.with_suffix(".partial").unlink()
    failed = run(StubServer(status=500), batch)
    assert {one["output"]["response"]["body"]["error"]["message"] for one in failed} == {"no"}


def test_server_that_is_gone_or_refuses_the_key_ends_the_run(
    batch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerError, match="key"):
        run(StubServer(status=401), batch)
    monkeypatch.setattr(runner_module, "_SILENCE_SECONDS", -1)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServerError, match="gone: refused"):
        run(gone, batch)  # type: ignore[arg-type]


def test_journal_of_another_batch_or_in_use_or_foreign_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    journal = Journal(path, ABOUT)
    with pytest.raises(ConfigError, match="in use"):
        Journal(path, ABOUT)
    journal.close()
    with pytest.raises(ConfigError, match="begun with another input"):
        Journal(path, {"input": "b"})
    path.write_text("my notes\n")
    with pytest.raises(ConfigError, match="no journal"):
        Journal(path, ABOUT)
    assert path.read_text() == "my notes\n"
