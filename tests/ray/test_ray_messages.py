"""What goes wrong with a cluster is said clearly, before or instead of a server that never gets ready."""

import re
import socket
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.cli import console
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.config import ReplicasConfig

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'holdfast[ray]'")
from holdfast.ray import cluster as cluster_module  # noqa: E402
from holdfast.ray.application import PROXY_OPTIONS, build, read_options  # noqa: E402
from holdfast.ray.cluster import HeadWatch  # noqa: E402
from holdfast.ray.pool import ReplicaPool  # noqa: E402
from holdfast.ray.replica_port import ReplicaAddress  # noqa: E402
from holdfast.ray.serve_replicas import explain_failure  # noqa: E402
from holdfast.server.config import ServerConfig  # noqa: E402
from holdfast.server.ipc.engine_port import EngineCallbacks  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")
NODE = {"Alive": True, "Resources": {"CPU": 8.0}}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of two nodes with 8 CPUs each."""
    monkeypatch.setattr(ray, "nodes", lambda: [NODE, NODE])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 16.0})
    monkeypatch.setattr(ray, "is_initialized", lambda: True)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        pytest.param(
            "127.0.0.1:1", r"no Ray cluster at 127\.0\.0\.1:1.*ray start --head", id="nothing-listens"
        ),
        pytest.param("127.0.0.1", "must be HOST:PORT", id="no-port"),
        pytest.param("ray://127.0.0.1:10001", "must be a node of the cluster", id="ray-client"),
    ],
)
def test_wrong_address(address: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says), cluster_module.cluster(address):
        pass


@pytest.mark.parametrize(
    ("engine", "replicas", "says"),
    [
        pytest.param(
            {}, {"replicas": 100}, r"room for 16 replicas, not 100: each needs 1 CPUs", id="too-many"
        ),
        pytest.param(
            {"device": "cuda"}, {"replicas": 1}, r"1 GPUs.*16 CPUs, 0 GPUs.*--device cpu", id="no-gpu"
        ),
        pytest.param(
            {"device": "cuda"}, {"replicas": 1, "replica_gpus": 0}, "at least a part of a GPU", id="zero-gpus"
        ),
    ],
)
def test_missing_resources(nodes: None, engine: dict[str, Any], replicas: dict[str, Any], says: str) -> None:
    configured, wanted = EngineConfig(**engine), ReplicasConfig(**replicas)
    with pytest.raises(ConfigError, match=says):
        cluster_module.require_resources(configured, wanted)


def test_application_is_built_before_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `serve run` does: the GPUs of this machine count."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for count in (0, 4):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        found = cluster_module.gpus_per_replica(EngineConfig(), ReplicasConfig(replicas=1))
        assert found == min(count, 1)


def test_other_versions_of_ray_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1"
        )

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(ConfigError, match=r"Ray: 2\.9\.0 Python: 3\.9\.1.*same versions of Ray and Python"),
        cluster_module.cluster("auto"),
    ):
        pass


def test_replica_of_another_version_gets_no_requests() -> None:
    pool = ReplicaPool("app", ServerConfig(), EngineConfig(), EngineCallbacks())
    info = ReplicaAddress("127.0.0.1", 1, "s", "f", "c", "99.0", "node-7")
    replica = SimpleNamespace(replica_id=SimpleNamespace(unique_id="r1"), replica_metadata=asdict(info))
    pool._on_replicas([replica])
    assert pool.is_stopped and not pool.is_ready
    assert re.search(r"node-7 runs Holdfast 99\.0.*same version on every node", str(pool._failure))


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[ray\]'"):
        console.require_packages("ray", extra="ray", what="--replicas")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param(
            "Traceback\nModuleNotFoundError: No module named 'holdfast'",
            "not installed on its node",
            id="module",
        ),
        pytest.param(
            "died\nTraceback:\n  File x\nholdfast.errors.ModelNotFound: there is no folder /m\n",
            "no replica could be started: there is no folder /m",
            id="model",
        ),
        pytest.param("The deployment failed to start 3 times", "failed to start 3 times", id="other"),
    ],
)
def test_failed_deployment_is_explained(message: str, says: str) -> None:
    assert says in explain_failure(message)


def test_head_that_is_gone_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        watch = HeadWatch(f"127.0.0.1:{port}")
        watch.check()
        assert not caplog.records
    for _ in range(3):
        watch.check()
    with socket.create_server(("127.0.0.1", port)):
        for _ in range(3):
            watch.check()
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"]
    assert f"127.0.0.1:{port} does not answer; Ray ends this server" in caplog.records[0].getMessage()


def test_builder_reads_options_by_name() -> None:
    args = {
        "model": "some/model",
        "replicas": "3",
        "max-num-seqs": "4",
        "api_key": "a, b",
        "portable": "true",
    }
    server, engine, replicas = read_options(args)
    assert (engine.model, engine.max_num_seqs, engine.portable) == ("some/model", 4, True)
    assert server.api_keys == ("a", "b") and replicas.replicas == 3 and not server.has_inspector


@pytest.mark.parametrize(
    ("args", "says"),
    [
        *(pytest.param({name: "1"}, f"{name} is not an option", id=name) for name in PROXY_OPTIONS),
        pytest.param({"max_num_seq": 4}, "did you mean max_num_seqs", id="typo"),
        pytest.param({"replicas": 0}, "at least 1", id="no-replicas"),
    ],
)
def test_builder_refuses_wrong_options(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(args)
