"""Clients that lose their connection and come back with Last-Event-ID."""

import json
import time
from collections import defaultdict
from typing import Any

import httpx
import pytest
from openai import OpenAI

from support.serving import Server
from support.streams import PATIENCE

MESSAGES = [{"role": "user", "content": "the dog and the sea"}]
SHARED = {"model": "tiny", "seed": 3, "deterministic": True, "ignore_eos": True, "request_id": "same"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the dog", "max_tokens": 40, "n": 2, "logprobs": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 24, "logprobs": True},
    "/v1/responses": {"input": MESSAGES, "max_output_tokens": 24},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 24},
}


def read_events(response: httpx.Response, num_events: int | None = None) -> list[tuple[str, str]]:
    """(id, data) of the first events of a stream, or of all."""
    events, event_id = [], ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            events.append((event_id, line.removeprefix("data: ")))
            if len(events) == num_events:
                break
    return events


def stream(
    server: Server, path: str, body: Any, num_events: int | None = None, last: str | None = None
) -> list[tuple[str, str]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with httpx.stream("POST", server.url + path, json=body, headers=headers, timeout=PATIENCE) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return read_events(response, num_events)


def texts_of(events: list[tuple[str, str]]) -> dict[int, str]:
    """The text of each choice, in any API's form."""
    texts: defaultdict[int, str] = defaultdict(str)
    for event in (json.loads(data) for _, data in events if data != "[DONE]"):
        for choice in event.get("choices", ()):
            texts[choice["index"]] += (
                choice["text"] if "text" in choice else choice["delta"].get("content", "")
            )
        if event.get("type") == "response.output_text.delta":
            texts[0] += event["delta"]
        elif event.get("type") == "content_block_delta":
            texts[0] += event["delta"]["text"]
    return dict(texts)


@pytest.mark.parametrize("path", ROUTES, ids=lambda path: path.removeprefix("/v1/"))
def test_reconnecting_client_gets_the_rest(tiny_server: Server, path: str) -> None:
    body = {**SHARED, **ROUTES[path], "stream": True, "resumable": True}
    undisturbed = stream(tiny_server, path, {**body, "resumable": False})
    assert {event_id for event_id, _ in undisturbed} == {""}
    start = stream(tiny_server, path, body, num_events=3)
    rest = stream(tiny_server, path, body, last=start[-1][0])
    numbers = [int(event_id.rsplit("-", 1)[1]) for event_id, _ in start + rest]
    assert numbers == list(range(len(numbers))) and len(numbers) > 4
    assert len({event_id.rsplit("-", 1)[0] for event_id, _ in start + rest}) == 1
    assert texts_of(start + rest) == texts_of(undisturbed) and texts_of(undisturbed)[0]
    assert rest[-1][1] == undisturbed[-1][1] or path == "/v1/responses"
    assert stream(tiny_server, path, body, last=start[0][0]) == start[1:] + rest  # also after its end


def test_openai_client_reads_a_resumable_stream(tiny_server: Server) -> None:
    client = OpenAI(base_url=f"{tiny_server.url}/v1", api_key="unused", timeout=PATIENCE)
    settings: dict[str, Any] = {"model": "tiny", "prompt": "the dog", "max_tokens": 8, "seed": 1}
    chunks = client.completions.create(**settings, stream=True, extra_body={"resumable": True})
    plain = client.completions.create(**settings)
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text


def test_second_attempt_after_the_timeout_is_gone(deterministic_server: Server) -> None:
    """The server keeps streams for a second."""
    body = {"prompt": "the dog", "max_tokens": 8, "stream": True, "resumable": True}
    last = stream(deterministic_server, "/v1/completions", body, num_events=1)[0][0]
    stream(deterministic_server, "/v1/completions", None, last=last)
    time.sleep(1.5)
    gone = deterministic_server.post("/v1/completions", body, headers={"Last-Event-ID": last})
    assert gone.status_code == 410 and gone.json()["error"]["code"] == "stream_gone"
    assert gone.json()["error"]["param"] == "Last-Event-ID" and "1 seconds" in gone.json()["error"]["message"]
    assert deterministic_server.metric("holdfast_streams_kept") == 0
    assert deterministic_server.metric("holdfast_streams_resumed_total") >= 1


@pytest.mark.parametrize(
    ("path", "event_id", "status", "code"),
    [
        ("/v1/completions", "7", 404, "stream_not_found"),
        ("/v1/completions", "A" * 32 + "-7", 404, "stream_not_found"),
        ("/v1/completions", "", 404, "stream_not_found"),
        ("/v1/chat/completions", "9" * 5000, 404, "stream_not_found"),
        ("/v1/messages", "\u00e4-1", 404, "stream_not_found"),
    ],
    ids=["number", "invented", "empty", "long", "not ascii"],
)
def test_bad_event_id_is_refused(
    tiny_server: Server, path: str, event_id: str, status: int, code: str
) -> None:
    refused = tiny_server.post(path, {}, headers={"Last-Event-ID": event_id.encode("latin-1")})
    assert refused.status_code == status
    error = refused.json()["error"]
    assert code == (error["details"]["error_code"] if path == "/v1/messages" else error["code"])


def test_other_body_and_missing_stream_are_refused(tiny_server: Server) -> None:
    body = {"prompt": "the dog", "max_tokens": 4, "stream": True, "resumable": True}
    last = stream(tiny_server, "/v1/completions", body, num_events=1)[0][0]
    other = tiny_server.post("/v1/completions", {**body, "max_tokens": 5}, headers={"Last-Event-ID": last})
    assert other.status_code == 400 and "another body" in other.json()["error"]["message"]
    twice = httpx.post(
        tiny_server.url + "/v1/completions",
        json=body,
        headers=[("Last-Event-ID", last)] * 2,
        timeout=PATIENCE,
    )
    assert twice.status_code == 400
    for path, fields in ROUTES.items():
        whole = tiny_server.post(path, {**fields, "resumable": True})
        assert whole.status_code == 400 and "resumable requires stream" in whole.json()["error"]["message"]
