"""The inspector's event stream of a real server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from support.serving import Server


@contextmanager
def subscribed(server: Server) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    with httpx.stream("GET", server.url + "/inspector/events", timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_committed_tokens_arrive(tiny_server: Server) -> None:
    body = {"prompt": "the quick fox", "max_tokens": 30, "deterministic": True, "ignore_eos": True, "n": 2}
    answers: list[Any] = []
    with subscribed(tiny_server) as events:
        assert next(events)[0] == "snapshot"
        asking = threading.Thread(
            target=lambda: answers.append(tiny_server.post("/v1/completions", body).json())
        )
        asking.start()
        lengths: dict[int, int] = {}
        ended: dict[int, str] = {}
        steps = []
        while len(ended) < 2:
            kind, data = next(events)
            if kind == "step":
                steps.append(data)
            for one in data["requests"]:
                assert one["from"] <= lengths.get(one["id"], 0), "no token is skipped"
                lengths[one["id"]] = one["from"] + len(one["tokens"])
                assert lengths[one["id"]] == one["committed"]
            ended.update(data.get("ended", ()))
        asking.join()
    prompt = answers[0]["usage"]["prompt_tokens"]
    assert list(lengths.values()) == [prompt + 30] * 2
    assert set(ended.values()) == {"length"}
    assert all(one["passes"] for one in steps if one["ms"])
