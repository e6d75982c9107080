"""The engine process seen through its socket: a tiny engine served by a thread of the test."""

import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.core.cancel_token import CancelToken
from holdfast.core.framing import read_frame
from holdfast.core.request import Prepared, Request
from holdfast.core.results import Delta, Result
from holdfast.core.sampling_params import SamplingParams, StructuredOutput, score_params
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.errors import BadWeights, ConfigError
from holdfast.server.ipc import host_main
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.host import EngineHost

PATIENCE = 60.0
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, deterministic=True, seed=1)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)
M = TypeVar("M")


class Process:
    """`serve` in a thread, and the frontend's end of its socket."""

    def __init__(self, make: host_main.Build, config: EngineConfig) -> None:
        self._link, theirs = socket.socketpair()
        self._link.settimeout(PATIENCE)
        self._unread: list[m.FromEngine] = []
        self.code: int | None = None

        def serve() -> None:
            with theirs:
                self.code = host_main.serve(theirs, make)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        self.send(m.Start(config, "text", "info"))

    def send(self, *messages: m.ToEngine) -> None:
        self._link.sendall(m.encode(messages))

    def send_raw(self, raw: bytes) -> None:
        self._link.sendall(raw)

    def receive(self, kind: type[M]) -> M:
        """The next message of this kind; others wait until they are asked for."""
        for at, known in enumerate(self._unread):
            if isinstance(known, kind):
                del self._unread[at]
                return known
        while not isinstance(message := m.decode_from_engine(read_frame(self._link)), kind):
            self._unread.append(message)
        return message

    def receive_results(self, count: int = 1) -> tuple[list[Delta], dict[int, Result]]:
        """All deltas and results until so many requests have ended."""
        deltas: list[Delta] = []
        results: dict[int, Result] = {}
        while len(results) < count:
            for output in self.receive(m.StepOutput).outputs:
                deltas.append(output.delta)
                if output.result is not None:
                    results[output.request_id] = output.result
        return deltas, results

    def status(self) -> Any:
        self.send(m.GetStatus())
        return self.receive(m.StatusReport).status

    def hang_up(self) -> None:
        self._link.close()

    def end(self) -> int | None:
        """Its exit code, once it has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the process does not end"
        self._link.close()
        return self.code


@pytest.fixture(autouse=True)
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`configure_logging` would change the whole test process."""
    monkeypatch.setattr(host_main, "configure_logging", lambda *_, **__: None)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[int]":
    """The codes of calls to `os._exit`, which here only block the calling thread."""
    codes: queue.Queue[int] = queue.Queue()

    def exit_thread(code: int) -> None:
        codes.put(code)
        threading.Event().wait()

    monkeypatch.setattr(os, "_exit", exit_thread)
    monkeypatch.setattr(host_main, "_FLUSH_SECONDS", 0.1)
    return codes


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    return build(EngineConfig(str(tiny_llama), max_num_seqs=4, max_pass_tokens=64))


@pytest.fixture
def process(engine: Engine) -> Iterator[Process]:
    running = Process(lambda config, show: engine, EngineConfig())
    running.receive(m.Ready)
    yield running
    running.send(m.Stop())
    assert running.end() == 0
    assert not engine.has_requests and engine.scheduler.pool.num_held == 0


def submit(number: int, params: SamplingParams = PARAMS, prompt: tuple[int, ...] = (5, 6, 7)) -> m.Submit:
    return m.Submit(Request(number, prompt, params, 1))


def test_request_is_accepted_and_answered_in_deltas(engine: Engine, process: Process) -> None:
    assert process.receive(m.FingerprintReady).digest == engine.fingerprint.digest
    process.send(submit(3))
    accepted = process.receive(m.Accepted)
    assert accepted.request_id == 3
    deltas, results = process.receive_results()
    assert sum(len(delta.token_ids) for delta in deltas) == 8 and deltas[-1].finish_reason == "length"
    assert (results[3].determinism, results[3].error) == ("certified", None)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (submit(1, prompt=(10**6,)), "invalid_value"),
        (submit(1, prompt=tuple(range(3, 300)) * 2), "context_length_exceeded"),
        (m.Submit(Request(1, (5,), score_params(deterministic=True), 0, read_len=1)), "invalid_value"),
    ],
)
def test_invalid_request_is_refused_and_others_go_on(process: Process, wrong: m.Submit, code: str) -> None:
    process.send(submit(2), wrong, submit(3))
    refused = process.receive(m.Refused)
    assert (refused.request_id, refused.code) == (1, code)
    _, results = process.receive_results(2)
    assert results.keys() == {2, 3} and results[2].error is results[3].error is None


def test_abort_frees_pages(process: Process) -> None:
    process.send(submit(1, LONG))
    process.receive(m.StepOutput)
    process.send(m.Abort(1))
    deltas, _ = process.receive_results()
    assert deltas[-1].finish_reason == "abort"
    status = process.status()
    assert (status.num_running, status.num_waiting, status.num_pages_used) == (0, 0, 0)


def test_request_aborted_while_prepared_is_never_submitted(
    engine: Engine, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, go_on, done = threading.Event(), threading.Event(), threading.Event()
    check, submit_request = engine.check_request, EngineHost._submit

    def check_slowly(request: Request, token: CancelToken) -> Prepared:
        compiling.set()
        assert go_on.wait(PATIENCE)
        return check(replace(request, params=replace(request.params, structured=None, ignore_eos=True)))

    def submit_and_signal(*parts: Any) -> None:
        submit_request(*parts)
        done.set()

    monkeypatch.setattr(engine, "check_request", check_slowly)
    monkeypatch.setattr(EngineHost, "_submit", submit_and_signal)
    process.send(submit(1, SamplingParams(max_tokens=400, structured=StructuredOutput(regex="a+"))))
    assert compiling.wait(PATIENCE)
    assert process.status().num_running == 0  # the loop does not wait for it
    process.send(m.Abort(1))
    process.status()
    go_on.set()
    assert done.wait(PATIENCE)
    status = process.status()
    assert (status.num_running, status.num_waiting) == (0, 0)


def test_request_aborted_before_the_loop_sees_it_is_never_submitted(engine: Engine) -> None:
    """The loop is busy while both messages arrive."""
    sent: list[m.FromEngine] = []
    host = EngineHost(engine, sent.append)
    try:
        for message in (submit(1), m.Abort(1), submit(2), m.Stop()):
            host.handle(message)
        host.loop.run()
        accepted = [one.request_id for one in sent if isinstance(one, m.Accepted)]
        assert accepted == [2]
        assert not host._preparing
    finally:
        engine.abort(2)
        host.close()


def test_abort_of_unknown_request_does_nothing(process: Process) -> None:
    process.send(m.Abort(77), submit(1))
    assert process.receive_results()[1].keys() == {1}
    process.send(m.Abort(1))
    assert process.status().num_running == 0


@pytest.mark.parametrize("leave", [Process.hang_up, lambda process: process.send(m.Stop())])
def test_process_ends_in_the_middle_of_an_answer(engine: Engine, leave: Callable[[Process], None]) -> None:
    process = Process(lambda config, show: engine, EngineConfig())
    process.receive(m.Ready)
    process.send(submit(1, LONG))
    process.receive(m.StepOutput)
    leave(process)
    assert process.end() == 0
    for number in list(engine._answers):
        engine.abort(number)


@pytest.mark.parametrize("leave", [Process.hang_up, lambda process: process.send(m.Stop())])
def test_process_ends_while_it_loads(exits: "queue.Queue[int]", leave: Callable[[Process], None]) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load(config: EngineConfig, show: Any) -> Engine:
        loading.set()
        assert go_on.wait(PATIENCE)
        raise ConfigError("enough")

    process = Process(load, EngineConfig())
    assert loading.wait(PATIENCE)
    leave(process)
    assert exits.get(timeout=PATIENCE) == 0
    go_on.set()
    process.end()


@pytest.mark.parametrize("fault", ["in", "out", "name"])
def test_dead_thread_ends_the_process(
    engine: Engine, exits: "queue.Queue[int]", monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """An engine that computes but can neither receive nor send would be worse than none."""
    hosts: list[EngineHost] = []

    def make_host(*parts: Any) -> EngineHost:
        hosts.append(EngineHost(*parts))
        return hosts[0]

    monkeypatch.setattr(host_main, "EngineHost", make_host)
    if fault == "name":
        monkeypatch.setattr(Engine, "fingerprint", property(lambda self: 1 / 0))
    process = Process(lambda config, show: engine, EngineConfig())
    process.receive(m.Ready)
    if fault == "in":
        process.send_raw(b"\x03\0\0\0bad")
    elif fault == "out":
        hosts[0]._send(object())  # type: ignore[arg-type]
    assert exits.get(timeout=PATIENCE) == 1
    hosts[0].loop.stop()
    process.end()


@pytest.mark.parametrize("fault", ["weights", "budget"])
def test_startup_failure_is_reported(
    tiny_llama: Path, tmp_path: Path, exits: "queue.Queue[int]", fault: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    config = EngineConfig(str(model), kv_memory="1KiB" if fault == "budget" else None)
    if fault == "weights":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:5000])
    process = Process(build, config)
    reason = process.receive(m.StartupFailed).reason
    assert ("model.safetensors" if fault == "weights" else "kv_memory") in reason
    assert process.end() == 2
    exits.get(timeout=PATIENCE)  # its reader sees the end of the connection, too


def test_process_without_a_fingerprint_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No response may wait for it."""

    class Changed:
        @property
        def fingerprint(self) -> None:
            raise BadWeights("model.safetensors changed")

    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match="1"):
        host_main._send_fingerprint(Changed(), None)  # type: ignore[arg-type]
