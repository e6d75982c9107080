"""Requests outlive their engine process: what is submitted again, in which order, and what is given up."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.errors import (
    AnswerFailed,
    EngineCrashed,
    EngineStopped,
    GuaranteeLost,
    InvalidRequest,
    NotFinite,
    NoTokenAllowed,
    PassFailed,
)
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.live_requests import MAX_LONE_DEATHS, LiveRequests, ResumeCallbacks
from holdfast.server.ipc.response_stream import ResponseStream
from support.fake_engine import READY, SEED

FINGERPRINT = m.FingerprintReady("abc", {})


class Process:
    """An engine process as `LiveRequests` sees it: it takes messages, and its outputs are scripted."""

    def __init__(self, requests: LiveRequests, fingerprint: m.FingerprintReady | None = FINGERPRINT) -> None:
        self.requests: Any = requests
        self.ready, self.fingerprint = READY, fingerprint
        self.is_killed = False
        self.running_ids: frozenset[int] = frozenset()
        self.submitted: list[Request] = []
        self.aborted: list[int] = []
        self.requests.attach(self)

    def submit(self, message: m.Submit) -> None:
        self.submitted.append(message.request)

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def kill(self) -> None:
        self.is_killed = True

    @property
    def ids(self) -> list[int]:
        return [message.request_id for message in self.submitted]

    def accept(self, *ids: int) -> None:
        for request_id in ids or self.ids:
            self.requests.accept(request_id)

    def output(self, request_id: int, result: Result | None = None, **delta: Any) -> None:
        self.requests.deliver(RequestOutput(request_id, Delta(**delta), result))

    def token(self, request_id: int, token_id: int = 5, **delta: Any) -> None:
        self.output(request_id, text="x", token_ids=(token_id,), token_logprobs=(-0.5,), **delta)

    def end(self, request_id: int, code: str | None = None) -> None:
        reason = "stop" if code is None else "error"
        result = Result((), (), SEED, "none", Stats(), error=code, error_code=code)
        self.output(request_id, result, finish_reason=reason)

    def die(self, *running: int) -> None:
        """It dies in a pass of these requests."""
        self.running_ids = frozenset(running)
        self.requests.detach(self)


class Counted:
    """The callbacks, counted."""

    def __init__(self) -> None:
        self.resumed: list[bool] = []
        self.num_continued = self.num_crashed = 0

    def callbacks(self) -> ResumeCallbacks:
        return ResumeCallbacks(self.resumed.append, self._on_continue, self._on_crash)

    def _on_continue(self, seconds: float) -> None:
        assert seconds >= 0
        self.num_continued += 1

    def _on_crash(self) -> None:
        self.num_crashed += 1


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def requests(counted: Counted) -> LiveRequests:
    return LiveRequests(callbacks=counted.callbacks())


def submit(requests: LiveRequests, count: int = 1, **settings: Any) -> list[ResponseStream]:
    sent = settings.pop("sent", ())
    request = Request(0, (1, 2), SamplingParams(**{"deterministic": True, **settings}), SEED, sent=sent)
    return [requests.submit(asyncio.Event(), request) for _ in range(count)]


def sent_of(
    ids: Sequence[int], values: Sequence[float], num_chars: int, thoughts: Sequence[tuple[int, ...]] = ()
) -> Sent:
    return Sent(array("i", ids), array("f", values), num_chars, list(thoughts))


def test_dead_process_leaves_what_was_sent_to_the_next(requests: LiveRequests, counted: Counted) -> None:
    first = Process(requests)
    begun, waiting = submit(requests, 2)
    first.accept(1)
    first.token(1, 7)
    first.output(1, thoughts=(Thought(0, 3, "t", (4, 4)),))
    first.die(1)
    assert begun.paused_at is not None and requests.num_waiting == 2
    second = Process(requests)
    sent = sent_of((7,), (-0.5,), 1, [(4, 4)])
    assert second.submitted[0].sent == (sent,)
    assert second.submitted[0].prompt_ids == (1, 2) and len(second.submitted) == 1, "it is tried alone"
    second.accept(1)
    second.token(1, 8)
    assert begun.paused_at is None and counted.num_continued == 1
    assert second.ids == [1, 2] and not second.submitted[1].sent, "its client has nothing"
    assert [delta.token_ids for delta in begun.deltas] == [(7,), (), (8,)]
    assert counted.resumed == [True, True] and waiting.num_resumes == 1


def test_suspects_run_one_after_the_other_before_the_rest(requests: LiveRequests) -> None:
    first = Process(requests)
    submit(requests, 5)
    first.accept()
    first.die(2, 4)
    second = Process(requests)
    assert second.ids == [2]
    submit(requests)  # a new one waits, too
    second.accept()
    second.token(2)
    assert second.ids == [2, 4]
    second.accept()
    second.token(2)
    assert second.ids == [2, 4], "the next suspect had no output yet"
    second.token(4)
    assert second.ids == [2, 4, 1, 3, 5, 6]


def test_request_that_was_being_prepared_is_a_suspect(requests: LiveRequests) -> None:
    first = Process(requests)
    submit(requests, 2)
    first.accept(1)
    first.die()
    assert Process(requests).ids == [2]


def test_suspect_that_leaves_or_is_refused_lets_the_others_run(requests: LiveRequests) -> None:
    first = Process(requests)
    streams = submit(requests, 3)
    first.accept()
    first.die(1, 2)
    second = Process(requests)
    streams[0].cancel(RuntimeError("the client left"))
    assert second.aborted == [1] and second.ids == [1, 2]
    requests.refuse(2, InvalidRequest("no"))
    assert second.ids == [1, 2, 3] and isinstance(streams[1].error, InvalidRequest)


def test_waiting_request_that_leaves_is_never_submitted(requests: LiveRequests) -> None:
    first = Process(requests)
    (stream,) = submit(requests)
    first.accept()
    first.die()
    stream.cancel(RuntimeError("the client left"))
    assert Process(requests).submitted == [] and requests.num_live == 0


def test_poison_is_found_and_given_up(requests: LiveRequests, counted: Counted) -> None:
    process = Process(requests)
    streams = submit(requests, 3)
    process.accept()
    process.die(1, 2, 3)
    process = Process(requests)
    process.accept()
    process.token(1)
    process.accept()
    process.die(1, 2)  # while the second is on trial
    for _ in range(MAX_LONE_DEATHS):
        assert not streams[1].is_over
        process = Process(requests)
        assert process.ids == [2], "it runs alone"
        process.accept()
        process.die(2)
    assert isinstance(streams[1].error, EngineCrashed) and counted.num_crashed == 1
    process = Process(requests)
    for request_id in (1, 3):
        process.accept(request_id)
        process.token(request_id)
    assert process.ids == [1, 3] and not any(one.is_over for one in (streams[0], streams[2]))


def test_output_clears_a_suspect(requests: LiveRequests) -> None:
    process = Process(requests)
    (stream,) = submit(requests)
    process.accept()
    for _ in range(3 * MAX_LONE_DEATHS):  # killed from outside, again and again
        process.die(1)
        process = Process(requests)
        process.accept()
        process.token(1)
    assert not stream.is_over and not stream.is_suspect


def test_failed_pass_is_tried_again_and_then_reported(requests: LiveRequests, counted: Counted) -> None:
    process = Process(requests)
    failing, other = submit(requests, 2)
    process.accept()
    process.token(1)
    process.end(1, PassFailed.code)
    assert process.ids == [1, 2, 1] and not failing.is_over, "the same process tries it again"
    process.accept()
    process.end(1, PassFailed.code)
    assert process.is_killed and not failing.is_over, "the device may be broken"
    process.die()
    process = Process(requests)
    assert process.ids == [1]
    process.accept()
    process.end(1, PassFailed.code)
    assert failing.result is not None and failing.result.error_code == PassFailed.code
    assert counted.num_crashed == 1 and not process.is_killed
    assert process.ids == [1, 2] and not other.is_over


@pytest.mark.parametrize("kind", [NotFinite, NoTokenAllowed])
def test_request_without_a_token_ends_and_costs_no_restart(
    requests: LiveRequests, counted: Counted, kind: type[AnswerFailed]
) -> None:
    process = Process(requests)
    failing, other = submit(requests, 2)
    process.accept()
    process.end(1, kind.code)
    assert failing.result is not None and failing.result.error_code == kind.code
    assert process.ids == [1, 2] and not process.is_killed and not other.is_over
    assert not counted.num_crashed


def test_broken_device_costs_a_restart_and_no_request(requests: LiveRequests, counted: Counted) -> None:
    """Every pass raises from then on."""
    process = Process(requests)
    streams = submit(requests, 3)
    process.accept()
    for request_id in (1, 2, 3):
        process.end(request_id, PassFailed.code)
    assert process.ids == [1, 2, 3, 1]
    process.accept()
    process.end(1, PassFailed.code)
    assert process.is_killed
    process.die()
    process = Process(requests)
    for request_id in (1, 2, 3):
        process.accept(request_id)
        process.token(request_id)
    assert process.ids == [1, 2, 3] and not any(one.is_over for one in streams) and not counted.num_crashed


def test_request_that_breaks_the_device_ends_alone(requests: LiveRequests, counted: Counted) -> None:
    """The next suspect is tried in the same broken process: it is not to blame."""
    process = Process(requests)
    streams = submit(requests, 2)
    process.accept()
    for request_id in (1, 2, 1):
        process.end(request_id, PassFailed.code)
    process.die()
    process = Process(requests)
    process.accept()
    process.end(1, PassFailed.code)
    assert streams[0].is_over and process.ids == [1, 2]
    process.accept(2)
    process.end(2, PassFailed.code)
    assert process.is_killed and not streams[1].is_over
    process.die()
    process = Process(requests)
    process.accept()
    process.token(2)
    assert not streams[1].is_suspect and counted.num_crashed == 1


def test_other_errors_of_an_answer_are_final(requests: LiveRequests) -> None:
    process = Process(requests)
    (stream,) = submit(requests)
    process.accept()
    process.end(1, GuaranteeLost.code)
    assert stream.result is not None and stream.result.error_code == GuaranteeLost.code


def test_ended_choice_is_sent_as_ended(requests: LiveRequests) -> None:
    first = Process(requests)
    submit(requests, n=2)
    first.accept()
    first.token(1, 7, index=1, finish_reason="stop", stop_reason="x")
    first.token(1, 8, index=0)
    first.die()
    submit(requests)
    (message, following) = Process(requests).submitted
    assert following.request_id == 3, "each choice has an id"
    open_one, ended = message.sent
    assert (list(open_one.token_ids), open_one.finish_reason) == ([8], None)
    assert (list(ended.token_ids), ended.finish_reason, ended.stop_reason) == ([7], "stop", "x")


def test_continuation_whose_process_dies_keeps_what_the_client_had(requests: LiveRequests) -> None:
    """Also of a choice that had ended before."""
    ended = replace(sent_of((0,), (-2.0,), 0), finish_reason="stop")
    had = (sent_of((9,), (-1.0,), 4, [(2,)]), ended)
    first = Process(requests)
    submit(requests, n=2, sent=had)
    requests.accept(1)
    first.token(1, 7)
    first.die()
    (message,) = Process(requests).submitted
    begun = sent_of((9, 7), (-1.0, -0.5), 5, [(2,)])
    assert message.sent == (begun, ended)


def test_other_fingerprint_ends_deterministic_requests_that_had_begun(requests: LiveRequests) -> None:
    first = Process(requests)
    (begun,), (ordinary,) = submit(requests), submit(requests, deterministic=False)
    first.accept()
    first.die()
    late = submit(requests)[0]
    second = Process(requests, fingerprint=None)
    assert second.ids == [], "it is unknown yet whether they can continue"
    second.fingerprint = m.FingerprintReady("xyz", {})
    requests.set_fingerprint(second.fingerprint)
    assert second.ids == [2, 3] and isinstance(begun.error, GuaranteeLost)
    assert not ordinary.is_over and not late.is_over


def test_fingerprint_is_the_last_one_while_there_is_no_process(requests: LiveRequests) -> None:
    async def work() -> None:
        first = Process(requests)
        requests.set_fingerprint(FINGERPRINT)
        first.die()
        assert await requests.wait_for_fingerprint() == FINGERPRINT
        requests.close(EngineStopped("the end"))

    asyncio.run(work())


def test_no_more_processes_fail_every_request(requests: LiveRequests) -> None:
    first = Process(requests)
    streams = submit(requests, 2)
    first.die()
    requests.close(EngineStopped("died too often"))
    assert all(isinstance(one.error, EngineStopped) for one in streams)
    with pytest.raises(EngineStopped, match="died too often"):
        submit(requests)
    Process(requests)  # one that was on its way
    assert requests.num_live == 0


def test_without_resumes_nothing_is_kept() -> None:
    requests = LiveRequests(resumes=False)
    first = Process(requests)
    (stream,) = submit(requests)
    first.accept()
    first.token(1)
    first.die(1)
    assert isinstance(stream.error, EngineStopped)
    with pytest.raises(EngineStopped):
        submit(requests)
