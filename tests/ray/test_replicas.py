"""Replicas on a Ray cluster answer as one engine, and lose no stream when one of them dies."""

import concurrent.futures
import json
import os
import signal
from typing import Any

import httpx
import psutil
import pytest

from support.raw_http import wait_until
from support.replicas import engine_pids, replica_counts, stream_answers
from support.serving import Server

NUM_REQUESTS = 200
pytestmark = pytest.mark.xdist_group("ray")


def bodies() -> list[dict[str, Any]]:
    """Deterministic requests of several kinds."""
    return [
        {
            "model": "tiny",
            "prompt": f"{'A long beginning that several share. ' * (number % 3)}{number % 20}",
            "max_tokens": 12,
            "deterministic": True,
            "seed": number % 20,
            "temperature": 0.7 * (number % 2),
            "logprobs": 2,
        }
        for number in range(NUM_REQUESTS)
    ]


def answer(server: Server, body: dict[str, Any], client: httpx.Client) -> str:
    response = client.post(server.url + "/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    found = response.json()
    return json.dumps([found["choices"], found["system_fingerprint"]])


def answers(server: Server, requests: list[dict[str, Any]]) -> list[str]:
    with httpx.Client() as client, concurrent.futures.ThreadPoolExecutor(16) as workers:
        return list(workers.map(lambda body: answer(server, body, client), requests))


def test_two_replicas_answer_as_one_engine(pool_server: Server, lone_server: Server) -> None:
    before = replica_counts(pool_server, "true")
    requests = bodies()
    found = answers(pool_server, requests)
    counts = replica_counts(pool_server, "true")
    assert len(counts) == 2 and min(counts[one] - before.get(one, 0) for one in counts) > NUM_REQUESTS / 10
    distinct = {json.dumps(body): body for body in requests}
    expected = dict(zip(distinct, answers(lone_server, list(distinct.values())), strict=True))
    assert found == [expected[json.dumps(body)] for body in requests]


def test_health_and_metrics_show_every_replica(pool_server: Server) -> None:
    health = pool_server.get("/health").json()
    assert len(health["replicas"]) == 2
    assert {one["state"] for one in health["replicas"]} == {"ready"}
    assert all(one["deterministic"] for one in health["replicas"])
    text = pool_server.get("/metrics").text
    for one in health["replicas"]:
        assert f'holdfast_replica_kv_pages{{replica="{one["id"]}"}}' in text


def num_ready(server: Server) -> int:
    return sum(one["state"] == "ready" for one in server.get("/health").json().get("replicas", ()))


@pytest.mark.parametrize("victim", [pytest.param("engine", marks=pytest.mark.long), "replica"])
def test_killed_replica_loses_no_stream(pool_server: Server, lone_server: Server, victim: str) -> None:
    wait_until(lambda: num_ready(pool_server) == 2)  # also after the one killed before
    pid = engine_pids()[0]  # before the streams begin: the search can outlast them
    if victim == "replica":
        parent = psutil.Process(pid).parent()
        assert parent is not None
        pid = parent.pid
    restarts = pool_server.metric("holdfast_engine_restarts_total")
    found = stream_answers(pool_server, 8, lambda: os.kill(pid, signal.SIGKILL))
    assert found == stream_answers(lone_server, 8)
    assert pool_server.metric("holdfast_requests_resumed_total") > 0
    wait_until(lambda: pool_server.metric("holdfast_engine_restarts_total") == restarts + 1)
    pool_server.wait_for(
        r"status=200 .*replicas=.*\w+.*,.*\w+"
    )  # the access log has both replicas of a stream
