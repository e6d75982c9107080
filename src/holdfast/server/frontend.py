"""What all routes share: engines, tokenizer, admission, metrics, and the running calls."""

import time
from asyncio import CancelledError
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from holdfast.core.cancel_token import CancelToken
from holdfast.core.request import NO_DEFAULTS, RequestDefaults
from holdfast.engine.status import StartUpStage
from holdfast.server.call import Call
from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.http.body import is_small, parse_body
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.ipc.engines import Engines
from holdfast.server.ipc.messages import FingerprintReady
from holdfast.server.middleware.request_log import AccessLogEntry
from holdfast.server.prompts import Prompts
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.telemetry.traces import Operation, TracedRequest, Traces
from holdfast.server.tenants.admission import Admission
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import Tenant, tenant_of
from holdfast.server.tenants.work_queue import Work

_INLINE_BYTES = 4096
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Frontend:
    """One server, as its routes see it. names are the model's names; responses use the first."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        names: tuple[str, ...],
        prompts: Prompts,
        engines: Engines,
        metrics: Metrics,
        traces: Traces,
        admission: Admission,
        tenants: TenantDirectory,
        defaults: RequestDefaults = NO_DEFAULTS,
        about: str | None = None,
    ) -> None:
        self.config = config
        self.names = names
        self.prompts = prompts
        self.engines = engines
        self.metrics = metrics
        self.traces = traces
        self.admission = admission
        self.tenants = tenants
        self.defaults = defaults
        self.about = about  # what to expect of a built-in demo model
        self.created = int(time.time())
        self.start_up = StartUpStage("")  # of an engine that is not ready yet
        self.num_begun = 0  # calls, since the start
        self._calls: set[Call] = set()

    @property
    def model(self) -> str:
        return self.names[0]

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    def require_model(self, name: str | None) -> None:
        """Refuse a name that is not the served model's."""
        if name is not None and name not in self.names:
            shown = name if name.isprintable() and len(name) <= 80 else f"{name[:80]!r}..."
            raise ApiError(
                404,
                f"The model `{shown}` does not exist; this server serves {', '.join(self.names)}.",
                param="model",
                code="model_not_found",
            )

    def note_start_up(self, stage: str, done: int, total: int) -> None:
        """Keep how far a start is, for `/health`."""
        self.start_up = self.start_up.next(stage, done, total)

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
        _ = self.engines.ready  # raises before anything is prepared
        access: AccessLogEntry = request.state.access
        access.deterministic = deterministic
        traced = TracedRequest(operation, self.model, request.state.request_id, None, stream, deterministic)
        tenant = tenant_of(request)
        with self.admission.admit(num_choices, tenant) as meter:
            call = Call(
                request.state.request_id,
                self.engines.requests,
                self.defaults,
                tenant=tenant,
                meter=meter,
                prompts=self.prompts,
                metrics=self.metrics.request(deterministic),
                begin_span=lambda params: self.traces.begin(request.headers, replace(traced, params=params)),
                timeout=self.config.request_timeout,
            )
            self._calls.add(call)
            self.num_begun += 1
            try:
                yield call
            except (ClientDisconnect, CancelledError):
                call.aborted()
                raise
            except Exception as raised:
                error = to_api_error(raised)
                call.failed(error.code or str(error.status), error.status)
                access.error = error.code
                raise
            finally:
                self._calls.discard(call)
                self._log_call(call, access)
                call.close()

    async def read_body(self, request: Request, model: type[M]) -> M:
        """The body of a request. A large one is parsed in the client's turn."""
        raw = await request.body()
        if is_small(raw):
            return parse_body(raw, model)
        return await self.run(request, lambda token: parse_body(raw, model))

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
        _ = self.engines.ready
        return await self.engines.requests.wait_for_fingerprint()

    def count_request(self, tenant: Tenant, entry: AccessLogEntry) -> None:
        """Add a request that has ended to the metrics of its tenant."""
        self.metrics.tenants.ended(
            tenant,
            refusal=(entry.error or str(entry.status)) if entry.status >= 400 else None,
            num_prompt_tokens=entry.prompt_tokens or 0,
            num_generated_tokens=entry.completion_tokens or 0,
        )

    def render_metrics(self, request: Request) -> tuple[bytes, str]:
        """The metrics that this client may see, with their content type. Without keys there is one
        series, and all see it."""
        self.metrics.replicas = self.engines.replicas
        self.metrics.tenants.set_places((call.tenant, *call.num_answers) for call in self._calls)
        return self.metrics.render(request.headers.get("accept", ""), tenant_of(request))

    def cancel_calls(self, error: Exception) -> None:
        """End every running call with this error."""
        for call in tuple(self._calls):
            call.cancel(error)

    def _log_call(self, call: Call, access: AccessLogEntry) -> None:
        access.engine_ids = tuple(stream.request_id for stream in call.streams) or None
        access.replicas = call.replicas or None
        if call.results:
            self.admission.observe(time.monotonic() - call.began)
            access.mode = call.mode
        if call.finish_reasons:
            access.finish_reason = call.finish_reasons[-1]
        access.prompt_tokens = call.num_prompt_tokens
        access.completion_tokens = call.num_completion_tokens
        if call.first_token is not None:
            access.first_token_ms = 1e3 * (call.first_token - call.began)
