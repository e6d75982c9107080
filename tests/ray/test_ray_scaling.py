"""Replicas come, go, differ and are replaced while requests run."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import raw_http
from support.replicas import StreamedAnswer, replica_counts, stream_answers
from support.serving import Server, serving

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
SMALL = ("--replica-cpus", "0.5", "--max-num-seqs", "16", "--served-model-name", "tiny", "--num-threads", "1")
PATIENCE = 90.0


def wait_until(what: Callable[[], bool]) -> None:
    raw_http.wait_until(what, PATIENCE)


def num_ready(server: Server) -> int:
    return sum(one["state"] == "ready" for one in server.get("/health").json().get("replicas", ()))


class Load:
    """Streams that run, several at a time, until it is closed."""

    def __init__(self, server: Server, count: int) -> None:
        self.answers: list[list[StreamedAnswer]] = []
        self.errors: list[BaseException] = []
        self._server, self._count, self._closed = server, count, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self.answers.append(stream_answers(self._server, self._count))
        except BaseException as error:
            self.errors.append(error)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        assert not self.errors, self.errors


def test_one_two_one_replicas_lose_no_stream(cluster: Any, tiny_hybrid: Path, lone_server: Server) -> None:
    scaling = ("--replicas", "1", "--max-replicas", "2", "--target-ongoing-requests", "3")
    delays = ("--upscale-delay", "0", "--downscale-delay", "2")
    expected = stream_answers(lone_server, 8)
    with serving(
        tiny_hybrid,
        *scaling,
        *delays,
        *SMALL,
        "--ray-address",
        cluster.address,
        environment=cluster.environment,
    ) as server:
        load = Load(server, 8)
        wait_until(lambda: num_ready(server) == 2)
        load.close()
        light = Load(server, 1)
        wait_until(lambda: num_ready(server) == 1)
        light.close()
        assert all(answers == expected for answers in load.answers)
        assert all(answers == expected[:1] for answers in light.answers)
        wait_until(lambda: len(server.get("/health").json()["replicas"]) == 1)
        assert server.metric("holdfast_engine_restarts_total") == 0  # it was told to stop


def test_replica_with_another_dtype_gets_no_deterministic_request(
    cluster: Any, tiny_hybrid: Path, lone_server: Server, tmp_path: Path
) -> None:
    environment = {**cluster.environment, "HOLDFAST_CACHE_DIR": str(tmp_path)}
    with serving(
        tiny_hybrid, "--replicas", "2", *SMALL, "--ray-address", cluster.address,
        engine="one_other_dtype_engine.py", environment=environment,
    ) as server:  # fmt: skip
        wait_until(lambda: num_ready(server) == 2)
        server.wait_for("it serves ordinary requests only")
        replicas = server.get("/health").json()["replicas"]
        (other,) = [one["id"] for one in replicas if not one["deterministic"]]
        for number in range(40):
            body = {"model": "tiny", "prompt": f"{number}", "max_tokens": 4, "deterministic": number % 2 == 0}
            response = server.post("/v1/completions", body)
            assert response.status_code == 200
        stream_answers(server, 8)
        assert replica_counts(server, "true")[other] == 0
        assert replica_counts(server, "false")[other] > 0


def test_application_s_fingerprint_refuses_deterministic_requests_without_it(
    cluster: Any, tiny_hybrid: Path
) -> None:
    with serving(
        tiny_hybrid, "--replicas", "1", *SMALL, "--ray-address", cluster.address,
        "--application-fingerprint", "0" * 64, environment=cluster.environment,
    ) as server:  # fmt: skip
        body = {"model": "tiny", "prompt": "a", "max_tokens": 4}
        assert server.post("/v1/completions", body).status_code == 200
        refused = server.post("/v1/completions", {**body, "deterministic": True})
        assert refused.status_code == 400 and "fingerprint" in refused.json()["error"]["message"]


UPGRADE = """
import sys
import ray
from ray import serve
from holdfast.engine.config import EngineConfig
from holdfast.ray.config import ReplicasConfig
from holdfast.ray.deployment import engine_app
from holdfast.server.config import ServerConfig

ray.init(address=sys.argv[1], namespace="serve", log_to_driver=False)
found = serve.status().applications.items()  # that of an earlier test may still be there
name = next(name for name, one in found if name.startswith("holdfast") and one.status != "DELETING")
engine = EngineConfig(sys.argv[2], dtype="bfloat16", max_num_seqs=16, num_threads=1)
app = engine_app(engine, ReplicasConfig(replicas=1, replica_cpus=0.5), ServerConfig())
serve.run(app, name=name, route_prefix=None)
"""


def is_upgraded(server: Server, before: str) -> bool:
    replicas = server.get("/health").json().get("replicas", ())
    return [one["fingerprint"] != before and one["deterministic"] for one in replicas] == [True]


def test_upgrade_that_changes_the_fingerprint_lets_streams_finish(
    cluster: Any, tiny_hybrid: Path, lone_server: Server, tmp_path: Path
) -> None:
    script = tmp_path / "upgrade.py"
    script.write_text(UPGRADE)
    with serving(
        tiny_hybrid,
        "--replicas",
        "1",
        *SMALL,
        "--ray-address",
        cluster.address,
        environment=cluster.environment,
    ) as server:
        before = server.get("/health").json()["replicas"][0]["fingerprint"]
        words = [sys.executable, str(script), cluster.address, str(tiny_hybrid)]
        upgrading = subprocess.Popen(words, env=cluster.environment)
        batches = []
        while upgrading.poll() is None:
            batches.append(stream_answers(server, 4))
        assert upgrading.returncode == 0
        wait_until(lambda: is_upgraded(server, before))
        expected = {
            one[0].fingerprint: one for one in (stream_answers(lone_server, 4), stream_answers(server, 4))
        }
        assert len(expected) == 2 and batches and batches[0] == expected[before]
        for answers in batches:  # each was computed to its end with the fingerprint it began with
            assert answers == [expected[one.fingerprint][number] for number, one in enumerate(answers)]


def test_own_cluster_keeps_its_token_and_says_that_its_head_is_gone(
    tiny_hybrid: Path, tmp_path: Path
) -> None:
    environment = {"HOME": str(tmp_path), "HOLDFAST_CACHE_DIR": os.environ["HOLDFAST_CACHE_DIR"]}
    with serving(tiny_hybrid, "--replicas", "1", *SMALL, environment=environment) as server:
        server.wait_for("Ray listens on all interfaces")
        assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
        family = psutil.Process(server.pid).children(recursive=True)
        (head,) = (one for one in family if one.cmdline()[:1] and "gcs_server" in one.cmdline()[0])
        head.kill()
        server.wait_for("Ray's head at .* does not answer")
        assert server.process.wait(PATIENCE) == 1
        psutil.wait_procs(family, PATIENCE)
