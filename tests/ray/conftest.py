"""One Ray cluster for all tests of replicas, in its own processes, gone after them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.serving import Server, serving

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 90


def has_ray() -> bool:
    try:
        import ray  # noqa: F401
    except ImportError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not has_ray():
        for item in items:
            if Path(__file__).parent in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="Ray is not installed: pip install 'holdfast[ray]'"))


class Cluster:
    """A cluster with a number of CPUs that exist on paper."""

    def __init__(self, environment: dict[str, str], address: str) -> None:
        self.environment = environment
        self.address = address

    def run(self, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT,
        )  # fmt: skip


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Cluster]:
    """A head node without a dashboard. Everything it started is gone afterwards."""
    port = 26379 + 100 * int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 26379
    folder = tmp_path_factory.mktemp("ray")
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": f"127.0.0.1:{port}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    environment.pop("RAY_ADDRESS")
    head = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--block"),
            *("--num-cpus=8", "--num-gpus=0", "--include-dashboard=false", "--object-store-memory=80000000"),
            *("--disable-usage-stats", "--node-ip-address=127.0.0.1"),
        ],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
    )  # fmt: skip
    try:
        assert head.stdout is not None
        for line in head.stdout:
            if "runtime started" in line:
                break
        else:
            raise AssertionError("the cluster did not start")
        yield Cluster(environment, f"127.0.0.1:{port}")
    finally:
        end(head)


def end(process: "subprocess.Popen[str]") -> None:
    """End a process and all that it started."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=10)
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture(scope="session")
def pool_server(cluster: Cluster, tiny_llama: Path) -> Iterator[Server]:
    """`holdfast serve --replicas 2` on the cluster."""
    with serving(
        tiny_llama,
        *("--replicas", "2", "--ray-address", cluster.address, "--replica-cpus", "0.5"),
        *("--max-num-seqs", "16", "--served-model-name", "tiny", "--num-threads", "1"),
        environment=cluster.environment,
    ) as server:
        server.wait_for(r"replica \w+ on node .* is ready", times=2)
        yield server


@pytest.fixture(scope="session")
def lone_server(tiny_llama: Path) -> Iterator[Server]:
    """`holdfast serve` alone."""
    with serving(
        tiny_llama, "--max-num-seqs", "16", "--served-model-name", "tiny", "--num-threads", "1"
    ) as server:
        yield server
