"""What a server is besides its HTTP server: engine, tokenizer, limits, metrics, routes.

`main.Server` puts our own HTTP server in front of it, `holdfast.ray` Ray's proxy.
"""

import asyncio
import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Sequence

from holdfast.engine.config import EngineConfig
from holdfast.engine.status import ShowProgress
from holdfast.errors import EngineStopped
from holdfast.models.locate import locate
from holdfast.server.app import make_app
from holdfast.server.config import ServerConfig
from holdfast.server.frontend import Frontend
from holdfast.server.inspector.hub import Hub
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engine_process import COMMAND, EngineProcess
from holdfast.server.ipc.engines import Engines
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.prompts import Prompts
from holdfast.server.reasoning.chat_format import choose_chat_format
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.telemetry.traces import open_traces
from holdfast.server.tenants.admission import Admission
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.text.tokenizer import open_tokenizer
from holdfast.version import __version__

_TRIM_SECONDS = 5.0

Connect = Callable[[ServerConfig, EngineConfig, EngineCallbacks], Engines]


def supervise(
    server: ServerConfig, engine: EngineConfig, callbacks: EngineCallbacks, command: Sequence[str] = COMMAND
) -> Engines:
    """One engine process on this machine."""
    requests = RequestTable(resumes=server.resume, callbacks=callbacks)
    return EngineProcess(
        engine,
        callbacks,
        (server.log_format, server.log_level),
        command,
        requests=requests,
        hang_timeout=server.hang_timeout,
    )


class Service:
    """One service: its engine or engines, and all that its routes use. Made in any thread, run in one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        engine: EngineConfig,
        tenants: TenantDirectory,
        connect: Connect,
        progress: ShowProgress = lambda stage, done, total: None,
    ) -> None:
        self.config = config
        self.engine = engine
        self.tenants = tenants
        self.began = time.monotonic()
        self._progress = progress
        self.load_seconds = 0.0
        self.metrics = Metrics()
        self.traces = open_traces(config.otlp_endpoint)
        self.admission = Admission(config.max_waiting)
        located = locate(engine.model)
        self.names = config.served_model_names or (located.name,)
        tokenizer = open_tokenizer(
            located.path,
            chat_template=engine.chat_template,
            controls_in_content=engine.allow_special_tokens_in_content,
        )
        self.prompts = Prompts(
            tokenizer, choose_chat_format(tokenizer, config.reasoning_parser, config.tool_call_parser)
        )
        self.hub = Hub(self.prompts.token_text, lambda on: self.engines.set_tracing(on))
        callbacks = EngineCallbacks(
            on_progress=self._on_progress,
            on_ready=self._on_ready,
            on_status=self.metrics.update,
            on_trace=self.hub.publish,
            on_replicas=self._on_replicas,
            on_death=self._on_engine_death,
            on_hang=self.metrics.engine_hung,
            on_resume=self.metrics.request_resumed,
            on_continue=self.metrics.pause_ended,
            on_crash=self.metrics.request_crashed,
        )
        self.engines = connect(config, engine, callbacks)
        self.frontend = Frontend(
            config,
            names=self.names,
            about=located.about,
            prompts=self.prompts,
            engines=self.engines,
            metrics=self.metrics,
            traces=self.traces,
            admission=self.admission,
            tenants=tenants,
            defaults=engine.request_defaults,
        )
        self.app = make_app(self.frontend, self.hub)
        self._describing: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Free what needs no event loop."""
        self.prompts.close()
        self.traces.close()

    def _set_limits(self) -> None:
        """The engines that are ready decide how much runs at once."""
        if self.engines.is_ready:
            ready = self.engines.ready
            self.admission.max_running = ready.max_num_seqs
            self.prompts.max_model_len = ready.max_model_len

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        self.frontend.note_start_up(stage, done, total)
        self._progress(stage, done, total)

    def _on_ready(self) -> None:
        self._set_limits()
        self._describing = asyncio.create_task(self._describe())
        self.load_seconds = time.monotonic() - self.began
        self.metrics.engine_loaded(self.load_seconds)

    def _on_replicas(self) -> None:
        """A replica of a pool came or left."""
        self._set_limits()
        ids = [one.id for one in self.engines.replicas]
        self.metrics.keep_replicas(ids)
        self.hub.set_replicas(ids)

    def _on_engine_death(self, reason: str, num_requests: int) -> None:
        self.began = time.monotonic()
        self.metrics.engine_restarted()
        self.hub.engine_restarts(reason, num_requests)

    async def _describe(self) -> None:
        with contextlib.suppress(EngineStopped):
            fingerprint = await self.engines.requests.wait_for_fingerprint()
            self.metrics.describe(
                version=__version__,
                model=self.names[0],
                fingerprint=fingerprint.digest,
                dtype=str(fingerprint.parts["dtype"]),
                determinism=self.engine.determinism,
            )

    async def trim_memory(self) -> None:
        """Give memory back once no call runs. glibc keeps freed memory for later; elsewhere do nothing."""
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        num_seen = 0
        while malloc_trim is not None:
            await asyncio.sleep(_TRIM_SECONDS)
            if not self.frontend.num_calls and self.frontend.num_begun > num_seen:
                num_seen = self.frontend.num_begun
                gc.collect()
                await asyncio.to_thread(malloc_trim, 0)
