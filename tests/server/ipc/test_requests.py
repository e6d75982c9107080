"""Requests outlive their engines: what is submitted again, where, in which order, and what is given up.

`table` makes a test run twice: with one engine process after the other, and with replicas that come and go.
"""

import asyncio
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import (
    AnswerFailed,
    DeterminismRefused,
    EngineCrashed,
    EngineStopped,
    GuaranteeLost,
    InvalidRequest,
    NotFinite,
    NoTokenAllowed,
    PassFailed,
)
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.ipc.response_stream import ResponseStream
from holdfast.server.ipc.suspects import MAX_LONE_DEATHS
from support.fake_engine import READY, SEED

pytestmark = pytest.mark.anyio

FINGERPRINT, OTHER = m.FingerprintReady("abc", {}, "1.0"), m.FingerprintReady("xyz", {}, "1.0")
OTHER_GRAMMARS = m.FingerprintReady("abc", {}, "2.0")
decode = msgspec.msgpack.Decoder(m.Submit, dec_hook=m.dec_hook).decode


class Port(EnginePort):
    """An engine as the table sees it: it takes messages, and its outputs are scripted."""

    def __init__(self, table: "Table", id: str, fingerprint: m.FingerprintReady | None) -> None:
        super().__init__(EngineCallbacks(), table.requests, id=id)
        self.is_only = not id
        self.ready, self.fingerprint = READY, fingerprint
        self.running: frozenset[int] | None = frozenset()
        self.submitted: list[Request] = []
        self.aborted: list[int] = []
        self._table = table

    def submit(self, request_id: int, frame: bytes) -> None:
        self.num_submitted += 1
        self.submitted.append(decode(frame[4:]).request)

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def kill(self) -> None:
        self.is_killed = True

    async def _end(self) -> None: ...

    @property
    def running_ids(self) -> frozenset[int] | None:
        return self.running

    @property
    def ids(self) -> list[int]:
        return [message.request_id for message in self.submitted]

    def accept(self, *ids: int) -> None:
        for request_id in ids or self.ids:
            self.requests.accept(self, request_id)

    def output(self, request_id: int, result: Result | None = None, **delta: Any) -> None:
        output = RequestOutput(request_id, Delta(**delta), result)
        self.requests.step(self, m.StepOutput((), (output,)))

    def token(self, request_id: int, token_id: int = 5, **delta: Any) -> None:
        self.output(request_id, text="x", token_ids=(token_id,), token_logprobs=(-0.5,), **delta)

    def end(self, request_id: int, code: str | None = None) -> None:
        reason = "stop" if code is None else "error"
        result = Result((), (), SEED, "none", Stats(), error=code, error_code=code)
        self.output(request_id, result, finish_reason=reason)

    def die(self, *running: int) -> None:
        """The engine dies in a pass of these requests."""
        self.close(frozenset(running))

    def close(self, running: frozenset[int] | None = None) -> None:
        """Without arguments: only the connection is lost."""
        self.running = running
        self.closed.set()
        self._table.ports.pop(self.id, None)
        self.requests.lose(self)


class Table:
    """A table of requests, the engines it knows, and its callbacks, counted."""

    def __init__(self, kind: str = "process", **settings: Any) -> None:
        self.kind = kind
        self.resumed: list[bool] = []
        self.num_continued = self.num_crashed = 0
        callbacks = EngineCallbacks(
            on_resume=self.resumed.append, on_continue=self._on_continue, on_crash=self._on_crash
        )
        self.requests = RequestTable(callbacks=callbacks, choose=self._choose, **settings)
        self.ports: dict[str, Port] = {}
        self.fingerprint: m.FingerprintReady | None = FINGERPRINT
        self._num_ports = 0

    def _choose(self, request: Request, ports: Any) -> EnginePort:
        least: EnginePort = min(ports, key=lambda one: (len(one.streams), one.id))
        return least

    def _on_continue(self, seconds: float) -> None:
        assert seconds >= 0
        self.num_continued += 1

    def _on_crash(self) -> None:
        self.num_crashed += 1

    def start(self, fingerprint: m.FingerprintReady | None = FINGERPRINT) -> Port:
        """Another engine is ready."""
        self._num_ports += 1
        id = "" if self.kind == "process" else f"r{self._num_ports}"
        port = self.ports[id] = Port(self, id, fingerprint)
        if self.kind == "process":
            self.fingerprint = fingerprint
        self.update()
        return port

    def update(self) -> None:
        self.requests.set_ports(list(self.ports.values()), self.fingerprint, READY)

    def drain(self, port: Port) -> None:
        del self.ports[port.id]
        self.update()
        self.requests.drain(port)

    def submit(self, count: int = 1, **settings: Any) -> list[ResponseStream]:
        sent = settings.pop("sent", ())
        request = Request(0, (1, 2), SamplingParams(**{"deterministic": True, **settings}), SEED, sent=sent)
        return [self.requests.submit(asyncio.Event(), request) for _ in range(count)]

    def begin(self, count: int = 1, **settings: Any) -> tuple[Port, list[ResponseStream]]:
        """Another engine is ready, gets so many requests and accepts them."""
        port = self.start()
        streams = self.submit(count, **settings)
        port.accept()
        return port, streams


@pytest.fixture(params=["process", "replicas"])
def table(request: pytest.FixtureRequest) -> Table:
    return Table(request.param)


@pytest.fixture
def process() -> Table:
    return Table("process")


@pytest.fixture
def pool() -> Table:
    return Table("replicas")


# One engine after the other


def sent_of(
    ids: Sequence[int], values: Sequence[float], num_chars: int, thoughts: Sequence[tuple[int, ...]] = ()
) -> Sent:
    return Sent(array("i", ids), array("f", values), num_chars, list(thoughts))


def test_dead_engine_leaves_what_was_sent_to_the_next(table: Table) -> None:
    first = table.start()
    begun, waiting = table.submit(2)
    first.accept(1)
    first.token(1, 7)
    first.output(1, thoughts=(Thought(0, 3, "t", (4, 4)),))
    first.die(1)
    assert begun.paused_at is not None and table.requests.num_waiting == 2
    second = table.start()
    sent = sent_of((7,), (-0.5,), 1, [(4, 4)])
    assert second.submitted[0].sent == (sent,)
    assert second.submitted[0].prompt_ids == (1, 2) and len(second.submitted) == 1, "it is tried alone"
    first.token(1, 99)
    second.accept(1)
    second.token(1, 8)
    assert begun.paused_at is None and table.num_continued == 1
    assert second.ids == [1, 2] and not second.submitted[1].sent, "its client has nothing"
    assert [delta.token_ids for delta in begun.deltas] == [(7,), (), (8,)], "late frames find no receiver"
    assert table.resumed == [True, True] and waiting.num_resumes == 1


def test_suspects_run_one_after_the_other_before_the_rest(table: Table) -> None:
    first, _ = table.begin(5)
    first.die(2, 4)
    second = table.start()
    assert second.ids == [2]
    table.submit()  # a new one waits, too
    second.accept()
    second.token(2)
    assert second.ids == [2, 4]
    second.accept()
    second.token(2)
    assert second.ids == [2, 4], "the next suspect had no output yet"
    second.token(4)
    assert second.ids == [2, 4, 1, 3, 5, 6]


def test_request_that_was_being_prepared_is_a_suspect(table: Table) -> None:
    first = table.start()
    table.submit(2)
    first.accept(1)
    first.die()
    assert table.start().ids == [2]


def test_suspect_that_leaves_or_is_refused_lets_the_others_run(table: Table) -> None:
    first, streams = table.begin(3)
    first.die(1, 2)
    second = table.start()
    streams[0].cancel(RuntimeError("the client left"))
    assert second.aborted == [1] and second.ids == [1, 2]
    table.requests.refuse(second, 2, InvalidRequest("no"))
    assert second.ids == [1, 2, 3] and isinstance(streams[1].error, InvalidRequest)


def test_waiting_request_that_leaves_is_never_submitted(table: Table) -> None:
    first, (stream,) = table.begin()
    first.die()
    stream.cancel(RuntimeError("the client left"))
    assert table.start().submitted == [] and table.requests.num_live == 0


def test_poison_is_found_and_given_up(process: Table) -> None:
    port, streams = process.begin(3)
    port.die(1, 2, 3)
    port = process.start()
    port.accept()
    port.token(1)
    port.accept()
    port.die(1, 2)  # while the second is on trial
    for _ in range(MAX_LONE_DEATHS):
        assert not streams[1].is_over
        port = process.start()
        assert port.ids == [2], "it runs alone"
        port.accept()
        port.die(2)
    assert isinstance(streams[1].error, EngineCrashed) and process.num_crashed == 1
    port = process.start()
    for request_id in (1, 3):
        port.accept(request_id)
        port.token(request_id)
    assert port.ids == [1, 3] and not any(one.is_over for one in (streams[0], streams[2]))


def test_output_clears_a_suspect(table: Table) -> None:
    port, (stream,) = table.begin()
    for _ in range(3 * MAX_LONE_DEATHS):  # killed from outside, again and again
        port.die(1)
        port = table.start()
        port.accept()
        port.token(1)
    table.submit()
    assert not stream.is_over and port.ids == [1, 2], "nothing is on trial"


def test_failed_pass_is_tried_again_and_then_reported(process: Table) -> None:
    port, (failing, other) = process.begin(2)
    port.token(1)
    port.end(1, PassFailed.code)
    assert port.ids == [1, 2, 1] and not failing.is_over, "the same process tries it again"
    port.accept()
    port.end(1, PassFailed.code)
    assert port.is_killed and not failing.is_over, "the device may be broken"
    port.die()
    port = process.start()
    assert port.ids == [1]
    port.accept()
    port.end(1, PassFailed.code)
    assert failing.result is not None and failing.result.error_code == PassFailed.code
    assert process.num_crashed == 1 and not port.is_killed
    assert port.ids == [1, 2] and not other.is_over


@pytest.mark.parametrize("kind", [NotFinite, NoTokenAllowed, GuaranteeLost])
def test_other_error_of_an_answer_is_final_and_costs_no_restart(
    process: Table, kind: type[AnswerFailed]
) -> None:
    port, (failing, other) = process.begin(2)
    port.end(1, kind.code)
    assert failing.result is not None and failing.result.error_code == kind.code
    assert port.ids == [1, 2] and not port.is_killed and not other.is_over
    assert not process.num_crashed


def test_broken_device_costs_a_restart_and_no_request(process: Table) -> None:
    """Every pass raises from then on."""
    port, streams = process.begin(3)
    for request_id in (1, 2, 3):
        port.end(request_id, PassFailed.code)
    assert port.ids == [1, 2, 3, 1]
    port.accept()
    port.end(1, PassFailed.code)
    assert port.is_killed
    port.die()
    port = process.start()
    for request_id in (1, 2, 3):
        port.accept(request_id)
        port.token(request_id)
    assert port.ids == [1, 2, 3] and not any(one.is_over for one in streams) and not process.num_crashed


def test_request_that_breaks_the_device_ends_alone(process: Table) -> None:
    """The next suspect is tried in the same broken process: it is not to blame."""
    port, streams = process.begin(2)
    for request_id in (1, 2, 1):
        port.end(request_id, PassFailed.code)
    port.die()
    port = process.start()
    port.accept()
    port.end(1, PassFailed.code)
    assert streams[0].is_over and port.ids == [1, 2]
    port.accept(2)
    port.end(2, PassFailed.code)
    assert port.is_killed and not streams[1].is_over
    port.die()
    port = process.start()
    port.accept()
    port.token(2)
    assert not streams[1].is_over and process.num_crashed == 1


def test_ended_choice_is_sent_as_ended(table: Table) -> None:
    first, _ = table.begin(n=2)
    first.token(1, 7, index=1, finish_reason="stop", stop_reason="x")
    first.token(1, 8, index=0)
    first.die()
    table.submit()
    (message, following) = table.start().submitted
    assert following.request_id == 3, "each choice has an id"
    open_one, ended = message.sent
    assert (list(open_one.token_ids), open_one.finish_reason) == ([8], None)
    assert (list(ended.token_ids), ended.finish_reason, ended.stop_reason) == ([7], "stop", "x")


def test_continuation_whose_engine_dies_keeps_what_the_client_had(table: Table) -> None:
    """Also of a choice that had ended before."""
    ended = replace(sent_of((0,), (-2.0,), 0), finish_reason="stop")
    had = (sent_of((9,), (-1.0,), 4, [(2,)]), ended)
    first = table.start()
    table.submit(n=2, sent=had)
    table.requests.accept(first, 1)
    first.token(1, 7)
    first.die()
    (message,) = table.start().submitted
    begun = sent_of((9, 7), (-1.0, -0.5), 5, [(2,)])
    assert message.sent == (begun, ended)


def test_other_fingerprint_ends_deterministic_requests_that_had_begun(
    process: Table, caplog: pytest.LogCaptureFixture
) -> None:
    first, (begun,) = process.begin()
    (ordinary,) = process.submit(deterministic=False)
    first.accept(2)
    first.die()
    late = process.submit()[0]
    second = process.start(fingerprint=None)
    assert second.ids == [], "it is unknown yet whether they can continue"
    assert "another fingerprint" not in caplog.text
    second.fingerprint = process.fingerprint = OTHER
    process.update()
    assert second.ids == [2, 3] and isinstance(begun.error, GuaranteeLost)
    process.update()
    assert caplog.text.count("another fingerprint from now on: xyz, before abc") == 1
    assert not ordinary.is_over and not late.is_over


def test_requests_begin_while_the_weights_are_hashed(process: Table) -> None:
    port = process.start(fingerprint=None)
    (stream,) = process.submit()
    port.accept()
    assert port.ids == [1] and stream.fingerprint is None
    port.fingerprint = process.fingerprint = FINGERPRINT
    process.update()
    assert stream.fingerprint == FINGERPRINT


async def test_fingerprint_is_the_last_one_while_there_is_no_engine(table: Table) -> None:
    waiting = asyncio.create_task(table.requests.wait_for_fingerprint())
    first = table.start()
    assert await waiting == FINGERPRINT
    first.die()
    assert await table.requests.wait_for_fingerprint() == FINGERPRINT


def test_no_more_engines_fail_every_request(table: Table) -> None:
    first = table.start()
    streams = table.submit(2)
    first.die()
    table.requests.close(EngineStopped("died too often"))
    assert all(isinstance(one.error, EngineStopped) for one in streams)
    with pytest.raises(EngineStopped, match="died too often"):
        table.submit()
    table.start()  # one that was on its way
    assert table.requests.num_live == 0


@pytest.mark.parametrize("kind", ["process", "replicas"])
def test_without_resumes_nothing_is_kept(kind: str) -> None:
    table = Table(kind, resumes=False)
    first, (stream,) = table.begin()
    first.token(1)
    first.die(1)
    assert isinstance(stream.error, EngineStopped)
    with pytest.raises(EngineStopped):
        table.submit()


# Several engines at once


def test_lost_connection_leaves_its_requests_to_another_replica_without_blame(pool: Table) -> None:
    first, second = pool.start(), pool.start()
    (stream,) = pool.submit()
    first.accept()
    first.token(1)
    first.close()
    assert second.ids == [1] and second.submitted[0].sent
    pool.submit()
    assert second.ids == [1, 2], "it is not on trial"
    third = pool.start()
    second.close()
    pool.submit()
    assert third.ids == [1] and not stream.is_over, "lost twice without an output, it is tried alone"


def test_drained_replica_leaves_its_requests_to_another_without_blame(pool: Table) -> None:
    first, (stream,) = pool.begin()
    pool.drain(first)
    assert not first.aborted, "no other replica may go on with it yet"
    second = pool.start()
    pool.requests.drain(first)
    second.accept(1)
    first.token(1)
    assert first.aborted == [1] and not stream.deltas, "late outputs of the first are ignored"
    second.token(1)
    pool.submit()
    assert len(stream.deltas) == 1 and stream.replicas == ["r1", "r2"] and second.ids == [1, 2]


def test_requests_are_shared_and_accepted_ones_counted(pool: Table) -> None:
    ports = [pool.start(), pool.start()]
    pool.submit(5)
    pool.submit(deterministic=False)
    for port in ports:
        port.accept()
    assert [port.ids for port in ports] == [[1, 3, 5], [2, 4, 6]]
    assert pool.requests.num_accepted == {("r1", True): 3, ("r2", True): 2, ("r2", False): 1}


def test_replica_without_an_open_connection_gets_no_request(pool: Table) -> None:
    first = pool.start()
    first.closed.set()  # the pool has not heard of it yet
    pool.submit()
    assert not first.submitted and pool.requests.num_waiting == 1


def test_deterministic_requests_go_to_the_application_s_fingerprint_only(pool: Table) -> None:
    other = pool.start(OTHER)
    pool.submit()
    assert other.ids == [] and pool.requests.num_waiting == 1
    pool.submit(deterministic=False)
    assert other.ids == [2]
    assert pool.start().ids == [1]


def test_structured_answer_continues_only_with_the_same_grammar_library(pool: Table) -> None:
    first, other = pool.start(), pool.start(OTHER_GRAMMARS)
    structured, plain = pool.submit(1, structured=StructuredOutput(regex="a+")) + pool.submit()
    assert first.ids == [1]
    first.accept()
    other.accept()
    first.close()
    assert other.ids == [2] and pool.requests.num_waiting == 1
    third = pool.start()
    assert third.ids == [1] and structured.error is None and plain.error is None


def test_without_the_configured_fingerprint_deterministic_requests_are_refused(pool: Table) -> None:
    pool.fingerprint = None
    pool.start(OTHER)
    with pytest.raises(DeterminismRefused, match="fingerprint"):
        pool.submit()
    assert pool.requests.num_live == 0


def test_answer_that_began_with_a_gone_fingerprint_ends(pool: Table) -> None:
    first = pool.start()
    (stream,) = pool.submit()
    first.accept(1)
    first.token(1)
    pool.fingerprint = OTHER
    pool.start(OTHER)
    first.close()
    assert isinstance(stream.error, GuaranteeLost)


def test_suspects_are_tried_one_after_the_other_while_other_replicas_go_on(pool: Table) -> None:
    first, _ = pool.begin(3)
    second, third = pool.start(), pool.start()
    first.die(1, 2)
    assert (second.ids, third.ids) == ([1], [3])
    pool.submit()
    assert third.ids == [3, 4], "the replica with the trial gets nothing new"
    second.accept()
    second.token(1)
    assert second.ids == [1, 2]


def test_poison_at_replicas_is_given_up_though_they_have_other_requests(pool: Table) -> None:
    port = pool.start()
    (stream,) = pool.submit()
    for _ in range(1 + MAX_LONE_DEATHS):
        assert stream.error is None
        following = pool.start()
        port.accept()
        port.die(1, 77)
        port = following
    assert isinstance(stream.error, EngineCrashed) and pool.requests.num_live == 0


def test_pass_that_raises_at_two_replicas_ends_its_request(pool: Table) -> None:
    first, second = pool.start(), pool.start()
    (stream,) = pool.submit()
    first.accept()
    first.end(1, PassFailed.code)
    assert second.ids == [1] and not stream.is_over
    second.accept()
    second.end(1, PassFailed.code)
    assert stream.result is not None and stream.result.error_code == PassFailed.code
    assert not first.is_killed and not second.is_killed


# Any order of events


class Events:
    """Random events in the life of a table: requests come and leave, engines answer, fail, die and are drained."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table, self.rng = table, random.Random(seed)
        self.streams: list[ResponseStream] = []
        self.drained: list[Port] = []
        table.start()

    @property
    def ports(self) -> list[Port]:
        return [*self.table.ports.values(), *self.drained]

    def happen(self) -> None:
        rng, what = self.rng, self.rng.random()
        port = rng.choice(self.ports) if self.ports else None
        if what < 0.25 and self.table.ports:
            self.streams += self.table.submit(deterministic=rng.random() < 0.7)
        elif what < 0.3 and self.streams:
            rng.choice(self.streams).cancel(RuntimeError("the client left"))
        elif port is None:
            self.table.start()
        elif what < 0.75 and not port.is_killed:
            self.answer(port, rng.choice([None, None, PassFailed.code]))
        elif what < 0.85 or port.is_killed:
            self.lose(port)
        elif what < 0.9 and not port.is_only and port not in self.drained:
            self.drained.append(port)
            self.table.drain(port)
        elif not port.is_only and len(self.ports) < 4:
            self.table.start()

    def answer(self, port: Port, code: str | None = None) -> None:
        """Something arrives about one of the port's requests."""
        if not port.streams:
            return
        request_id = self.rng.choice(sorted(port.streams))
        if not port.streams[request_id].is_accepted:
            port.accept(request_id)
        elif self.rng.random() < 0.6:
            port.token(request_id)
        else:
            port.end(request_id, code)

    def lose(self, port: Port) -> None:
        if port in self.drained:
            self.drained.remove(port)
        running = frozenset(one for one in port.streams if self.rng.random() < 0.7)
        port.close(running if port.is_only or self.rng.random() < 0.6 else None)

    def check(self) -> None:
        """Every request that is not over waits, or is at one engine."""
        requests = self.table.requests
        for stream in self.streams:
            places = [port for port in self.ports if stream.request_id in port.streams]
            assert places == ([] if stream.port is None else [stream.port])
            waits = stream.request_id in requests._waiting
            assert len(places) + waits == (not stream.is_over)
        trial = requests._suspects.trial
        assert trial is None or trial.port is not None


@pytest.mark.parametrize("seed", range(40))
def test_no_request_is_lost_or_stuck_whatever_happens(table: Table, seed: int) -> None:
    events = Events(table, seed)
    for _ in range(150):
        events.happen()
        events.check()
    for port in events.ports:  # at last there is one healthy engine
        events.lose(port)
    last = table.start()
    for _ in range(2000):
        events.answer(last)
    assert table.requests.num_live == 0 and all(one.is_over for one in events.streams)
