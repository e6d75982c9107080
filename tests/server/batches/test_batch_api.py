"""OpenAI's client with files and batches: from upload to output, and what another tenant sees. No model."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.fake_engine import Prompt
from support.raw_http import wait_until
from support.serving import Server, serving

ENDPOINT: Any = "/v1/completions"
WINDOW: Any = "24h"
OPTIONS = ("--api-key", "one", "--api-key", "two", "--max-files-bytes", "2000000")


def start(model: Path, folder: Path, *options: str) -> Any:
    return serving(model, *options, "--files-dir", str(folder), engine="fake_engine.py")


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start(tiny_llama, tmp_path_factory.mktemp("files"), *OPTIONS) as server:
        yield server


def client_of(server: Server, key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=30)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def lines(*prompts: Any) -> bytes:
    return b"\n".join(
        json.dumps(
            {"custom_id": f"c{at}", "method": "POST", "url": ENDPOINT, "body": {"prompt": prompt}}
        ).encode()
        for at, prompt in enumerate(prompts)
    )


def begin(client: openai.OpenAI, content: bytes, window: Any = WINDOW, **settings: Any) -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window=window, **settings
    )


def wait(client: openai.OpenAI, id_: str, status: str) -> Any:
    wait_until(lambda: client.batches.retrieve(id_).status == status)
    return client.batches.retrieve(id_)


def outputs(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_from_upload_to_output(client: openai.OpenAI) -> None:
    content = lines([1], [1], [Prompt.REFUSE], [1]) + b"\nnonsense"
    begun = begin(client, content, metadata={"run": "7"})
    assert begun.status == "validating" and begun.metadata == {"run": "7"}
    batch = wait(client, begun.id, "completed")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 3, 2)
    done, failed = (outputs(client, one) for one in (batch.output_file_id, batch.error_file_id))
    assert [one["custom_id"] for one in done] == ["c0", "c1", "c3"]
    assert [one["response"]["body"]["choices"][0]["text"] for one in done] == ["yes"] * 3
    assert [one["custom_id"] for one in failed] == ["c2", None]
    assert all(one["response"]["status_code"] == 400 for one in failed)
    listed = client.files.list(purpose="batch_output").data
    assert {batch.output_file_id, batch.error_file_id} <= {one.id for one in listed}
    assert begun.id in [one.id for one in client.batches.list()]
    assert client.files.content(batch.input_file_id).content == content


def test_another_tenant_sees_nothing(server: Server, client: openai.OpenAI) -> None:
    batch = wait(client, begin(client, lines([1])).id, "completed")
    with client_of(server, "two") as other:
        assert not other.files.list().data and not other.batches.list().data
        for call in (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id or ""),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window=WINDOW
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def test_cancelled_batch_has_what_was_answered(client: openai.OpenAI) -> None:
    batch = begin(client, lines([1], [Prompt.STREAM], [Prompt.STREAM]))
    wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed)
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    ended = wait(client, batch.id, "cancelled")
    assert [one["custom_id"] for one in outputs(client, ended.output_file_id)] == ["c0"]
    assert ended.error_file_id is None
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_batch_that_takes_too_long_expires(client: openai.OpenAI) -> None:
    ended = wait(client, begin(client, lines([1], [Prompt.STREAM]), window="1s").id, "expired")
    assert [one["custom_id"] for one in outputs(client, ended.output_file_id)] == ["c0"]
    (late,) = outputs(client, ended.error_file_id)
    assert late["custom_id"] == "c1" and late["error"]["code"] == "batch_expired" and late["response"] is None


def test_batch_survives_a_killed_server(tiny_llama: Path, tmp_path: Path) -> None:
    """Without keys: the batch is that of an address."""
    with start(tiny_llama, tmp_path) as server:
        with client_of(server) as client:
            batch = begin(client, lines([1], [1], [Prompt.STREAM]))
            wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)
        server.stop(signal.SIGKILL)
    journal = next(tmp_path.glob("batches/*.partial"))
    num_answered = journal.read_bytes().count(b'{"line"')
    with start(tiny_llama, tmp_path) as server, client_of(server) as client:
        assert client.batches.retrieve(batch.id).status in ("validating", "in_progress")

        def is_completed() -> bool:
            os.kill(server.engine_pid, signal.SIGUSR1)  # completes the stream, once it is there
            return bool(client.batches.retrieve(batch.id).status == "completed")

        wait_until(is_completed)
        ended = wait(client, batch.id, "completed")
        assert num_answered == 2
        assert [one["custom_id"] for one in outputs(client, ended.output_file_id)] == ["c0", "c1", "c2"]
        assert server.stop() == 0, "a batch does not delay the end of a server"


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({"data": {"purpose": "batch"}}, 415, "multipart"),
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, 400, "file"),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": ("a", b"x")}}, 400, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"file": ("a", b"x" * 1_100_000)}}, 413, "room"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, "form"),
    ],
)
def test_bad_upload_is_refused(server: Server, settings: dict[str, Any], status: int, said: str) -> None:
    settings = {**settings, "headers": {**settings.get("headers", {}), "Authorization": "Bearer one"}}
    answer = httpx.post(f"{server.url}/v1/files", timeout=30, **settings)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_empty_batch_fails(client: openai.OpenAI) -> None:
    ended = wait(client, begin(client, b"\n\n").id, "failed")
    assert "0 requests" in ended.errors.data[0].message


@pytest.mark.parametrize("window", ["soon", "99d"])
def test_wrong_window_is_refused(client: openai.OpenAI, window: str) -> None:
    with pytest.raises(openai.BadRequestError, match="completion_window"):
        begin(client, lines([1]), window=window)


def test_server_without_a_folder_says_so(tiny_server: Server) -> None:
    answer = tiny_server.get("/v1/files")
    assert answer.status_code == 404 and "--files-dir" in answer.json()["error"]["message"]
