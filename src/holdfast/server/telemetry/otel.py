"""Spans through OpenTelemetry's SDK, sent over OTLP/HTTP by a thread of the SDK's own. Only `traces` imports this.

The provider is ours alone, not the process's. The SDK's own OTEL_* variables hold: headers, resource attributes, sampler.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OpenSpan
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.core.results import Stats
from holdfast.errors import ConfigError
from holdfast.server.telemetry.logs import escape
from holdfast.server.telemetry.traces import TracedRequest, TraceSpan
from holdfast.version import __version__

_EXPORT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_ASKED = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
_COST = ("candidates", "accepted", "rolled_back", "rollbacks", "windows", "preemptions")


class OtelTraces:
    """A tracer over whatever takes its spans."""

    def __init__(self, processor: SpanProcessor) -> None:
        ours = Resource({"service.name": "holdfast", "service.version": __version__})
        named = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("holdfast", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @staticmethod
    def to(endpoint: str) -> "OtelTraces":
        """Spans to this collector."""
        return OtelTraces(
            BatchSpanProcessor(OTLPSpanExporter(collector_url(endpoint), timeout=_EXPORT_SECONDS))
        )

    def begin(self, headers: Mapping[str, str], asked: TracedRequest) -> TraceSpan:
        span = self._tracer.start_span(
            f"{asked.operation} {asked.model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(asked),
        )
        return _OtelSpan(span)

    def close(self) -> None:
        # The SDK would wait half a minute for a collector that does not answer.
        closing = threading.Thread(target=self._provider.shutdown, name="holdfast-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _OtelSpan:
    def __init__(self, span: OpenSpan) -> None:
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
                **{f"holdfast.{name}": getattr(stats, name) for name in _COST},
            }
        )

    def failed(self, code: str, status: int) -> None:
        if status >= 500 and not self._ended:  # what a client did wrong is no error of this server's
            self._span.set_status(StatusCode.ERROR)
        self._end({"error.type": code, "http.response.status_code": status})

    def _end(self, attributes: dict[str, Any]) -> None:
        if not self._ended:
            self._ended = True
            self._span.set_attributes(attributes)
            self._span.end()


def collector_url(endpoint: str) -> str:
    """Where traces go: a collector's address gets the standard path, one with a path of its own is taken as it is."""
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError("otlp_endpoint must be an http or https address, such as http://localhost:4318")
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _attributes(asked: TracedRequest) -> dict[str, Any]:
    given: dict[str, Any] = {
        "gen_ai.operation.name": asked.operation,
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": asked.model,
        "gen_ai.response.model": asked.model,
        "gen_ai.response.id": escape(asked.request_id),  # one that is no UTF-8 would spoil the whole batch
        "gen_ai.request.stream": asked.stream,
        "holdfast.deterministic": asked.deterministic,
    }
    if asked.params is not None:
        given |= {f"gen_ai.request.{name}": getattr(asked.params, name) for name in _ASKED}
        given["gen_ai.request.choice.count"] = asked.params.n
        if (asked.params.seed or 0) >= 1 << 63:  # so would a number OTLP has no room for
            del given["gen_ai.request.seed"]
    return {name: value for name, value in given.items() if value is not None}
