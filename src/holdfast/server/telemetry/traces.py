"""Traces: one span for each request, sent over OTLP/HTTP by OpenTelemetry's SDK in a thread of the SDK.

Without an OTLP endpoint nothing is traced, and OpenTelemetry is not even imported.

    traces = open_traces(config.otlp_endpoint)
    span = traces.begin(headers, request)      -> first_token() -> finished(...) or failed(...)

Attributes follow OpenTelemetry's conventions for generative models (`gen_ai.*`); Holdfast's own are
`holdfast.*`. A span never contains a prompt or a completion. The tracer provider belongs to this
server; the process-wide one is not set. The SDK's OTEL_* variables apply: headers, resource
attributes, sampler.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import ConfigError
from holdfast.server.telemetry.logs import escape
from holdfast.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

_EXPORT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_REQUEST_PARAMS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
_STATS = ("candidates", "accepted", "rolled_back", "rollbacks", "windows", "preemptions")

Operation = Literal["chat", "text_completion", "embeddings", "score", "replay"]


@dataclass(frozen=True)
class TracedRequest:
    """The attributes of a request that a trace may contain."""

    operation: Operation
    model: str
    request_id: str
    params: SamplingParams | None = None
    stream: bool = False
    deterministic: bool = False


class TraceSpan:
    """The span of one request that is not traced. A span ends once: calls after `finished` or `failed` have
    no effect."""

    def started(self, queue_seconds: float) -> None:
        """The request left the queue after this time."""

    def first_token(self) -> None:
        """The first token of any choice arrived; further calls have no effect."""

    def computed_by(self, replicas: Sequence[str]) -> None:
        """The replicas of a pool that computed the request, in order."""

    def finished(
        self, reasons: Sequence[str], prompt_tokens: int, completion_tokens: int, mode: str, stats: Stats
    ) -> None:
        """All choices are complete: their finish reasons, the determinism mode and the cost."""

    def failed(self, code: str, status: int) -> None:
        """The request ended in an error."""


_NO_SPAN = TraceSpan()


class Traces:
    """Traces that go nowhere: no collector is configured."""

    def begin(self, headers: Mapping[str, str], request: TracedRequest) -> TraceSpan:
        """Start a span. The `traceparent` header says to which trace it belongs."""
        return _NO_SPAN

    def close(self) -> None:
        """Send the remaining spans, within a short timeout."""


def open_traces(endpoint: str | None) -> Traces:
    """Traces that go to an OTLP collector, such as http://localhost:4318, or nowhere."""
    if endpoint is None:
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "traces need OpenTelemetry; install it with: pip install 'holdfast[otel]'"
        ) from error
    exporter = OTLPSpanExporter(collector_url(endpoint), timeout=_EXPORT_SECONDS)
    return OtelTraces(BatchSpanProcessor(exporter))


class OtelTraces(Traces):
    """A tracer whose spans go to one span processor."""

    def __init__(self, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        ours = Resource({"service.name": "holdfast", "service.version": __version__})
        named = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("holdfast", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Mapping[str, str], request: TracedRequest) -> TraceSpan:
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"{request.operation} {request.model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(request),
        )
        return _OtelSpan(span)

    def close(self) -> None:
        # The SDK waits up to 30 seconds for a collector that does not respond.
        closing = threading.Thread(target=self._provider.shutdown, name="holdfast-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _OtelSpan(TraceSpan):
    def __init__(self, span: "Span") -> None:
        self._span = span
        self._began = time.perf_counter()
        self._has_token = False
        self._ended = False

    def started(self, queue_seconds: float) -> None:
        self._span.set_attribute("holdfast.queue_seconds", queue_seconds)

    def first_token(self) -> None:
        if not self._has_token:
            self._has_token = True
            took = time.perf_counter() - self._began
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", took)

    def computed_by(self, replicas: Sequence[str]) -> None:
        if not self._ended:  # the SDK warns of an attribute of a span that has ended
            self._span.set_attribute("holdfast.replicas", tuple(replicas))

    def finished(
        self, reasons: Sequence[str], prompt_tokens: int, completion_tokens: int, mode: str, stats: Stats
    ) -> None:
        self._end(
            {
                "gen_ai.response.finish_reasons": tuple(reasons),
                "gen_ai.usage.input_tokens": prompt_tokens,
                "gen_ai.usage.output_tokens": completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": stats.cached_tokens,
                "holdfast.mode": mode,
                **{f"holdfast.{name}": getattr(stats, name) for name in _STATS},
            }
        )

    def failed(self, code: str, status: int) -> None:
        if status >= 500 and not self._ended:  # a 4xx is the client's error, not this server's
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
        self._end({"error.type": code, "http.response.status_code": status})

    def _end(self, attributes: dict[str, Any]) -> None:
        if not self._ended:
            self._ended = True
            self._span.set_attributes(attributes)
            self._span.end()


def collector_url(endpoint: str) -> str:
    """The URL for traces.

    An address without a path gets the standard path; one with a path is used unchanged.
    """
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError("otlp_endpoint must be an http or https address, such as http://localhost:4318")
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _attributes(request: TracedRequest) -> dict[str, Any]:
    given: dict[str, Any] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": request.model,
        # Invalid UTF-8 would make the exporter drop the whole batch.
        "gen_ai.response.id": escape(request.request_id),
        "gen_ai.request.stream": request.stream,
        "holdfast.deterministic": request.deterministic,
    }
    if request.params is not None:
        given |= {f"gen_ai.request.{name}": getattr(request.params, name) for name in _REQUEST_PARAMS}
        given["gen_ai.request.choice.count"] = request.params.n
        if (request.params.seed or 0) >= 1 << 63:  # so would a value above int64
            del given["gen_ai.request.seed"]
    return {name: value for name, value in given.items() if value is not None}
