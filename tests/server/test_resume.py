"""Engine processes that die, stop, raise and run out of memory under load: no client sees an error, and every
deterministic answer is that of an undisturbed server, to the bit of its logprobs."""

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

from support import feature_load, raw_http
from support.faulty_server import FaultyServer, engine_of, faulty_server
from support.feature_load import Asked, alone, ask, load
from support.streams import Client
from support.tiny import tiny_model

PATIENCE = 180.0
SLOW = 0.03  # seconds for each step, so that answers last over several faults
POISON = 666
LIMITS = ("--max-num-seqs", "32", "--max-waiting", "256", "--hang-timeout", "3", "--no-inspector")


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.streams.PATIENCE", PATIENCE)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyServer]:
    model = tiny_model(tmp_path / "llama", max_position_embeddings=2048)
    with faulty_server(model, tmp_path, *LIMITS) as server:
        yield server


def wait_until(is_so: Callable[[], bool]) -> None:
    raw_http.wait_until(is_so, PATIENCE)


def check_answers(asked: list[Asked], clients: list[Client], expected: list[Any]) -> None:
    feature_load.check_answers(asked, clients, expected, PATIENCE)


def inject(faulty: FaultyServer, fault: str) -> None:
    """Make the engine fail and wait until it serves again."""
    server = faulty.server
    restarts = server.metric("holdfast_engine_restarts_total")
    resumed = server.metric("holdfast_requests_resumed_total")
    if fault == "kill -9":
        os.kill(server.engine_pid, signal.SIGKILL)
    elif fault == "SIGSTOP":
        os.kill(server.engine_pid, signal.SIGSTOP)
    else:
        faulty.fail_once(fault)
    if fault == "raise":
        wait_until(lambda: server.metric("holdfast_requests_resumed_total") > resumed)
    elif fault == "memory":
        time.sleep(1.0)  # an exception, and perhaps a death
    else:
        wait_until(lambda: server.metric("holdfast_engine_restarts_total") > restarts)
    wait_until(lambda: server.get("/health").status_code == 200)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill -9", "SIGSTOP", "raise", "memory", "crash", "device"])
def test_no_client_sees_a_fault(faulty: FaultyServer, fault: str) -> None:
    """Ten times in one server's life, under 64 requests of all kinds."""
    server, asked = faulty.server, load(64)
    expected = alone(server, asked)
    check_answers(asked, ask(server, asked), expected)
    frontend = psutil.Process(server.pid)
    num_descriptors, memory = frontend.num_fds(), frontend.memory_info().rss
    faulty.set_faults(slow=SLOW)
    rng, num_faults = random.Random(fault), 0
    while num_faults < 10:
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
    wait_until(lambda: frontend.memory_info().rss < memory + (64 << 20))
    zombies = [one for one in frontend.children(recursive=True) if one.status() == psutil.STATUS_ZOMBIE]
    assert not zombies


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "raise"])
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
def test_fault_at_any_position(faulty: FaultyServer, fault: str, deterministic: bool) -> None:
    """In the prefill, at the first token and at any later one, of requests of every kind."""
    server = faulty.server
    asked = load(len(feature_load.kinds()), lambda at: deterministic)
    expected = alone(server, asked)
    rng = random.Random(f"{fault} {deterministic}")
    for positions in ((0, 1), (1, 12), (12, 120)):
        seeds = rng.sample(range(len(asked)), 8)
        places = [(seed, rng.randrange(*positions)) for seed in seeds]
        faulty.set_faults(slow=0.002, fail_at=places, fault=fault)
        check_answers(asked, ask(server, asked), expected)
    assert server.metric("holdfast_requests_resumed_total") > len(asked)
    assert server.metric("holdfast_requests_crashed_total") == 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "exit", "crash", "raise", "stop", "device"])
def test_poison_ends_alone(faulty: FaultyServer, fault: str) -> None:
    """A request that fails whenever it runs ends with an error; its 31 neighbours finish."""
    server, asked = faulty.server, load(31)
    expected = alone(server, asked)
    faulty.set_faults(slow=SLOW, poison_seed=POISON, fault=fault)
    clients = ask(server, asked)
    wait_until(lambda: sum(bool(one.events) for one in clients) > 5)
    poison = Client(server, prompt="poison", max_tokens=20, seed=POISON, temperature=1.0)
    check_answers(asked, clients, expected)
    poison.wait()
    assert poison.status == 500
    assert poison.error["code"] == ("pass_failed" if fault in ("raise", "device") else "engine_crashed"), (
        poison.error
    )
    assert server.metric("holdfast_requests_crashed_total") == 1


@pytest.mark.long
def test_engine_that_dies_while_it_loads(faulty: FaultyServer) -> None:
    """Deaths in quick succession: in a pass, at the start of the next process, and while it loads."""
    server, asked = faulty.server, load(32)
    expected = alone(server, asked)
    faulty.set_faults(slow=SLOW)
    clients = ask(server, asked)
    wait_until(lambda: sum(bool(one.events) for one in clients) > 8)
    for pause in (0.0, 0.2, 1.0):
        dead = server.engine_pid
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda dead=dead: engine_of(server) not in (None, dead))
        time.sleep(pause)
    check_answers(asked, clients, expected)
    assert server.metric("holdfast_engine_restarts_total") == 3


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_continuation_and_replay_survive(faulty: FaultyServer, fault: str) -> None:
    """The engine fails while it confirms a receipt's tokens, and again after them."""
    server, path = faulty.server, "/v1/completions"
    body = {
        "prompt": "the dog", "deterministic": True, "return_receipt": True, "n": 3, "stop": ["e"],
        "min_tokens": 5, "logprobs": 2, "prompt_logprobs": 1,
    }  # fmt: skip
    asked: list[Asked] = []
    for seed in range(40, 46):
        begun = server.post(path, {**body, "seed": seed, "max_tokens": 20}).json()["holdfast"]["receipt"]
        asked.append(("/v1/replay", {"receipt": begun}))
        if any(one["finish_reason"] == "length" for one in begun["choices"]):
            rest = {"receipt": begun, "max_tokens": 60, "return_receipt": True, "return_token_ids": True}
            asked += [("/v1/continue", rest), ("/v1/continue", {**rest, "stream": True})]
        if begun["choices"][0]["finish_reason"] == "length":
            request = {**body, "n": 1, "seed": seed, "max_tokens": 60, "return_token_ids": True}
            asked.append(
                ("/v1/continue", {"request": request, "token_ids": begun["choices"][0]["token_ids"]})
            )
    expected = alone(server, asked)
    assert len(asked) > 12 and any(
        {one["finish_reason"] for one in answer["choices"]} == {"stop", "length"}
        for answer in expected if "choices" in answer
    ), "some choices had ended before"  # fmt: skip
    places = [(seed, position) for seed in range(40, 46) for position in (seed - 38, seed - 20, 35)]
    faulty.set_faults(slow=0.002, fail_at=places[::2], fault=fault)
    check_answers(asked, ask(server, asked), expected)
    assert all(answer["same"] for answer in expected if "same" in answer)
    assert server.metric("holdfast_requests_resumed_total") > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_thoughts_survive(thinking_model: Path, tmp_path: Path, fault: str) -> None:
    """Answers of a model that thinks: no thought is sent twice, none is missing, none differs."""
    body: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "return_receipt": True, "logprobs": 1}
    prompt = "heads tails the coin is flips " * 4
    asked: list[Asked] = []
    for seed in range(18):
        changes: list[dict[str, Any]] = [{}, {"n": 2}, {"forced_thoughts": {"1": [5, 6], "8": []}}]
        own = {"seed": seed, "stream": seed % 2 == 0, "deterministic": seed % 3 > 0}
        asked.append(
            ("/v1/completions", {**body, **changes[seed % 3], **own, "prompt": prompt + "the " * seed})
        )
    with faulty_server(thinking_model, tmp_path, *LIMITS) as faulty:
        server = faulty.server
        begun = server.post("/v1/completions", {**asked[1][1], "max_tokens": 21}).json()["holdfast"][
            "receipt"
        ]
        asked += [("/v1/continue", {"receipt": begun, "max_tokens": 70, "return_receipt": True})]
        asked += [("/v1/replay", {"receipt": begun}), ("/v1/score", {"prompt": prompt, "completion": prompt})]
        expected = alone(server, asked)
        rng = random.Random(fault)
        places = [(rng.randrange(18), rng.randrange(100)) for _ in range(10)]
        faulty.set_faults(slow=0.002, fail_at=places, fault=fault)
        check_answers(asked, ask(server, asked), expected)
        assert server.metric("holdfast_requests_resumed_total") > 0


@pytest.mark.long
def test_comments_keep_streams_alive(faulty: FaultyServer) -> None:
    """A stream whose engine is restarted gets a comment at once."""
    faulty.set_faults(slow=SLOW)
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
