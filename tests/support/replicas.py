"""Look at and load a server with replicas."""

from collections.abc import Callable

import psutil
from prometheus_client.parser import text_string_to_metric_families

from support.serving import Server
from support.streams import Client


def replica_counts(server: Server, deterministic: str) -> dict[str, float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {
        one.labels["replica"]: one.value
        for family in families
        for one in family.samples
        if one.name == "holdfast_replica_requests_total" and one.labels["deterministic"] == deterministic
    }


def engine_pids() -> list[int]:
    """The engine processes of replicas: children of Ray's workers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "holdfast.server.ipc.engine_process" in words:
            parent = process.parent()
            if parent is not None and any("ray::" in word for word in parent.cmdline()):
                found.append(process.pid)
    return found


LONG = {
    "model": "tiny",
    "deterministic": True,
    "stream": True,
    "max_tokens": 300,
    "ignore_eos": True,
    "temperature": 1,
}


def stream_texts(server: Server, count: int, after_first: Callable[[], None] | None = None) -> list[str]:
    """Streams that run at once; after_first is called when all have begun."""
    clients = [Client(server, **LONG, prompt=f"stream {number}", seed=number) for number in range(count)]
    for client in clients:
        client.wait_first()
    if after_first is not None:
        after_first()
    for client in clients:
        client.wait()
        assert client.is_done and not client.error, client.error
    return [client.text for client in clients]
