"""Whoever means harm does not slow the others down: a stream goes on, answers stay the same, and health is told at once."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from support.hostile import COMPLETIONS, Hostile, chat, many, plain, raw, said, tool
from support.serving import Server

# The dearest of what is refused, and of what is not: bodies, prompts, lists, words, forms, templates.
DEAR = (
    plain("prompt", prompt="a" * 8_000_000),
    plain("ids", prompt=[5] * 500_000),
    plain("stop", stop="a" * 8_000_000),
    plain("allowed", prompt=[5], allowed_token_ids=[5] * 65_000),
    plain("words", bad_words=["a" * 4096] * 1024),
    plain("long words", bad_words=["a" * 4096] * 4),
    plain("unknown", **{f"x{one}": 1 for one in range(16_000)}),
    plain("schema", guided_json=many(2000)),
    plain("enum", guided_json={"enum": [f"{one}x" for one in range(6_000)]}),
    plain("regex", guided_regex="|".join(f"a{one}b*" for one in range(5_000))),
    plain("many answers", n=8, logprobs=20, max_tokens=8),
    chat("tools", tools=[tool(f"f{one}", description="a" * 900) for one in range(128)]),
    chat("variables", chat_template_kwargs={"x": [[1]] * 8_000}),
    chat("messages", messages=[{"role": "user", "content": ""}] * 2048),
    said("message", "a" * 8_000_000),
    said("parts", [{"type": "text", "text": "a"}] * 16_000),
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
    """A deterministic answer, and when its tokens came."""

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


def attack(url: str, one: Hostile) -> int:
    headers = {"content-type": "application/json"}
    return httpx.post(url + one.path, content=one.body, headers=headers, timeout=60).status_code


def test_the_dearest_requests_hold_nobody_up(tiny_server: Server) -> None:
    alone = Stream(tiny_server.url)
    streams: list[Stream] = []
    health: list[float] = []
    is_over = threading.Event()

    def go_on_streaming() -> None:
        while not is_over.is_set():
            streams.append(Stream(tiny_server.url))

    def ask_for_health() -> None:
        with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
            while not is_over.is_set():
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                health.append(time.monotonic() - began)
                is_over.wait(0.01)

    with ThreadPoolExecutor(4) as pool:
        watching = [pool.submit(go_on_streaming), pool.submit(ask_for_health)]
        try:
            statuses = list(pool.map(lambda one: attack(tiny_server.url, one), DEAR))
        finally:
            is_over.set()
        for one in watching:
            one.result()
    assert set(statuses) <= {200, 400}
    assert all(one.text == alone.text for one in streams) and alone.text
    gaps = f"alone {alone.longest_gap:.2f} s, then {max(one.longest_gap for one in streams):.2f} s"
    print(f"{len(streams)} streams, longest gap {gaps}; health {max(health):.2f} s of {len(health)}")
    # Not a measurement: a machine may be busy. But a request that held up everybody held them up for seconds.
    assert max(one.longest_gap for one in streams) < 3.0 + 10 * alone.longest_gap, gaps
    assert max(health) < 3.0
    tiny_server.wait_idle()
