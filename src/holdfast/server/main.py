"""Starts the server process, runs it, drains it and ends it.

    bound -> loading (health says 503) -> ready -> draining -> ended, with exit code 0

SIGTERM or SIGINT starts draining: new requests are refused, running ones may finish. A second
signal ends the running requests at once. SIGHUP reads the key file and the configuration file again;
without them it changes nothing. Exit code 2: the configuration is wrong; 1: the engine process died too often.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.engine.config import EngineConfig
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.app import make_app
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.frontend import Connect, Frontend
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engine_process import COMMAND, EngineProcess
from holdfast.server.ipc.engines import Engines
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.served_models import ServedModels
from holdfast.server.telemetry.logs import configure_logging
from holdfast.server.tenants.addresses import is_loopback
from holdfast.server.tenants.directory import TenantDirectory

_log = logging.getLogger("holdfast.server")
_CLOSING_SECONDS = 5
_BACKLOG = 2048
_OWN_DESCRIPTORS = 64  # for the server itself and for engine restarts; the others for connections
_CUT_OFF_SECONDS = 1.0  # for cancelled requests to send their error
# Seconds after which a thread that computes gives the GIL to the event loop. The event loop asks for it
# once for each socket that is ready, so that with Python's 5 ms a busy thread delays a request by tens of ms.
_SWITCH_SECONDS = 0.0005

T = TypeVar("T")
ReadConfig = Callable[[], ServerConfig]


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, except for the host of an absolute target and for clients that leave.

    Pipelined requests are answered in their order. A client that closes its side of the connection has
    left: the end of what it sends is all that a server sees of either.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._earlier: list[RequestResponseCycle] = []  # before the last of several pipelined requests

    def on_headers_complete(self) -> None:
        target = httptools.parse_url(self.url)
        if target.host is not None:
            self._replace_host(target.host, target.port)
        if self.cycle is not None:
            self._earlier.append(self.cycle)
        self._earlier = [one for one in self._earlier if not one.response_complete]
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # tells the last request
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()

    def _replace_host(self, host: bytes, port: int | None) -> None:
        """Let the host of `GET http://host/path` count, whatever the Host header says (RFC 9112, 3.2.2)."""
        name = b"[%b]" % host if b":" in host else host
        value = name if port is None else b"%b:%d" % (name, port)
        self.headers[:] = [one for one in self.headers if one[0] != b"host"] + [(b"host", value)]


def run(
    server: ServerConfig,
    models: Sequence[ModelConfig],
    *,
    progress: ShowProgress = lambda stage, done, total: None,
    command: Sequence[str] = COMMAND,
    connect: Connect | None = None,
    read_config: ReadConfig | None = None,
) -> int:
    """Serve until a signal ends it. command starts the engine process; connect finds engines elsewhere.
    read_config reads the configuration again.

    Returns the exit code; raises `ConfigError` or `ModelError` if it cannot start.
    """
    num_descriptors = raise_descriptor_limit(server.max_connections + _OWN_DESCRIPTORS)
    most = max(1, min(server.max_connections, num_descriptors - _OWN_DESCRIPTORS))
    server = replace(server, max_connections=most)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # our threads run it, one text each
    sys.setswitchinterval(_SWITCH_SECONDS)
    configure_logging(server.log_format, server.log_level, secrets=server.api_keys)
    tenants = TenantDirectory(server)
    connect = connect or partial(_one_process, command=command)
    configure_logging(server.log_format, server.log_level, secrets=tenants.keys)
    with _bind(server.host, server.port) as listening:
        if not is_loopback(listening.getsockname()[0]):
            if not server.has_keys:
                _log.warning("everyone who can reach this machine can use this server; set an --api-key")
            if not server.trusted_proxies:
                _log.warning(
                    "no --trusted-proxy is given: slow clients can take all %d connections; see docs/nginx.conf",
                    server.max_connections,
                )
        served = ServedModels(server, models, tenants, connect, progress)
        return run_event_loop(HttpServer(served, listening, read_config).run_to_end())


def _one_process(
    server: ServerConfig, engine: EngineConfig, callbacks: EngineCallbacks, command: Sequence[str]
) -> Engines:
    return EngineProcess(
        engine,
        callbacks,
        (server.log_format, server.log_level),
        command,
        requests=RequestTable(resumes=server.resume, callbacks=callbacks),
        hang_timeout=server.hang_timeout,
    )


class HttpServer(uvicorn.Server):
    """Models behind uvicorn, from start to end."""

    def __init__(
        self, models: ServedModels, listening: socket.socket, read_config: ReadConfig | None = None
    ) -> None:
        self.models = models
        self._read_config = read_config
        self.listening = listening
        super().__init__(
            uvicorn.Config(
                make_app(models),
                http=HttpProtocol,
                limit_concurrency=models.config.max_connections,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                proxy_headers=False,  # a client could forge the address in the log
                timeout_keep_alive=models.config.keep_alive_timeout,  # type: ignore[arg-type]  # a float works
                timeout_graceful_shutdown=_CLOSING_SECONDS,
            )
        )
        for one in models.frontends:
            one.on_ready = partial(self._say_ready, one)
        self._said_ready = False
        self._signals = 0
        self._signalled = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `run_to_end` handles signals."""
        yield

    async def run_to_end(self) -> int:
        """Run until a signal or an error ends it. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        frontends = self.models.frontends
        say(f"Listening on {self.url}; loading {', '.join(one.model for one in frontends)} ...")
        for about in [one.about for one in frontends if one.about is not None]:
            say(about)
        tasks = [
            asyncio.create_task(work)
            for work in (
                self.serve(sockets=[self.listening]),
                self.models.run(),
                self.models.trim_memory(),
                self._signalled.wait(),
                self.models.warm_up(),
            )
        ]
        serving, supervising, _, signalled, _ = tasks
        if self.models.batches is not None:
            self.models.batches.start()
        try:
            await asyncio.wait((serving, supervising, signalled), return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, supervising):
                if task.done():
                    task.result()  # raises: neither ends by itself
            await self._drain()
        except EngineStopped as error:
            _log.error("%s; giving up", error)
            return 1
        finally:
            await self._shut_down(serving, tasks)
        say("Stopped.")
        return 0

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{shown}:{port}"

    async def _drain(self) -> None:
        """Refuse new requests and wait for the running ones, up to the drain timeout. Batches stop at once."""
        self.models.refuse_requests()
        if self.models.batches is not None:
            await self.models.batches.stop()
        self._signalled.clear()
        if self.models.num_calls:
            _log.info("draining: %d requests are running", self.models.num_calls)
        until = time.monotonic() + self.models.config.drain_timeout
        while self.models.num_calls and time.monotonic() < until and self._signals < 2:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), 0.05)
        if self.models.num_calls:
            _log.warning("%d requests are cut off", self.models.num_calls)
            self.models.cut_off()
            until = time.monotonic() + _CUT_OFF_SECONDS
            while self.models.num_calls and time.monotonic() < until:
                await asyncio.sleep(0.02)

    async def _shut_down(self, serving: "asyncio.Task[Any]", tasks: "list[asyncio.Task[Any]]") -> None:
        self.models.refuse_requests()
        if self.models.batches is not None:
            await self.models.batches.stop()
        for one in self.models.frontends:
            one.hub.close()
        self.should_exit = True
        await self.models.stop()
        with contextlib.suppress(Exception):
            await serving
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.models.close()

    def _on_signal(self) -> None:
        self._signals += 1
        self._signalled.set()
        if self._signals > 1:  # do not wait for anything any more
            self.models.cut_off()
            for one in self.models.frontends:
                one.engines.kill()
            self.force_exit = True

    def _reload(self) -> None:
        """Read keys and limits again. Requests that run keep the limits they were admitted with."""
        models = self.models
        if models.config.key_file is None and self._read_config is None:
            _log.warning(
                "SIGHUP is ignored: there is no --key-file or --config to read again; SIGTERM ends the server"
            )
            return
        old = models.tenants.keys
        try:
            models.reload(models.config if self._read_config is None else self._read_config())
        except ConfigError as error:
            _log.error("keys and limits stay as they are: %s", error)
            return
        secrets = tuple({*old, *models.tenants.keys})
        configure_logging(models.config.log_format, models.config.log_level, secrets=secrets)

    def _say_ready(self, frontend: Frontend) -> None:
        """Say that a model is ready; of several, when the last one is, that the server is."""
        loads = [one.load_seconds for one in self.models.frontends]
        if self.models.has_several:
            say(f"The model {frontend.model} is ready after {frontend.load_seconds:.1f} s")
        if all(loads) and not (self.models.has_several and self._said_ready):
            self._said_ready = True
            page = f"open {self.url} to see it work; " if self.models.config.has_inspector else ""
            say(f"Ready after {max(loads):.1f} s: {page}OpenAI clients use {self.url}/v1")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end in an event loop of its own: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def say(line: str) -> None:
    """Write a line to stdout at once, for the user or the script that started the server."""
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not end the server
        if sys.stdout is not None:
            os.write(
                sys.stdout.fileno(), f"{line}\n".encode()
            )  # unbuffered: a failed write must not be tried again


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files and return it: to the hard limit, or to the number that is wanted if
    there is none. Every connection needs a file descriptor.

    The usual soft limit of a shell is a quarter of `max_connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard or soft == resource.RLIM_INFINITY:
        return wanted if soft == resource.RLIM_INFINITY else soft
    limit = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return limit
