"""Engine processes that die, stop, raise and run out of memory under load: no client sees an error, and every
deterministic answer is that of an undisturbed server, to the bit of its logprobs."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.serving import Server, serving
from support.streams import Client
from support.tiny import tiny_model

PATIENCE = 180.0
SLOW = 0.03  # seconds for each step, so that answers last over several faults
POISON = 666
VOLATILE = {"id", "created", "created_at", "usage", "holdfast", "item_id", "call_id", "system_fingerprint"}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT = {"messages": [{"role": "user", "content": "the dog"}], "max_tokens": 60}

# Path and body. All but a few come once as a stream and once whole.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/completions", {"prompt": "the fox", "max_tokens": 90, "temperature": 0}),
    "sampled": ("/v1/completions", {"prompt": "a fox", "max_tokens": 90, "temperature": 1.0}),
    "logprobs": ("/v1/completions", {"prompt": "my fox", "max_tokens": 70, "logprobs": 3}),
    "n": ("/v1/completions", {"prompt": "two foxes", "max_tokens": 50, "n": 3, "logprobs": 1}),
    "prompts": ("/v1/completions", {"prompt": ["one", "two", "three"], "max_tokens": 40}),
    "stop": (
        "/v1/completions",
        {"prompt": "o fox", "max_tokens": 90, "stop": ["zq", "the"], "min_tokens": 60},
    ),
    "penalties": (
        "/v1/completions",
        {"prompt": "the the", "max_tokens": 70, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    ),
    "echo": ("/v1/completions", {"prompt": "echo fox", "max_tokens": 60, "echo": True, "bad_words": ["dog"]}),
    "chat": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "schema": (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 60}),
    "messages": ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 60}),
}
WHOLE_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "score": ("/v1/score", {"prompt": "the quick", "completion": " brown fox" * 20}),
    "embeddings": ("/v1/embeddings", {"input": ["the quick fox " * 10, "dog"]}),
    "prompt_logprobs": (
        "/v1/completions",
        {"prompt": "the quick fox", "max_tokens": 40, "n": 2, "prompt_logprobs": 1},
    ),
    "receipt": ("/v1/completions", {"prompt": "proof", "max_tokens": 50, "return_receipt": True}),
}


class FaultyServer:
    """A server whose engine can be given faults."""

    def __init__(self, server: Server, control: Path) -> None:
        self.server = server
        self._control = control
        self._settings: dict[str, Any] = {}
        self._number = 0
        self.set_faults(slow=SLOW)

    def set_faults(self, **settings: Any) -> None:
        self._settings = settings
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(settings))
        new.replace(self._control)

    def fail_once(self, fault: str) -> None:
        """The next pass fails, and only that one."""
        self._number += 1
        self.set_faults(**{**self._settings, "raise_once": self._number, "fault": fault})


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.streams.PATIENCE", PATIENCE)


@pytest.fixture
def faulty(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    model = tiny_model(tmp_path_factory.mktemp("resume") / "llama", max_position_embeddings=2048)
    control = tmp_path / "control"
    control.write_text("{}")
    limits = ("--max-num-seqs", "32", "--max-waiting", "256", "--hang-timeout", "3", "--no-inspector")
    with serving(
        model, *limits, engine="faulty_engine.py", engine_settings={"control": str(control)}
    ) as server:
        yield FaultyServer(server, control)


def load(number: int) -> list[tuple[str, dict[str, Any]]]:
    """So many requests of all kinds, a third of them deterministic, all with a seed."""
    kinds = [(path, {**body, "stream": True}) for path, body in KINDS.values()]
    kinds += [*KINDS.values(), *WHOLE_ONLY.values()]
    asked = []
    for at in range(number):
        path, body = kinds[at % len(kinds)]
        settings: dict[str, Any] = {"deterministic": at % 3 == 0}
        if path not in ("/v1/score", "/v1/embeddings"):
            settings["seed"] = at
            if "response_format" not in body and "tools" not in body:
                settings["ignore_eos"] = True
        asked.append((path, {**body, **settings}))
    return asked


def plain(value: Any) -> Any:
    """Without what differs between two answers to the same request."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in VOLATILE}
    return [plain(one) for one in value] if isinstance(value, list) else value


def merge(client: Client) -> Any:
    """What a client got, wherever its chunks were cut."""
    if not client.events:
        body = plain(client.body)
        if "receipt" in client.body.get("holdfast", {}):
            receipt = client.body["holdfast"]["receipt"]
            body["receipt"] = {
                name: receipt[name] for name in ("choices", "settings", "seed", "mode", "fingerprint")
            }
        return body
    merged: dict[Any, Any] = {}

    def add(place: Any, value: Any) -> None:
        if isinstance(value, str) and place[-1] not in ("finish_reason", "type", "role", "name"):
            merged[place] = merged.get(place, "") + value
        elif isinstance(value, list):
            merged.setdefault(place, []).extend(value)
        elif value is not None:
            merged[place] = value

    for event in client.events:
        for choice in event.get("choices", ()):
            at = choice["index"]
            for name in ("text", "finish_reason"):
                add((at, name), choice.get(name))
            delta = choice.get("delta", {})
            add((at, "content"), delta.get("content"))
            for call in delta.get("tool_calls", ()):
                add((at, call["index"], "arguments"), call["function"].get("arguments"))
                add((at, call["index"], "name"), call["function"].get("name"))
            for name, value in (choice.get("logprobs") or {}).items():
                if name != "text_offset":
                    add((at, "logprobs", name), value)
        if event.get("type") in ("response.output_text.delta", "content_block_delta"):
            delta = event["delta"]
            add(("delta",), delta if isinstance(delta, str) else delta.get("text"))
        if event.get("type") == "response.completed":
            add(("output",), plain(event["response"]["output"]))
    return merged


def ask(server: Server, asked: list[tuple[str, dict[str, Any]]]) -> list[Client]:
    return [Client(server, path, **body) for path, body in asked]


def wait_all(clients: list[Client]) -> list[Any]:
    until = time.monotonic() + PATIENCE
    for one in clients:
        while not one.is_over:
            assert time.monotonic() < until, "a request hangs"
            time.sleep(0.02)
    return [merge(one) for one in clients]


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "the condition never became true"
        time.sleep(0.02)


def check_answers(
    asked: list[tuple[str, dict[str, Any]]], clients: list[Client], expected: list[Any]
) -> None:
    """Every answer of this backend is the same whatever runs beside it, also an ordinary one."""
    for (path, body), client, got, wanted in zip(asked, clients, wait_all(clients), expected, strict=True):
        assert client.status == 200 and not client.error, (path, body, client.status, client.body)
        assert got == wanted, (path, body)


def inject(faulty: FaultyServer, fault: str) -> None:
    """Make the engine fail and wait until it serves again."""
    server = faulty.server
    restarts = server.metric("holdfast_engine_restarts_total")
    if fault == "kill -9":
        os.kill(server.engine_pid, signal.SIGKILL)
    elif fault == "SIGSTOP":
        os.kill(server.engine_pid, signal.SIGSTOP)
    else:
        faulty.fail_once(fault)
    if fault == "raise":
        resumed = server.metric("holdfast_requests_resumed_total")
        wait_until(lambda: server.metric("holdfast_requests_resumed_total") > resumed)
    elif fault == "memory":
        time.sleep(1.0)  # an exception, and perhaps a death
    else:
        wait_until(lambda: server.metric("holdfast_engine_restarts_total") > restarts)
    wait_until(lambda: server.get("/health").status_code == 200)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill -9", "SIGSTOP", "raise", "memory", "crash"])
def test_no_client_sees_a_fault(faulty: FaultyServer, fault: str) -> None:
    """Ten times in one server's life, under 64 requests of all kinds."""
    server, asked = faulty.server, load(64)
    frontend = psutil.Process(server.pid)
    clients = ask(server, asked)
    expected = wait_all(clients)
    assert all(one.status == 200 and not one.error for one in clients)
    num_descriptors, memory = frontend.num_fds(), frontend.memory_info().rss
    rng, num_faults, num_rounds = random.Random(fault), 0, 0
    while num_faults < 10:
        num_rounds += 1
        clients = ask(server, asked)
        while num_faults < 10 and not all(one.is_over for one in clients):
            time.sleep(rng.random() * 2.0)
            if sum(one.is_over for one in clients) < 50:
                inject(faulty, fault)
                num_faults += 1
            else:
                break
        check_answers(asked, clients, expected)
    assert server.metric("holdfast_requests_resumed_total") > 0
    server.wait_idle()
    wait_until(lambda: frontend.num_fds() <= num_descriptors + 8)
    assert frontend.memory_info().rss < memory + (64 << 20)
    zombies = [one for one in frontend.children(recursive=True) if one.status() == psutil.STATUS_ZOMBIE]
    assert not zombies


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "exit", "crash", "raise", "stop"])
def test_poison_ends_alone(faulty: FaultyServer, fault: str) -> None:
    """A request that fails whenever it runs ends with an error; its 31 neighbours finish."""
    server, asked = faulty.server, load(31)
    clients = ask(server, asked)
    expected = wait_all(clients)
    faulty.set_faults(slow=SLOW, poison_seed=POISON, fault=fault)
    clients = ask(server, asked)
    wait_until(lambda: sum(bool(one.events) for one in clients) > 5)
    poison = Client(server, prompt="poison", max_tokens=20, seed=POISON, temperature=1.0)
    check_answers(asked, clients, expected)
    wait_all([poison])
    assert poison.status == 500
    assert poison.error["code"] == ("pass_failed" if fault == "raise" else "engine_crashed"), poison.error
    assert server.metric("holdfast_requests_crashed_total") == 1


@pytest.mark.long
def test_requests_that_arrive_during_a_restart_wait(faulty: FaultyServer) -> None:
    server, asked = faulty.server, load(16)
    expected = wait_all(ask(server, asked))
    os.kill(server.engine_pid, signal.SIGKILL)
    wait_until(lambda: server.get("/health").status_code == 503)
    health = server.get("/health")
    if health.status_code == 503:
        assert health.json()["status"] == "restarting" and int(health.headers["retry-after"]) >= 1
    check_answers(asked, clients := ask(server, asked), expected)
    assert len(clients) == 16


@pytest.mark.long
def test_comments_keep_streams_alive(faulty: FaultyServer) -> None:
    """A stream whose engine is restarted gets a comment at once."""
    lines: list[str] = []
    body = {"prompt": "the fox", "max_tokens": 120, "stream": True, "ignore_eos": True}

    def read() -> None:
        url = faulty.server.url + "/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as response:
            lines.extend(response.iter_lines())

    reading = threading.Thread(target=read)
    reading.start()
    wait_until(lambda: faulty.server.metric("holdfast_num_requests_running") == 1)
    time.sleep(0.5)
    inject(faulty, "kill -9")
    reading.join(PATIENCE)
    assert ": keep-alive" in lines and lines[-2] == "data: [DONE]"
