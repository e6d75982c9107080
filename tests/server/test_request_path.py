"""The way of one streamed chat request through our code, from its route to the queue of the scheduler.

A profiler notes each class and module-level function that gets the request from another module, as a body,
a conversation, a prompt or a `Request`. Functions that only look at it are no stations. A return is a second
visit to a module that was left. docs/design.md has the list.
"""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from starlette.requests import Request as HttpRequest

from holdfast.core.framing import read_frame
from holdfast.core.request import Prepared, Request
from holdfast.engine.config import EngineConfig
from holdfast.engine.start.builder import build
from holdfast.scheduler.request_state import RequestState
from holdfast.server.api.chat_plan import ChatPlan
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.app import make_app
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.ipc import host_main
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort
from holdfast.server.ipc.engines import Engines
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.served_models import ServedModels
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.text.chat_content import TemplateInput
from support.asgi import scope_of
from support.fake_engine import READY

MARK = "some text that only this request has"
BODY = b'{"messages": [{"role": "user", "content": "%s"}], "max_tokens": 4, "stream": true}' % MARK.encode()
CARRIERS = (
    *(HttpRequest, ChatCompletionRequest, TemplateInput, ChatPlan),
    *(Request, m.Submit, Prepared, RequestState),
)
NO_STATIONS = {"__create_fn__", *(one.__name__ for one in CARRIERS)}  # they are the request
PATIENCE = 30.0
MOST_OBJECTS = 20
MOST_RETURNS = 3

Station = tuple[str, str]  # module, class or function


def holds_request(value: Any) -> bool:
    if isinstance(value, bytes):
        return MARK.encode() in value
    return MARK in value if isinstance(value, str) else isinstance(value, CARRIERS)


def module_of(frame: FrameType | None) -> str:
    """The module of ours that the frame, or the nearest one above it, belongs to."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("holdfast."):
            return name
        frame = frame.f_back
    return ""


@dataclass
class Note:
    """One station. passes_on: it gives the request to another module, or returns it in another form."""

    frame: FrameType  # kept, so that no other frame has its id
    station: Station
    passes_on: bool


@contextmanager
def noting(stations: list[Station]) -> Iterator[None]:
    """Note where the request comes from another module, in all threads that begin inside."""
    notes: dict[int, Note] = {}  # by the id of a frame; a coroutine is called again whenever it goes on

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and id(frame) in notes and holds_request(arg):
            notes[id(frame)].passes_on = True
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if event != "call" or not module.startswith("holdfast.") or id(frame) in notes:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals[name] for name in names if name in frame.f_locals]
        owner, _, method = code.co_qualname.split(".<locals>")[0].partition(".")
        if owner in NO_STATIONS or not any(map(holds_request, values)):
            return
        caller = module_of(frame.f_back)
        is_known = any(one.station[0] == module for one in list(notes.values()))
        if caller == module or (not caller and is_known):  # a task that it began
            return
        above = frame.f_back
        while above is not None:
            if id(above) in notes:
                notes[id(above)].passes_on = True
            above = above.f_back
        notes[id(frame)] = Note(frame, (module, owner), bool(method))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        stations += [one.station for one in notes.values() if one.passes_on]


class Port(EnginePort):
    """Keeps the frame that would go to an engine."""

    def __init__(self, callbacks: EngineCallbacks, requests: RequestTable) -> None:
        super().__init__(callbacks, requests)
        self.sent = threading.Event()
        self._writer = cast(asyncio.StreamWriter, self)
        self.frame = b""

    def write(self, frame: bytes) -> None:
        self.frame = self.frame or frame  # the next one aborts it
        self.sent.set()

    def is_closing(self) -> bool:
        return False

    @property
    def running_ids(self) -> None:
        return None

    def kill(self) -> None:
        pass

    async def _end(self) -> None: ...


class OneEngine:
    """As much of `Engines` as a request needs."""

    is_ready = True
    replicas = ()

    def __init__(self, server: ServerConfig, engine: EngineConfig, callbacks: EngineCallbacks) -> None:
        self.requests = RequestTable()
        self.port = Port(callbacks, self.requests)
        fingerprint = m.FingerprintReady("abc", {}, None)
        self.requests.set_ports([self.port], fingerprint, READY)


def way_to_the_engine(model: Path, stations: list[Station]) -> bytes:
    """The frame with the request, from the frontend."""
    config = ServerConfig()
    models = ServedModels(
        config,
        [ModelConfig(EngineConfig(str(model)))],
        TenantDirectory(config),
        lambda *given: cast(Engines, OneEngine(*given)),
    )
    frontend = models.frontends[0]
    frontend.prompts.max_model_len = READY.max_model_len
    port = cast(OneEngine, frontend.engines).port
    app = make_app(models)

    async def run() -> None:
        messages = [{"type": "http.request", "body": BODY, "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: Any) -> None:
            raise AssertionError(message)

        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(BODY))),
            ("Host", "localhost"),
        ]
        with noting(stations):
            answering = asyncio.create_task(
                app(scope_of("POST", "/v1/chat/completions", headers), receive, send)
            )
            while not port.sent.is_set() and not answering.done():
                await asyncio.sleep(0.005)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)

    asyncio.run(run())
    models.close()
    return port.frame


def way_to_the_queue(model: Path, frame: bytes, stations: list[Station]) -> None:
    """Through an engine process, which is a thread here."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    engine = build(EngineConfig(str(model), max_num_seqs=4, max_pass_tokens=64))

    def serve() -> None:
        with theirs:
            host_main.serve(theirs, lambda config, show: engine)

    with noting(stations):
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        ours.sendall(m.encode([m.Start(EngineConfig(), "text", "info")]))
        while not isinstance(m.decode_from_engine(read_frame(ours)), m.Ready):
            pass
        ours.sendall(frame)
        while not isinstance(m.decode_from_engine(read_frame(ours)), m.Accepted):
            pass
    ours.sendall(m.encode([m.Stop()]))
    thread.join(PATIENCE)
    ours.close()


def count_returns(stations: list[Station]) -> int:
    modules: list[str] = []
    for module, _ in stations:
        if not modules or modules[-1] != module:
            modules.append(module)
    return len(modules) - len(set(modules))


def test_request_takes_the_short_way(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_main, "configure_logging", lambda *_, **__: None)
    here: list[Station] = []
    there: list[Station] = []
    frame = way_to_the_engine(tiny_llama, here)
    way_to_the_queue(tiny_llama, frame, there)
    names = [name for _, name in there]
    stations = here + there[: names.index("RequestQueue") + 1]
    for number, (module, name) in enumerate(stations, 1):
        print(f"{number:3} {module}.{name}")
    objects = dict.fromkeys(stations)
    print(f"{len(objects)} objects, {count_returns(stations)} returns")
    assert stations[0] == ("holdfast.server.api.chat", "chat_routes")
    assert len(objects) <= MOST_OBJECTS and count_returns(stations) <= MOST_RETURNS
