"""Look at and load a server with replicas."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

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
        if "holdfast.server.ipc.host_main" in words:
            with suppress(psutil.NoSuchProcess):  # it or its parent has just ended
                parent = process.parent()
                if parent is not None and any("ray::" in word for word in parent.cmdline()):
                    found.append(process.pid)
    return found


LONG = {
    "model": "tiny",
    "deterministic": True,
    "stream": True,
    "max_tokens": 450,  # long enough to be cut off by a kill
    "ignore_eos": True,
    "temperature": 1,
    "logprobs": 1,
}


@dataclass(frozen=True)
class StreamedAnswer:
    """What a client got, with the bits of every logprob."""

    fingerprint: str
    text: str
    logprobs: tuple[float, ...]

    @staticmethod
    def of(client: Client) -> "StreamedAnswer":
        (fingerprint,) = {event["system_fingerprint"] for event in client.events}
        given = [choice["logprobs"] for event in client.events for choice in event["choices"]]
        logprobs = tuple(one for part in given if part for one in part["token_logprobs"])
        assert len(logprobs) == LONG["max_tokens"]
        return StreamedAnswer(fingerprint, client.text, logprobs)


def stream_answers(
    server: Server, count: int, after_first: Callable[[], None] | None = None
) -> list[StreamedAnswer]:
    """Streams that run at once; after_first is called when all have begun."""
    clients = [Client(server, **LONG, prompt=f"stream {number}", seed=number) for number in range(count)]
    for client in clients:
        client.wait_first()
    if after_first is not None:
        after_first()
    for client in clients:
        client.wait()
        assert client.is_done and not client.error, client.error
    return [StreamedAnswer.of(client) for client in clients]
