"""What goes wrong while a real engine serves: those it concerns are told, the others finish, and the server goes on."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

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
SLOW = 0.1  # seconds a step: whatever is asked for goes on until it is no longer slow


class Odd:
    """A server whose engine can be told to misbehave."""

    def __init__(self, server: Server, control: Path) -> None:
        self.server = server
        self._control = control

    def tell(self, **settings: Any) -> None:
        """From the engine's next step on."""
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(settings))
        new.replace(self._control)


@pytest.fixture(scope="module")
def odd(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    """A KV cache of 24 pages of 16: three of the requests below fit."""
    control = tmp_path_factory.mktemp("odd") / "control"
    control.write_text("{}")
    limits = ("--max-num-seqs", str(MAX_RUNNING), "--max-waiting", str(MAX_WAITING), "--kv-memory", "192KiB")
    with serving(
        tiny_llama, *limits, engine="odd_engine.py", engine_settings={"control": str(control)}
    ) as server:
        yield Odd(server, control)


@pytest.fixture
def server(odd: Odd) -> Iterator[Server]:
    """The server, well at the beginning and at the end."""
    yield odd.server
    odd.tell()
    wait_until(lambda: odd.server.get("/health").status_code == 200)
    odd.server.wait_idle()


@pytest.fixture(scope="module")
def undisturbed(odd: Odd) -> str:
    """The fixed answer, when nobody else asks."""
    answer = odd.server.post("/v1/completions", FIXED)
    assert answer.json()["holdfast"]["mode"] == "certified"
    text: str = answer.json()["choices"][0]["text"]
    return text


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


def count(server: Server, what: str) -> int:
    return int(server.metric(f"holdfast_num_requests_{what}"))


def long_request(server: Server, **settings: Any) -> Client:
    return Client(server, prompt=PROMPT, max_tokens=300, ignore_eos=True, **settings)


def test_an_engine_that_is_killed(server: Server, odd: Odd, undisturbed: str) -> None:
    """Under load; and again while it loads."""
    front = psutil.Process(server.pid)
    num_descriptors, num_restarts = front.num_fds(), server.metric("holdfast_engine_restarts_total")
    odd.tell(slow=SLOW)
    streaming = [long_request(server, stream=True).wait_first() for _ in range(2)]
    waiting = [long_request(server, deterministic=True) for _ in range(4)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == 6)
    os.kill(server.engine_pid, signal.SIGKILL)
    for one in streaming:
        assert one.wait().is_done and one.error["code"] == "engine_stopped" and one.status == 200
    for one in waiting:
        assert one.wait().status == 503 and one.error["code"] == "engine_stopped"
        assert int(one.headers["retry-after"]) > 0
    health = server.get("/health")
    assert health.status_code == 503 and health.json() == {"status": "starting"}
    refused = server.post("/v1/completions", FIXED)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_not_ready"
    wait_until(lambda: engine_of(server) is not None)
    os.kill(server.engine_pid, signal.SIGKILL)
    odd.tell()
    wait_until(lambda: server.get("/health").status_code == 200)
    assert server.post("/v1/completions", FIXED).json()["choices"][0]["text"] == undisturbed
    assert server.metric("holdfast_engine_restarts_total") == num_restarts + 2
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in front.children(recursive=True))
    wait_until(lambda: front.num_fds() <= num_descriptors)


def engine_of(server: Server) -> int | None:
    try:
        return server.engine_pid
    except AssertionError:
        return None


def test_a_pass_that_raises(server: Server, odd: Odd) -> None:
    """Ends the requests that were in it. Those who still wait for a place are answered as if nothing had been."""
    odd.tell(slow=SLOW)
    running = [long_request(server, stream=at % 2 == 0, deterministic=at < 2) for at in range(MAX_RUNNING)]
    wait_until(lambda: count(server, "running") == MAX_RUNNING)
    waiting = [Client(server, prompt=PROMPT, max_tokens=5) for _ in range(3)]
    wait_until(lambda: count(server, "waiting") == len(waiting))
    odd.tell(raise_once=1)
    for one in running:
        assert one.wait().error["code"] == "pass_failed" and one.error["type"] == "server_error"
        assert "secret" not in one.error["message"] and "passwd" not in one.error["message"]
        assert one.status == (200 if one.events else 500)
    assert [one.wait().status for one in waiting] == [200] * len(waiting)
    assert "a secret of the inside" in server.text  # that is what the log is for
    assert server.get("/health").status_code == 200


def test_out_of_pages(server: Server, odd: Odd, undisturbed: str) -> None:
    """Requests give way to older ones and start again; what they answer stays the same."""
    num_before = server.metric("holdfast_num_preemptions_total")
    odd.tell(slow=SLOW)  # until all are there: those who come one by one may fit
    other = [
        Client(server, prompt=f"{at} dogs", max_tokens=150, temperature=1.0, ignore_eos=True)
        for at in range(6)
    ]
    wait_until(lambda: count(server, "running") == MAX_RUNNING)
    same = [Client(server, **FIXED, stream=at % 2 == 0) for at in range(6)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == len(other) + len(same))
    odd.tell()
    assert {one.wait().text for one in same} == {undisturbed}
    assert [one.wait().status for one in other] == [200] * 6
    assert server.metric("holdfast_num_preemptions_total") > num_before


def test_what_can_never_fit(server: Server) -> None:
    refused = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 400})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_is_answered(server: Server, odd: Odd, stream: bool) -> None:
    aborted = server.metric("holdfast_request_success_total{.*abort.*}")
    odd.tell(slow=SLOW)
    body = {"prompt": PROMPT, "max_tokens": 300, "n": 3, "stream": stream, "ignore_eos": True}
    connection = open_request(server, body)
    wait_until(lambda: server.metric("holdfast_num_requests_running") == 3)
    drop(connection)
    server.wait_idle()
    assert server.metric("holdfast_request_success_total{.*abort.*}") == aborted + 1


def test_a_client_that_leaves_while_it_waits(server: Server, odd: Odd) -> None:
    odd.tell(slow=SLOW)
    running = [long_request(server) for _ in range(MAX_RUNNING)]
    wait_until(lambda: count(server, "running") == MAX_RUNNING)
    connection = open_request(server, {"prompt": PROMPT, "max_tokens": 300})
    wait_until(lambda: count(server, "waiting") == 1)
    drop(connection)
    wait_until(lambda: count(server, "waiting") == 0)
    assert not any(one.is_over for one in running)
    odd.tell()
    assert [one.wait().status for one in running] == [200] * MAX_RUNNING


def test_clients_that_leave_at_any_moment(server: Server, undisturbed: str) -> None:
    """While the body is read, the prompt is tokenised or rendered, a form is compiled, and so on."""
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

    def leave(at: int) -> None:
        path, body = kinds[at % len(kinds)]
        connection = open_request(server, body, path)
        threading.Event().wait(0.004 * (at // len(kinds)))
        drop(connection)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(60)))
    server.wait_idle()
    assert server.post("/v1/completions", FIXED).json()["choices"][0]["text"] == undisturbed
    answer = server.post("/v1/chat/completions", {**chat, "response_format": form})
    assert answer.status_code == 200, answer.text


def test_sigterm_under_load(odd: Odd, undisturbed: str) -> None:
    """The end of this server: requests that run or wait are answered, nobody else is, and nothing stays behind."""
    server = odd.server
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    odd.tell(slow=SLOW)
    asked = [Client(server, **FIXED, stream=at % 2 == 0) for at in range(2 * MAX_RUNNING)]
    wait_until(lambda: count(server, "running") + count(server, "waiting") == len(asked))
    for pid in (server.engine_pid, server.pid):  # as a supervisor does that stops all of a unit
        os.kill(pid, signal.SIGTERM)
    server.wait_for(f"draining: {len(asked)} requests")
    refused = server.post("/v1/completions", FIXED)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
    odd.tell()
    assert {one.wait().text for one in asked} == {undisturbed}
    assert server.process.wait(PATIENCE) == 0
    assert psutil.wait_procs(processes, PATIENCE)[1] == []


@pytest.fixture(scope="module")
def cramped(tiny_llama: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """There is room for the first bytes of a file, and no more. The kernels were built when there was room."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "kernels").symlink_to(cache_dir / "kernels")
    with serving(
        tiny_llama,
        engine="odd_engine.py",
        engine_settings={"max_file": 1000},
        environment={"HOLDFAST_CACHE_DIR": str(cache)},
    ) as server:
        server.cache = cache  # type: ignore[attr-defined]
        yield server


def test_a_disk_without_room_for_the_certificate(cramped: Server, undisturbed: str) -> None:
    cramped.wait_for("the certificate could not be kept")
    answer = cramped.post("/v1/completions", FIXED).json()
    assert answer["choices"][0]["text"] == undisturbed and answer["holdfast"]["mode"] == "certified"
    kept = cramped.cache / "certificates"  # type: ignore[attr-defined]
    assert list(kept.iterdir()) == []


def test_an_engine_whose_front_is_killed_ends(cramped: Server) -> None:
    engine = psutil.Process(cramped.engine_pid)
    family = [engine, *engine.children(recursive=True)]
    os.kill(cramped.pid, signal.SIGKILL)
    assert psutil.wait_procs(family, PATIENCE)[1] == []
