"""The requests of a pool: which replica may compute them, and what happens when one is lost."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import DeterminismRefused, EngineCrashed, EngineStopped, GuaranteeLost
from holdfast.ray.messages import RoutedRequest, prefix_hashes
from holdfast.ray.pooled_requests import PooledRequests, ReplicaRequests
from holdfast.ray.routing_table import RoutingTable
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.live_requests import MAX_LONE_DEATHS
from holdfast.server.ipc.response_stream import ResponseStream

FINGERPRINT, OTHER = m.FingerprintReady("one", {}, "1.0"), m.FingerprintReady("two", {}, "1.0")
OTHER_GRAMMARS = m.FingerprintReady("one", {}, "2.0")
decode = msgspec.msgpack.Decoder(m.Submit, dec_hook=m.dec_hook).decode
READY = m.Ready(320, 512, 16, 4096, "auto", None, None)


class Replica:
    """A connected replica that takes messages, and whose outputs are scripted."""

    def __init__(self, pool: "Pool", name: str, fingerprint: m.FingerprintReady = FINGERPRINT) -> None:
        self.replica, self.fingerprint, self.connection = name, fingerprint, f"to {name}"
        self.closed = asyncio.Event()
        self.died: m.EngineDied | None = None
        self.submitted: list[int] = []
        self.aborted: list[int] = []
        self.is_killed = False
        self.requests = ReplicaRequests(pool.requests)
        self.requests.link = self  # type: ignore[assignment]
        self._pool = pool

    @property
    def running_ids(self) -> frozenset[int]:
        return frozenset() if self.died is None else frozenset(self.died.running)

    def forward(self, frame: bytes) -> None:
        self.submitted.append(decode(frame[4:]).request.request_id)

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def kill(self) -> None:
        self.is_killed = True

    def accept(self, *request_ids: int) -> None:
        for request_id in request_ids:
            self.requests.accept(request_id)

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
        self.table = RoutingTable()
        self.requests = PooledRequests(self._call, self.table, **settings)

    def _call(self, request: RoutedRequest) -> Any:
        self.calls.append(request)
        return lambda: self.cancelled.append(request.request_id)

    def add(self, name: str, fingerprint: m.FingerprintReady = FINGERPRINT) -> Replica:
        replica = self.replicas[name] = Replica(self, name, fingerprint)
        self.update()
        return replica

    def update(self) -> None:
        replicas = {name: one.requests for name, one in self.replicas.items()}
        self.requests.set_replicas(replicas, self.fingerprint, READY)

    def submit(self, count: int = 1, deterministic: bool = True, **settings: Any) -> list[ResponseStream]:
        params = SamplingParams(max_tokens=8, deterministic=deterministic, **settings)
        request = Request(0, (1, 2), params, 7)
        return [self.requests.submit(asyncio.Event(), request) for _ in range(count)]

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
    assert list(stream.request.sent[0].token_ids) == [5]


def test_late_outputs_of_a_replica_that_was_left_are_ignored(pool: Pool) -> None:
    first = pool.add("a")
    (stream,) = pool.submit()
    first.accept(1)
    second = pool.add("b")
    del pool.replicas["a"]  # it is drained
    pool.update()
    pool.requests.move(stream)
    second.accept(1)
    first.output(1)
    assert first.aborted == [1] and not stream.deltas
    second.output(1)
    assert len(stream.deltas) == 1 and stream.replicas == ["a", "b"]


def test_request_is_sent_once_and_at_once_to_the_replica_that_ray_then_calls(pool: Pool) -> None:
    replicas = {name: pool.add(name) for name in ("a", "b")}
    pool.submit(5)
    pool.table.queue_len = {"a": 9, "b": 0}.__getitem__  # another frontend's
    pool.submit(1)
    for name, one in replicas.items():
        calls = [call for call in pool.calls if call.replica == name]
        assert [call.request_id for call in calls] == one.submitted
        assert [call.submission for call in calls] == list(range(1, len(one.submitted) + 1))
        assert {call.connection for call in calls} == {one.connection}
    assert (replicas["a"].submitted, replicas["b"].submitted) == ([1, 3, 5], [2, 4, 6])


def test_replica_without_an_open_connection_gets_no_request(pool: Pool) -> None:
    first = pool.add("a")
    first.closed.set()  # the pool has not heard of it yet
    pool.submit()
    assert not first.submitted and pool.requests.num_waiting == 1


def test_deterministic_requests_go_to_the_application_s_fingerprint_only(pool: Pool) -> None:
    pool.add("b", OTHER)
    pool.submit()
    assert pool.take_calls() == [] and pool.requests.num_waiting == 1
    pool.submit(deterministic=False)
    assert pool.take_calls() == [2]
    pool.add("a")
    assert pool.calls[0].replica == "a" and pool.take_calls() == [1]


def test_structured_answer_continues_only_with_the_same_grammar_library(pool: Pool) -> None:
    first, other = pool.add("a"), pool.add("b", OTHER_GRAMMARS)
    structured, plain = pool.submit(1, structured=StructuredOutput(regex="a+")) + pool.submit()
    assert 1 in first.submitted
    first.accept(*first.submitted)
    other.accept(*other.submitted)
    first.die(engine=False)
    assert 1 not in other.submitted and 2 in other.submitted and pool.requests.num_waiting == 1
    third = pool.add("c")
    assert third.submitted == [1] and structured.error is None and plain.error is None


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
    first = pool.add("a")
    pool.submit(3)
    first.accept(1, 2, 3)
    pool.take_calls()
    second = pool.add("b")
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


def test_call_that_fails_ends_the_connection_of_the_replica_that_had_taken_it(pool: Pool) -> None:
    first = pool.add("a")
    pool.submit()
    (request,) = pool.calls
    pool.requests.on_call_failed(request)
    assert not first.is_killed  # Ray did not reach it; the request runs
    request.is_routed = True
    pool.requests.on_call_failed(request)
    assert first.is_killed and first.submitted == [1]


def test_replica_with_the_prefix_is_chosen_while_its_load_allows() -> None:
    table = RoutingTable()
    prompt = list(range(200))
    prefix = prefix_hashes(prompt, "")
    assert len(prefix) == 3 and prefix_hashes(prompt, "tenant") != prefix
    assert prefix_hashes([*prompt[:130], 0], "") == prefix[:2]
    assert table.choose({"a": 3, "b": 2}, prefix) == "b"
    assert table.choose({"a": 0, "b": 4}, prefix[:1]) == "b"
    assert table.choose({"a": 0, "b": 5}, ()) == "a"
    assert table.choose({"a": 0, "b": 5}, prefix[:1]) == "a"
    assert table.choose({"a": 4, "b": 0}, prefix[:1]) == "a"  # it has seen the beginning last
