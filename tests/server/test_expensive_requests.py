"""Expensive requests do not delay other requests: a stream goes on with the same tokens, and /health responds."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from support.bodies import COMPLETIONS, Body, chat, completion, object_schema, raw, tool, user
from support.serving import Server

# The most expensive bodies, refused or not: prompts, lists, bad words, structured output, templates.
EXPENSIVE = (
    completion("prompt", prompt="a" * 8_000_000),
    completion("ids", prompt=[5] * 500_000),
    completion("stop", stop="a" * 8_000_000),
    completion("allowed", prompt=[5], allowed_token_ids=[5] * 65_000),
    completion("words", bad_words=["a" * 4096] * 1024),
    completion("long words", bad_words=["a" * 4096] * 4),
    completion("unknown", **{f"x{one}": 1 for one in range(16_000)}),
    completion("schema", guided_json=object_schema(2000)),
    completion("enum", guided_json={"enum": [f"{one}x" for one in range(6_000)]}),
    completion("regex", guided_regex="|".join(f"a{one}b*" for one in range(5_000))),
    completion("many answers", n=8, logprobs=20, max_tokens=8),
    chat("tools", tools=[tool(f"f{one}", description="a" * 900) for one in range(128)]),
    chat("variables", chat_template_kwargs={"x": [[1]] * 8_000}),
    chat("messages", messages=[user("")] * 2048),
    chat("message", messages=[user("a" * 8_000_000)]),
    chat("parts", messages=[user([{"type": "text", "text": "a"}] * 16_000)]),
    raw("brackets", b"[" * 8_000_000),
    raw("keys", b"{" + b'"a":1,' * 500_000 + b'"b":1}'),
    raw("escapes", b'{"prompt": "' + b"\\u0041" * 1_300_000 + b'"}'),
    raw(
        "receipt",
        b'{"receipt": {"format": "holdfast-receipt/1", "x": [%s1]}}' % (b"1," * 400_000),
        path="/v1/replay",
    ),
)
STREAM: dict[str, Any] = {
    "prompt": "the quick",
    "max_tokens": 300,
    "seed": 7,
    "deterministic": True,
    "ignore_eos": True,
}


class Stream:
    """A deterministic response, and when its tokens arrived."""

    def __init__(self, url: str) -> None:
        self.text = ""
        self.times = [time.monotonic()]
        with httpx.stream("POST", url + COMPLETIONS, json={**STREAM, "stream": True}, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    self.times.append(time.monotonic())

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


def send(url: str, one: Body) -> int:
    headers = {"content-type": "application/json"}
    return httpx.post(url + one.path, content=one.raw, headers=headers, timeout=60).status_code


def test_expensive_requests_do_not_delay_others(tiny_server: Server) -> None:
    alone = Stream(tiny_server.url)
    streams: list[Stream] = []
    health: list[float] = []
    is_over = threading.Event()

    def keep_streaming() -> None:
        while not is_over.is_set():
            streams.append(Stream(tiny_server.url))

    def poll_health() -> None:
        with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
            while not is_over.is_set():
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                health.append(time.monotonic() - began)
                is_over.wait(0.01)

    with ThreadPoolExecutor(4) as pool:
        observers = [pool.submit(keep_streaming), pool.submit(poll_health)]
        try:
            statuses = list(pool.map(lambda one: send(tiny_server.url, one), EXPENSIVE))
        finally:
            is_over.set()
        for one in observers:
            one.result()
    assert set(statuses) <= {200, 400}
    assert all(one.text == alone.text for one in streams) and alone.text
    gaps = f"alone {alone.longest_gap:.2f} s, then {max(one.longest_gap for one in streams):.2f} s"
    print(f"{len(streams)} streams, longest gap {gaps}; health {max(health):.2f} s of {len(health)}")
    # The bounds are wide, because the machine may be busy: a request that blocks the others blocks for seconds.
    assert max(one.longest_gap for one in streams) < 3.0 + 10 * alone.longest_gap, gaps
    assert max(health) < 3.0
    tiny_server.wait_idle()
