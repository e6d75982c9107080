"""Faults while a real engine serves: requests continue in the next engine, only one that causes the fault ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.bodies import answer_of
from support.faulty_server import FaultyServer, engine_of, faulty_server
from support.raw_http import wait_until
from support.serving import Server, serving
from support.streams import PATIENCE, Client, drop, open_request

MAX_RUNNING = 4
MAX_WAITING = 12
PROMPT = "the quick brown fox"
FIXED: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": 100,
    "deterministic": True,
    "seed": 1,
    "ignore_eos": True,
}
POISON = 666  # the seed of requests whose passes fail
SLOW = 0.1  # seconds for each step: no request ends while the engine is slow


@pytest.fixture(scope="module")
def faulty(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """A KV cache of 24 pages of 16: three of the requests below fit."""
    limits = ("--max-num-seqs", str(MAX_RUNNING), "--max-waiting", str(MAX_WAITING), "--kv-memory", "192KiB")
    with faulty_server(tiny_llama, tmp_path_factory.mktemp("faulty"), *limits) as server:
        yield server


@pytest.fixture
def server(faulty: FaultyServer) -> Iterator[Server]:
    """The server, healthy before and after each test."""
    yield faulty.server
    faulty.set_faults()
    wait_until(lambda: faulty.server.get("/health").status_code == 200)
    faulty.server.wait_idle()


@pytest.fixture(scope="module")
def undisturbed(faulty: FaultyServer) -> str:
    """The fixed answer of an idle server."""
    answer = faulty.server.post("/v1/completions", FIXED)
    assert answer.json()["holdfast"]["mode"] == "certified"
    text: str = answer.json()["choices"][0]["text"]
    return text


def count(server: Server, what: str) -> int:
    return int(server.metric(f"holdfast_num_requests_{what}"))


def long_request(server: Server, **settings: Any) -> Client:
    return Client(server, prompt=PROMPT, max_tokens=300, ignore_eos=True, **settings)


def bits_of(client: Client) -> list[float]:
    """The logprobs of a stream's tokens."""
    logprobs = [choice["logprobs"] for one in client.events for choice in one.get("choices", ())]
    return [value for one in logprobs if one is not None for value in one["token_logprobs"]]


def test_killed_engine_continues_every_request(
    server: Server, faulty: FaultyServer, undisturbed: str
) -> None:
    """Streams and plain requests, running and waiting; one that arrives meanwhile waits."""
    frontend = psutil.Process(server.pid)
    num_descriptors, num_restarts = frontend.num_fds(), server.metric("holdfast_engine_restarts_total")
    watched = {**FIXED, "stream": True, "logprobs": 0}
    expected = Client(server, **watched).wait()
    ordinary = Client(server, **{**watched, "deterministic": False, "temperature": 1.0}).wait()
    faulty.set_faults(slow=SLOW)
    streaming = Client(server, **watched).wait_first()
    sampled = Client(server, **{**watched, "deterministic": False, "temperature": 1.0}).wait_first()
    waiting = [Client(server, **FIXED) for _ in range(4)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == 6)
    os.kill(server.engine_pid, signal.SIGKILL)
    wait_until(lambda: server.get("/health").status_code == 503)
    health = server.get("/health")
    assert health.json()["status"] == "restarting" and int(health.headers["retry-after"]) > 0
    assert health.json()["waiting_requests"] == 6
    wait_until(lambda: "died (signal 9)" in server.get("/health").json()["reason"])
    late = Client(server, **FIXED)
    wait_until(lambda: engine_of(server) is not None)
    os.kill(server.engine_pid, signal.SIGKILL)
    faulty.set_faults()
    for one, undisturbed_one in ((streaming, expected), (sampled, ordinary)):
        assert one.wait().is_done and not one.error
        assert (one.text, bits_of(one)) == (undisturbed_one.text, bits_of(undisturbed_one))
    assert {one.wait().text for one in (*waiting, late)} == {undisturbed}
    assert server.metric("holdfast_engine_restarts_total") == num_restarts + 2
    assert server.metric("holdfast_requests_resumed_total") >= 6
    wait_until(lambda: not zombies(frontend))
    wait_until(lambda: frontend.num_fds() <= num_descriptors)


def zombies(parent: psutil.Process) -> list[int]:
    """Processes below it that have ended and were not waited for."""
    found = []
    for child in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


def test_request_whose_pass_always_fails_ends_alone(server: Server, faulty: FaultyServer) -> None:
    """Streams of every API end with its error events; requests beside them finish."""
    faulty.set_faults(slow=SLOW)
    settings: dict[str, Any] = {"stream": True, "ignore_eos": True, "seed": POISON}
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
    response = {"input": "hi", "max_output_tokens": 200}
    streams = [
        Client(server, "/v1/messages", **message, **settings),
        Client(server, "/v1/responses", **response, **settings),
    ]
    neighbour = long_request(server, stream=True)
    wait_until(lambda: all(len(one.events) > 6 for one in streams))
    faulty.set_faults(poison_seed=POISON)
    messages, responses = (one.wait() for one in streams)
    assert neighbour.wait().is_done and not neighbour.error
    error = messages.events[-1]
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert error["error"]["details"] == {"error_code": "pass_failed"}
    said, failed = responses.events[-2:]
    assert (said["type"], said["code"]) == ("error", "pass_failed")
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": said["message"]}
    numbers = [one["sequence_number"] for one in responses.events]
    assert numbers == list(range(len(numbers)))
    assert not messages.is_done and not responses.is_done  # these streams have no [DONE]
    assert all("secret" not in one["message"] for one in (error["error"], said))


def test_requests_of_a_failed_pass_continue(server: Server, faulty: FaultyServer, undisturbed: str) -> None:
    faulty.set_faults(slow=SLOW)
    restarts = server.metric("holdfast_engine_restarts_total")
    running = [
        Client(server, **{**FIXED, "deterministic": at < 2}, stream=at % 2 == 0) for at in range(MAX_RUNNING)
    ]
    wait_until(lambda: count(server, "running") == MAX_RUNNING)
    waiting = [Client(server, **FIXED) for _ in range(3)]
    wait_until(lambda: count(server, "waiting") == len(waiting))
    faulty.set_faults(raise_once=1)
    assert {one.wait().text for one in (*running, *waiting)} == {undisturbed}
    server.wait_for("an internal secret")  # the log says it
    assert server.metric("holdfast_engine_restarts_total") == restarts
    assert server.get("/health").status_code == 200


@pytest.mark.long
def test_preemption_keeps_answers_unchanged(server: Server, faulty: FaultyServer, undisturbed: str) -> None:
    """Preempted requests start again and give the same answer."""
    num_before = server.metric("holdfast_num_preemptions_total")
    faulty.set_faults(slow=SLOW)  # until all have arrived: one by one they might fit
    other = [
        Client(server, prompt=f"{at} dogs", max_tokens=150, temperature=1.0, ignore_eos=True)
        for at in range(6)
    ]
    wait_until(lambda: count(server, "running") == MAX_RUNNING)
    same = [Client(server, **FIXED, stream=at % 2 == 0) for at in range(6)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == len(other) + len(same))
    faulty.set_faults()
    assert {one.wait().text for one in same} == {undisturbed}
    assert [one.wait().status for one in other] == [200] * 6
    assert server.metric("holdfast_num_preemptions_total") > num_before


def test_request_that_can_never_fit_is_refused(server: Server) -> None:
    refused = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 400})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.long)])
def test_disconnect_during_the_answer_frees_pages(server: Server, faulty: FaultyServer, stream: bool) -> None:
    aborted = server.metric("holdfast_request_success_total{.*abort.*}")
    faulty.set_faults(slow=SLOW)
    body = {"prompt": PROMPT, "max_tokens": 300, "n": 3, "stream": stream, "ignore_eos": True}
    connection = open_request(server, body)
    wait_until(lambda: server.metric("holdfast_num_requests_running") == 3)
    drop(connection)
    server.wait_idle()
    assert server.metric("holdfast_request_success_total{.*abort.*}") == aborted + 1


def test_disconnects_at_any_moment_leak_nothing(server: Server, undisturbed: str) -> None:
    """While the body is read, the prompt tokenised or rendered, a grammar compiled, and so on."""
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 50}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    kinds = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/chat/completions", {**chat, "response_format": form}),
        ("/v1/completions", {"prompt": [PROMPT] * 4, "max_tokens": 50, "stream": True}),
        ("/v1/score", {"prompt": PROMPT, "completion": PROMPT}),
    ]

    def disconnect(at: int) -> None:
        path, body = kinds[at % len(kinds)]
        connection = open_request(server, body, path)
        threading.Event().wait(0.004 * (at // len(kinds)))
        drop(connection)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(disconnect, range(60)))
    server.wait_idle()
    assert server.post("/v1/completions", FIXED).json()["choices"][0]["text"] == undisturbed
    answer_of(server, "/v1/chat/completions", {**chat, "response_format": form})


def test_sigterm_under_load_drains_and_leaves_nothing(faulty: FaultyServer, undisturbed: str) -> None:
    """Running and queued requests are answered, new ones refused, and no process is left. Ends this server."""
    server = faulty.server
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    faulty.set_faults(slow=SLOW)
    asked = [Client(server, **FIXED, stream=at % 2 == 0) for at in range(2 * MAX_RUNNING)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == len(asked))
    for pid in (server.engine_pid, server.pid):  # as systemd stops a unit
        os.kill(pid, signal.SIGTERM)
    server.wait_for(f"draining: {len(asked)} requests")
    refused = server.post("/v1/completions", FIXED)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
    faulty.set_faults()
    assert {one.wait().text for one in asked} == {undisturbed}
    assert server.process.wait(PATIENCE) == 0
    assert psutil.wait_procs(processes, PATIENCE)[1] == []


@pytest.fixture(scope="module")
def cramped(tiny_llama: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a disk with no room for a certificate. Its kernels were built before."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "kernels").symlink_to(cache_dir / "kernels")
    with serving(
        tiny_llama,
        engine="faulty_engine.py",
        engine_settings={"max_file": 1000},
        environment={"HOLDFAST_CACHE_DIR": str(cache)},
    ) as server:
        server.cache = cache  # type: ignore[attr-defined]
        yield server


def test_full_disk_does_not_stop_the_engine(cramped: Server, undisturbed: str) -> None:
    cramped.wait_for("the certificate could not be kept")
    answer = cramped.post("/v1/completions", FIXED).json()
    assert answer["choices"][0]["text"] == undisturbed and answer["holdfast"]["mode"] == "certified"
    kept = cramped.cache / "certificates"  # type: ignore[attr-defined]
    assert list(kept.iterdir()) == []


def test_engine_ends_when_its_frontend_is_killed(cramped: Server) -> None:
    engine = psutil.Process(cramped.engine_pid)
    family = [engine, *engine.children(recursive=True)]
    os.kill(cramped.pid, signal.SIGKILL)
    assert psutil.wait_procs(family, PATIENCE)[1] == []
