"""The requests of a pool: which replica may compute them, and what happens when one is lost."""

import asyncio
from typing import Any

import pytest

from holdfast.core.results import Delta, RequestOutput
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import DeterminismRefused, EngineCrashed, EngineStopped, GuaranteeLost
from holdfast.ray.messages import RoutedRequest, prefix_hashes
from holdfast.ray.pooled_requests import PooledRequests, ReplicaRequests
from holdfast.ray.routing_table import RoutingTable
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.live_requests import MAX_LONE_DEATHS
from holdfast.server.ipc.response_stream import ResponseStream

FINGERPRINT, OTHER = m.FingerprintReady("one", {}), m.FingerprintReady("two", {})
READY = m.Ready(320, 512, 16, 4096, "auto", None, None)


class Replica:
    """A connected replica that takes messages, and whose outputs are scripted."""

    def __init__(self, pool: "Pool", name: str, fingerprint: m.FingerprintReady = FINGERPRINT) -> None:
        self.replica, self.fingerprint = name, fingerprint
        self.closed = asyncio.Event()
        self.died: m.EngineDied | None = None
        self.aborted: list[int] = []
        self.requests = ReplicaRequests(pool.requests)
        self.requests.link = self  # type: ignore[assignment]
        self._pool = pool

    @property
    def running_ids(self) -> frozenset[int]:
        return frozenset() if self.died is None else frozenset(self.died.running)

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def accept(self, *request_ids: int) -> None:
        for request_id in request_ids:
            self.requests.accept(request_id, 7)

    def output(self, request_id: int) -> None:
        self.requests.step(m.StepOutput((), (RequestOutput(request_id, Delta(token_ids=(5,)), None),)))

    def die(self, *running: int, engine: bool = True) -> None:
        self.died = m.EngineDied("died", running) if engine else None
        self.closed.set()
        del self._pool.replicas[self.replica]
        self._pool.update()
        self.requests.detach(self)  # type: ignore[arg-type]


class Pool:
    def __init__(self, **settings: Any) -> None:
        self.calls: list[RoutedRequest] = []
        self.cancelled: list[int] = []
        self.replicas: dict[str, Replica] = {}
        self.fingerprint: m.FingerprintReady | None = FINGERPRINT
        self.requests = PooledRequests(self._route, **settings)

    def _route(self, request: RoutedRequest) -> Any:
        self.calls.append(request)
        return lambda: self.cancelled.append(request.request_id)

    def add(self, name: str, fingerprint: m.FingerprintReady = FINGERPRINT) -> Replica:
        replica = self.replicas[name] = Replica(self, name, fingerprint)
        self.update()
        return replica

    def update(self) -> None:
        self.requests.set_replicas(dict(self.replicas), self.fingerprint, READY)  # type: ignore[arg-type]

    def submit(self, count: int = 1, deterministic: bool = True) -> list[ResponseStream]:
        params = SamplingParams(max_tokens=8, deterministic=deterministic)
        return [self.requests.submit(asyncio.Event(), [1, 2], params) for _ in range(count)]

    def take_calls(self) -> list[int]:
        taken = [one.request_id for one in self.calls]
        self.calls.clear()
        return taken


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_lost_replica_leaves_what_was_sent_to_another(pool: Pool) -> None:
    first = pool.add("a")
    (stream,) = pool.submit()
    first.accept(1)
    first.output(1)
    pool.take_calls()
    pool.add("b")
    first.die(engine=False)
    assert pool.take_calls() == [1] and not stream.is_suspect
    assert stream.message.sent is not None and stream.message.sent.choices[0].token_ids == (5,)


def test_late_outputs_of_a_replica_that_was_left_are_ignored(pool: Pool) -> None:
    first, second = pool.add("a"), pool.add("b")
    (stream,) = pool.submit()
    first.accept(1)
    pool.requests.move(stream)
    second.accept(1)
    first.output(1)
    assert first.aborted == [1] and not stream.deltas
    second.output(1)
    assert len(stream.deltas) == 1


def test_deterministic_requests_go_to_the_application_s_fingerprint_only(pool: Pool) -> None:
    pool.add("b", OTHER)
    pool.submit()
    assert pool.take_calls() == [] and pool.requests.num_waiting == 1
    pool.submit(deterministic=False)
    assert pool.take_calls() == [2]
    pool.add("a")
    assert pool.calls[0].fingerprint == "one" and pool.take_calls() == [1]


def test_without_the_configured_fingerprint_deterministic_requests_are_refused(pool: Pool) -> None:
    pool.fingerprint = None
    pool.add("b", OTHER)
    with pytest.raises(DeterminismRefused, match="fingerprint"):
        pool.submit()
    assert pool.requests.num_live == 0


def test_answer_that_began_with_a_gone_fingerprint_ends(pool: Pool) -> None:
    first = pool.add("a")
    (stream,) = pool.submit()
    first.accept(1)
    first.output(1)
    pool.fingerprint = OTHER
    pool.add("b", OTHER)
    first.die(engine=False)
    assert isinstance(stream.error, GuaranteeLost)


def test_suspects_are_tried_one_after_the_other_while_others_go_on(pool: Pool) -> None:
    first, second = pool.add("a"), pool.add("b")
    pool.submit(3)
    first.accept(1, 2, 3)
    pool.take_calls()
    first.die(1, 2)
    assert pool.take_calls() == [1, 3]
    pool.submit()
    assert pool.take_calls() == [4]
    second.accept(1)
    second.output(1)
    assert pool.take_calls() == [2]


def test_poison_is_given_up(pool: Pool) -> None:
    (stream,) = pool.submit() if pool.add("0") else []
    for number in range(1 + MAX_LONE_DEATHS):
        assert stream.error is None
        pool.replicas[f"{number}"].accept(1)
        pool.add(f"{number + 1}")
        pool.replicas[f"{number}"].die(1)
    assert isinstance(stream.error, EngineCrashed) and pool.requests.num_live == 0


def test_cancelled_request_is_aborted_and_its_call_cancelled(pool: Pool) -> None:
    first = pool.add("a")
    stream, other = pool.submit(2)
    first.accept(1)
    stream.cancel(EngineStopped("enough"))
    other.cancel(EngineStopped("enough"))
    first.accept(2)  # it was on its way
    assert first.aborted == [1, 2] and pool.cancelled == [1, 2] and pool.requests.num_live == 0


def test_call_that_fails_is_routed_again_once(pool: Pool) -> None:
    pool.add("a")
    pool.submit()
    (request,) = pool.calls
    pool.requests.on_call_failed(request)
    pool.requests.on_call_failed(request)
    assert pool.take_calls() == [1, 1]


def test_router_prefers_the_replica_with_the_prefix_while_its_load_allows() -> None:
    table = RoutingTable(lambda replicas: None, {"a": "one", "b": "one", "c": "two"})
    prompt = list(range(200))
    prefix = prefix_hashes(prompt, "")
    assert len(prefix) == 3 and prefix_hashes(prompt, "tenant") != prefix
    assert prefix_hashes([*prompt[:130], 0], "") == prefix[:2]
    assert table.eligible(("a", "b", "c", "d"), "one") == ["a", "b"]
    assert table.eligible(("a", "b", "c", "d"), None) == ["a", "b", "c"]
    table.note("b", prefix)
    assert table.rank({"a": 0, "b": 4}, prefix[:1]) == [["b"], ["a"]]
    assert table.rank({"a": 0, "b": 5}, prefix[:1]) == [["a"], ["b"]]
    assert table.rank({"a": 3, "b": 2}, ()) == [["b"], ["a"]]
