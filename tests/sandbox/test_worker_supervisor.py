"""The supervisor of worker processes: isolation, deadlines, lost workers, refused set-ups, and its
end."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.sandbox import supervisor
from holdfast.sandbox.supervisor import SetupLost, SetupRefused, WorkerLost, WorkerSupervisor

WORKER = """
import os, sys, time
def open_worker(setup):
    if "kill" in setup:
        os.kill(os.getpid(), setup["kill"])
    if "error" in setup:
        raise ValueError(setup["error"])
    return answer
def answer(request):
    time.sleep(request.get("sleep", 0))
    if "kill" in request:
        os.kill(os.getpid(), request["kill"])
    if "exit" in request:
        os._exit(request["exit"])
    while "spin" in request:
        pass
    process = {"pid": os.getpid(), "hash": hash("a"), "environ": dict(os.environ), "path": sys.path, "argv": sys.argv}
    return {**process, "echo": request.get("echo")}
"""
Start = Callable[..., WorkerSupervisor]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(supervisor, "__file__", str(tmp_path / "supervisor.py"))
    started = []

    def make(setup: dict[str, Any] | None = None, packages: tuple[str, ...] = ()) -> WorkerSupervisor:
        started.append(WorkerSupervisor("worker.py", packages, lambda: setup or {}))
        return started[-1]

    yield make
    for each in started:
        each.close()


def test_worker_has_its_own_environment_and_only_its_packages(start: Start) -> None:
    answer = start(packages=("pytest",)).request({}, seconds=30)
    answer["environ"].pop("LC_CTYPE", None)  # which Python itself sets
    assert answer["environ"] == {"PYTHONHASHSEED": "0", "TZ": "UTC0"}
    assert answer["argv"][2:] == [str(Path(pytest.__file__).parents[1])]
    assert [each for each in answer["path"] if "site-packages" in each] == answer["argv"][2:]
    assert start().request({}, seconds=30)["hash"] == answer["hash"]


def test_one_process_answers_many_requests(start: Start) -> None:
    worker = start()
    worker.warm()
    (pid,) = worker.pids
    answers = [worker.request({"echo": index}, seconds=30) for index in range(3)]
    assert [answer["echo"] for answer in answers] == [0, 1, 2]
    assert {answer["pid"] for answer in answers} == {pid}


def test_threads_get_their_own_answers(start: Start) -> None:
    worker, found = start(), {}

    def ask(index: int) -> None:
        found[index] = worker.request({"echo": index}, seconds=30)["echo"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: index for index in range(8)}


def test_timeout_kills_the_process(start: Start) -> None:
    worker = start()
    first = worker.request({}, seconds=30)["pid"]
    started = time.monotonic()
    with pytest.raises(WorkerLost, match="too long"):
        worker.request({"sleep": 60, "echo": "late"}, seconds=0.2)
    assert time.monotonic() - started < 20
    answer = worker.request({"echo": "next"}, seconds=30)
    assert answer["echo"] == "next" and answer["pid"] != first


@pytest.mark.parametrize(
    ("request_", "reason", "number"),
    [
        ({"kill": signal.SIGPROF}, f"signal {int(signal.SIGPROF)}", signal.SIGPROF),
        ({"spin": True, "cpu_seconds": 0.05}, f"signal {int(signal.SIGPROF)}", signal.SIGPROF),
        ({"exit": 3}, "exit status 3", None),
        ({"echo": "x" * 2000}, "longer than allowed", None),
    ],
)
def test_lost_worker_is_explained_and_replaced(
    start: Start, request_: dict[str, Any], reason: str, number: int | None
) -> None:
    worker = start()
    with pytest.raises(WorkerLost, match=reason) as raised:
        worker.request(request_, seconds=30, max_bytes=1000)
    assert raised.value.signal == number
    assert not isinstance(raised.value, SetupLost)
    assert worker.request({"echo": 1}, seconds=30)["echo"] == 1


def test_failed_setup_is_told_apart(start: Start) -> None:
    with pytest.raises(SetupLost) as raised:
        start({"kill": signal.SIGPROF}).request({}, seconds=30)
    assert raised.value.signal == signal.SIGPROF
    with pytest.raises(SetupRefused, match="no good"):
        start({"error": "no good"}).request({}, seconds=30)


def test_process_that_cannot_start_is_an_os_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    worker.warm()  # never raises
    with pytest.raises(OSError, match="nowhere"):
        worker.request({}, seconds=30)
    with pytest.raises(ImportError, match="no_such_package"):
        start(packages=("no_such_package",)).request({}, seconds=30)


def test_process_ends_with_its_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(supervisor, "__file__", str(tmp_path / "supervisor.py"))
    worker = WorkerSupervisor("worker.py", (), dict)
    pid = worker.request({}, seconds=30)["pid"]
    assert worker.pids == (pid,)
    del worker
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
