"""Traces: one span for each request, sent over OTLP/HTTP by OpenTelemetry's SDK in a thread of the SDK.

Without an OTLP endpoint nothing is traced, and OpenTelemetry is not even imported. A span is made when its
request has ended.

Attributes follow OpenTelemetry's conventions for generative models (`gen_ai.*`); Holdfast's own are
`holdfast.*`. A span never contains a prompt or a completion. The tracer provider belongs to this
server; the process-wide one is not set. The SDK's OTEL_* variables apply: headers, resource
attributes, sampler.
"""

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.server.telemetry.logs import escape
from holdfast.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from holdfast.server.call import Call

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


def open_traces(endpoint: str | None) -> "Traces | None":
    """Return the traces that go to an OTLP collector, such as http://localhost:4318; None without one."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "traces need OpenTelemetry; install it with: pip install 'holdfast[otel]'"
        ) from error
    exporter = OTLPSpanExporter(collector_url(endpoint), timeout=_EXPORT_SECONDS)
    return Traces(BatchSpanProcessor(exporter))


class Traces:
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

    def record(self, headers: Mapping[str, str], model: str, call: "Call") -> None:
        """Make the span of a call that has ended. The `traceparent` header says to which trace it belongs."""
        from opentelemetry.trace import SpanKind, StatusCode

        span = self._tracer.start_span(
            f"{call.operation} {model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(model, call),
            start_time=time.time_ns() - int(1e9 * call.metrics.seconds),
        )
        _, status = call.failure or ("", 0)
        if status >= 500:  # a 4xx is the client's error, not this server's
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Send the remaining spans. The SDK waits up to 30 seconds for a collector that does not respond."""
        closing = threading.Thread(target=self._provider.shutdown, name="holdfast-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


def collector_url(endpoint: str) -> str:
    """Return the URL for traces: an address without a path gets the standard path."""
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError("otlp_endpoint must be an http or https address, such as http://localhost:4318")
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _attributes(model: str, call: "Call") -> dict[str, Any]:
    given: dict[str, Any] = {
        "gen_ai.operation.name": call.operation,
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        # Invalid UTF-8 would make the exporter drop the whole batch.
        "gen_ai.response.id": escape(call.request_id),
        "gen_ai.request.stream": call.stream,
        "gen_ai.response.time_to_first_chunk": call.metrics.first_token_seconds,
        "holdfast.deterministic": call.deterministic,
        "holdfast.queue_seconds": call.metrics.queue_seconds,
        "holdfast.replicas": call.replicas or None,
    }
    if call.params is not None:
        given |= {f"gen_ai.request.{name}": getattr(call.params, name) for name in _REQUEST_PARAMS}
        given["gen_ai.request.choice.count"] = call.params.n
        if (call.params.seed or 0) >= 1 << 63:  # so would a value above int64
            del given["gen_ai.request.seed"]
    if call.failure is not None:
        given["error.type"], given["http.response.status_code"] = call.failure
    else:
        given |= {
            "gen_ai.response.finish_reasons": call.finish_reasons,
            "gen_ai.usage.input_tokens": call.num_prompt_tokens,
            "gen_ai.usage.output_tokens": call.metrics.num_generated,
            "gen_ai.usage.cache_read.input_tokens": call.stats.cached_tokens,
            "holdfast.mode": call.mode,
            **{f"holdfast.{name}": getattr(call.stats, name) for name in _STATS},
        }
    return {name: value for name, value in given.items() if value is not None}
