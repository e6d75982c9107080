"""What `holdfast doctor --ray` checks: the cluster, and whether its nodes can run replicas that agree."""

import platform
from collections.abc import Iterator
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from holdfast.errors import ConfigError
from holdfast.ray.cluster import cluster, show_resources
from holdfast.receipts.machine import library_version
from holdfast.version import __version__

Mark = Literal["good", "note", "bad", "plain"]
Finding = tuple[str, str, Mark]
_NODE_SECONDS = 60.0


def check_cluster(address: str | None) -> Iterator[Finding]:
    """(what, found, mark) of Ray here, the cluster at this address, and each of its nodes."""
    yield "ray", str(ray.__version__), "good"
    if address is None:
        yield "cluster", "not checked: give --ray-address, or auto for the one on this machine", "note"
        return
    try:
        with cluster(address):
            yield "cluster", f"{address}: {show_resources(ray.cluster_resources())}", "good"
            yield from _check_nodes()
            yield from _check_applications()
    except ConfigError as error:
        yield "cluster", str(error), "bad"


def _check_nodes() -> Iterator[Finding]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    ask = ray.remote(num_cpus=0)(node_versions)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    asked = [ask.options(scheduling_strategy=place).remote() for place in places]
    ours = node_versions()
    for node, answer in zip(nodes, asked, strict=True):
        what = f"node {node['NodeManagerAddress']}"
        try:
            theirs = ray.get(answer, timeout=_NODE_SECONDS)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            yield what, f"holdfast cannot be imported there: {lines[-1]}", "bad"
            continue
        other = {name: value for name, value in theirs.items() if value != ours[name]}
        shown = ", ".join(f"{name} {value}" for name, value in theirs.items())
        mark: Mark = "good"
        if other:
            mark = "bad" if "holdfast" in other or "ray" in other else "note"
            shown = ", ".join(f"{name} {value} there, {ours[name]} here" for name, value in other.items())
            shown += ": replicas need the same versions on every node"
        yield what, f"{show_resources(node['Resources'])}; {shown}", mark


def node_versions() -> dict[str, str]:
    """Return the versions that decide whether a node's replicas agree with others."""
    packages = {name: library_version(name) or "none" for name in ("torch", "msgspec")}
    versions = {"holdfast": __version__, "python": platform.python_version(), "ray": str(ray.__version__)}
    return versions | packages


def _check_applications() -> Iterator[Finding]:
    """Yield what is found of the applications that Ray Serve runs, if it runs."""
    from ray import serve

    try:
        applications: dict[str, Any] = serve.status().applications
    except Exception:
        applications = {}
    for name, application in applications.items():
        status = str(application.status.value if hasattr(application.status, "value") else application.status)
        mark: Mark = "good" if status == "RUNNING" else "note"
        running = sum(one.replica_states.get("RUNNING", 0) for one in application.deployments.values())
        yield f"application {name}", f"{status}, {running} replicas of all deployments run", mark
