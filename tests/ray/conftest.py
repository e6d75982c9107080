"""One Ray cluster for all tests of replicas, in its own processes, gone after them."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ray_cluster import ROOT, Cluster, end
from support.serving import Server, serving


def has_ray() -> bool:
    try:
        with warnings.catch_warnings():  # pydantic's about Ray's own models
            warnings.simplefilter("ignore", DeprecationWarning)
            import ray.serve  # noqa: F401
    except ImportError:
        return False
    return True


HAS_RAY = has_ray()  # imported once, before the tests import it with warnings as errors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_RAY:
        for item in items:
            if Path(__file__).parent in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="Ray is not installed: pip install 'holdfast[ray]'"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Cluster]:
    """A head node without a dashboard. Everything it started is gone afterwards."""
    port = 26379 + 100 * int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 26379
    folder = tmp_path_factory.mktemp("ray")
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_prestart_worker_first_driver": "0",  # eight idle Python processes
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


@pytest.fixture(scope="session")
def tiny_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with attention and recurrent states."""
    from support.tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny") / "hybrid", "qwen3_5_text", std=0.1)


@pytest.fixture(scope="session")
def pool_server(cluster: Cluster, tiny_hybrid: Path) -> Iterator[Server]:
    """`holdfast serve --replicas 2` on the cluster."""
    with serving(
        tiny_hybrid,
        *("--replicas", "2", "--ray-address", cluster.address, "--replica-cpus", "0.5"),
        *("--max-num-seqs", "16", "--served-model-name", "tiny", "--num-threads", "1"),
        environment=cluster.environment,
    ) as server:
        server.wait_for(r"replica \w+ on node .* is ready", times=2)
        yield server


@pytest.fixture(scope="session")
def lone_server(tiny_hybrid: Path) -> Iterator[Server]:
    """`holdfast serve` alone."""
    with serving(
        tiny_hybrid, "--max-num-seqs", "16", "--served-model-name", "tiny", "--num-threads", "1"
    ) as server:
        yield server
