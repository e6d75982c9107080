"""One model as the routes see it: engines, tokenizer, admission, metrics, and the running calls.

`served_models.ServedModels` has one for each model of a server.
"""

import asyncio
import contextlib
import logging
import time
from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from holdfast.core.cancel_token import CancelToken
from holdfast.engine.config import EngineConfig
from holdfast.engine.status import ShowProgress, StartUpStage
from holdfast.errors import EngineStopped, ModelGivenUp, NotReady
from holdfast.models.locate import locate
from holdfast.server.call import Call
from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import EventStreamResponse, JSONResponse
from holdfast.server.inspector.hub import Hub
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engines import Engines
from holdfast.server.ipc.messages import FingerprintReady, Ready
from holdfast.server.middleware.request_log import AccessLogEntry
from holdfast.server.prompts import PromptReader
from holdfast.server.reasoning.chat_format import choose_chat_format
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.telemetry.traces import Operation, open_traces
from holdfast.server.tenants.admission import Admission, RateLimits
from holdfast.server.tenants.tenant import Tenant, tenant_of
from holdfast.server.tenants.work_queue import Work
from holdfast.text.chat_template import text_parts
from holdfast.text.tokenizer import open_tokenizer
from holdfast.version import __version__

_log = logging.getLogger("holdfast.server")
_INLINE_BYTES = 4096
_GIVEN_UP_SECONDS = 60  # until clients may ask again for a model that was given up
_CLIENT_LEFT = ("client_left", 499)  # its error and status in traces

Connect = Callable[[ServerConfig, EngineConfig, EngineCallbacks], Engines]
T = TypeVar("T")


class ResponseWriter(Protocol):
    """Writes one response in the format of an API."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the server-sent events, until the last delta."""
        ...

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        """Return the events that end a stream with an error."""
        ...

    async def whole(self) -> Any:
        """Return the JSON object of the response, once it is finished."""
        ...


class Frontend:
    """One model of a server. Made in any thread, run in one event loop.

    connect finds the engine or engines. names: the model's names, by default its own; responses use the
    first. rates: the limits per minute, which the models of a server share. is_alone: the server has no other.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: EngineConfig,
        connect: Connect,
        progress: ShowProgress = lambda stage, done, total: None,
        *,
        names: Sequence[str] = (),
        rates: RateLimits | None = None,
        is_alone: bool = True,
    ) -> None:
        self.config = config
        self.engine = engine
        self.defaults = engine.request_defaults
        self.metrics = Metrics()
        self.traces = open_traces(config.otlp_endpoint)
        self.admission = Admission(config.max_waiting, rates=rates)
        located = locate(engine.model)
        self.about = located.about  # what to expect of a built-in demo model
        self.names = tuple(names) or (located.name,)
        self.what = "the engine" if is_alone else f"the model `{self.model}`"
        tokenizer = open_tokenizer(located.path).adapted(
            engine.chat_template, controls_in_content=engine.allow_special_tokens_in_content
        )
        self.prompts = PromptReader(
            tokenizer, choose_chat_format(tokenizer, config.reasoning_parser, config.tool_call_parser)
        )
        self.hub = Hub(self.prompts.token_text, lambda on: self.engines.set_tracing(on))
        self.created = int(time.time())
        self.load_seconds = 0.0  # of the last start
        self.start_up = StartUpStage("")  # of an engine that is not ready yet
        self.num_begun = 0  # calls, since the start
        self.is_given_up = False  # no engine process is started any more
        self._calls: set[Call] = set()
        self._other_text = ""  # says that the engine has another tokenizer or template
        self.on_ready: Callable[[], None] = lambda: None
        self._began = time.monotonic()  # the last start
        self._progress = progress
        self._describing: asyncio.Task[None] | None = None
        callbacks = EngineCallbacks(
            on_progress=self._on_progress,
            on_ready=self._on_ready,
            on_status=self.metrics.update,
            on_trace=self.hub.publish,
            on_replicas=self._on_replicas,
            on_death=self._on_engine_death,
            on_hang=self.metrics.hangs.inc,
            on_resume=lambda deterministic: self.metrics.resumed[deterministic].inc(),
            on_continue=self.metrics.pauses.observe,
            on_crash=self.metrics.crashed.inc,
        )
        self.engines = connect(config, engine, callbacks)

    def close(self) -> None:
        self.prompts.close()
        if self.traces is not None:
            self.traces.close()

    @property
    def model(self) -> str:
        return self.names[0]

    @property
    def ready(self) -> Ready:
        """Return what the engines can do. Raises `NotReady` if requests can neither be computed nor wait."""
        if self._other_text:
            raise NotReady(self._other_text)
        requests = self.engines.requests
        if requests.ready is None or not requests.is_open:
            raise self.not_ready
        return requests.ready

    @property
    def not_ready(self) -> NotReady:
        """Return the error for requests while no engine is ready."""
        if self.is_given_up:
            message = f"{self.what} failed too often; see the server's log"
            return ModelGivenUp(message, retry_after=_GIVEN_UP_SECONDS)
        return NotReady(f"{self.what} is not ready yet; ask again", retry_after=self.engines.retry_after)

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    @property
    def places(self) -> Iterator[tuple[Tenant, int, int]]:
        """Yield the tenant of each call, and how many of its answers run and wait."""
        return ((call.tenant, *call.num_answers) for call in self._calls)

    @asynccontextmanager
    async def call(
        self,
        request: Request,
        operation: Operation,
        *,
        deterministic: bool | None,
        num_choices: int,
        stream: bool = False,
    ) -> AsyncIterator[Call]:
        """Admit a request and hold its room until it is done.

        deterministic is what the client asked for; None is the server's default.
        """
        deterministic = self.defaults.is_deterministic(deterministic)
        _ = self.ready  # raises before anything is prepared
        access: AccessLogEntry = request.state.access
        access.deterministic = deterministic
        tenant = tenant_of(request)
        with self.admission.admit(num_choices, tenant) as meter:
            call = Call(
                request.state.request_id,
                operation,
                self.engines.requests,
                self.defaults,
                deterministic=deterministic,
                stream=stream,
                tenant=tenant,
                meter=meter,
                prompts=self.prompts,
                metrics=self.metrics.request(deterministic),
                timeout=self.config.request_timeout,
            )
            self._calls.add(call)
            self.num_begun += 1
            try:
                yield call
            except (ClientDisconnect, CancelledError):
                call.failed(*_CLIENT_LEFT)
                raise
            except Exception as raised:
                error = to_api_error(raised)
                call.failed(error.code or str(error.status), error.status)
                access.error = error.code
                raise
            finally:
                self._calls.discard(call)
                self._record(call, access)
                if self.traces is not None:
                    self.traces.record(request.headers, self.model, call)
                call.close()

    async def respond(
        self,
        request: Request,
        operation: Operation,
        begin: Callable[[Call], Awaitable[ResponseWriter]],
        *,
        deterministic: bool | None,
        num_choices: int,
        stream: bool | None,
    ) -> Response:
        """Answer a request, streamed or not. begin submits it, and returns the writer of its response."""
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(
                self.call(
                    request,
                    operation,
                    deterministic=deterministic,
                    num_choices=num_choices,
                    stream=bool(stream),
                )
            )

            async def begin_response() -> ResponseWriter:
                writer = await begin(call)
                if stream:
                    await call.fingerprint()
                return writer

            writer = await run_until_disconnect(request, begin_response())
            if not stream:
                return JSONResponse(await run_until_disconnect(request, writer.whole()))
            return EventStreamResponse(
                writer.stream(), stack.pop_all(), writer.end_stream, send_timeout=self.config.send_timeout
            )

    async def prepare(self, request: Request, work: Work[T]) -> T:
        """As `run`, but work of a small body is done at once."""
        if len(await request.body()) <= _INLINE_BYTES:
            return work(CancelToken())
        return await self.run(request, work)

    async def run(self, request: Request, work: Work[T]) -> T:
        """Do work that needs no engine in the client's turn, or stop when the client disconnects."""
        size = len(await request.body())
        return await run_until_disconnect(request, self.prompts.run(tenant_of(request).id, work, size=size))

    async def fingerprint(self) -> FingerprintReady:
        """The engine's fingerprint. Waits until the weights are hashed."""
        _ = self.ready
        return await self.engines.requests.wait_for_fingerprint()

    def set_limits(self, config: ServerConfig) -> None:
        """Take the limits of a configuration that was read again. Running calls keep those they began with."""
        self.config = config
        self.admission.max_waiting = config.max_waiting

    def cut_off(self, reason: str = "the server is going down", code: str = "shutting_down") -> None:
        """End every running call."""
        for call in tuple(self._calls):
            call.cancel(NotReady(reason, code=code))

    def _record(self, call: Call, access: AccessLogEntry) -> None:
        """Write a call that has ended to the metrics and the log's entry."""
        metrics = call.metrics
        if call.failure is not None and call.failure != _CLIENT_LEFT:
            metrics.failed(call.failure[0])
        else:
            access.finish_reason = (call.finish_reasons or ("abort",))[-1]
            metrics.finished(access.finish_reason, call.num_prompt_tokens, call.stats, call.num_choices)
        if call.results:
            self.admission.observe(metrics.seconds)
            access.mode = call.mode
        access.engine_ids = tuple(stream.request_id for stream in call.streams) or None
        access.replicas = call.replicas or None
        access.prompt_tokens = call.num_prompt_tokens
        access.completion_tokens = metrics.num_generated
        if metrics.first_token_seconds is not None:
            access.first_token_ms = 1e3 * metrics.first_token_seconds

    def _set_limits(self) -> None:
        """The engines that are ready decide how much runs at once."""
        if self.engines.is_ready:
            ready = self.ready
            self.admission.max_running = ready.max_num_seqs
            self.prompts.max_model_len = ready.max_model_len

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        self.start_up = self.start_up.next(stage, done, total)
        self._progress(stage, done, total)

    def _on_ready(self) -> None:
        self._set_limits()
        self._describing = asyncio.create_task(self._describe())
        self.load_seconds = time.monotonic() - self._began
        self.metrics.load_seconds.set(self.load_seconds)
        self.on_ready()

    def _on_replicas(self) -> None:
        self._set_limits()
        ids = [one.id for one in self.engines.replicas]
        self.metrics.keep_replicas(ids)
        self.hub.set_replicas(ids)

    def _on_engine_death(self, reason: str, num_requests: int) -> None:
        self._began = time.monotonic()
        self.metrics.engine_restarted()
        self.hub.engine_restarts(reason, num_requests)

    async def _describe(self) -> None:
        with contextlib.suppress(EngineStopped):
            fingerprint = await self.engines.requests.wait_for_fingerprint()
            self._compare_text(fingerprint.parts)
            about = {"version": __version__, "model": self.model, "fingerprint": fingerprint.digest}
            about |= {"dtype": str(fingerprint.parts["dtype"]), "determinism": self.engine.determinism}
            self.metrics.info.info(about)

    def _compare_text(self, parts: Mapping[str, Any]) -> None:
        """Answer nothing while the engine has another tokenizer or template: prompts and texts would not be those
        of the fingerprint."""
        own = text_parts(self.prompts.tokenizer)
        differing = [name for name in own if own[name] != parts.get(name, own[name])]
        self._other_text = ""
        if differing:
            self._other_text = (
                f"the model's files changed: the engine has another {' and '.join(differing)} than this server read; "
                "restart the server"
            )
            _log.error("%s", self._other_text)
            self.cut_off(self._other_text, NotReady.code)
