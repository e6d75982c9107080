"""Traces: one span for each request, if an OTLP endpoint is configured.

Otherwise OpenTelemetry is not even imported.

    traces = open_traces(config.otlp_endpoint)
    span = traces.begin(headers, request)      -> first_token() -> finished(...) or failed(...)

Attributes follow OpenTelemetry's conventions for generative models (`gen_ai.*`); Holdfast's own are
`holdfast.*`. A span never contains a prompt or a completion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import ConfigError

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


class TraceSpan(Protocol):
    """The span of one request. It ends once: calls after `finished` or `failed` have no effect."""

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


class Traces(Protocol):
    """Makes spans."""

    def begin(self, headers: Mapping[str, str], request: TracedRequest) -> TraceSpan:
        """Start a span. The `traceparent` header says to which trace it belongs."""

    def close(self) -> None:
        """Send the remaining spans, within a short timeout."""


def open_traces(endpoint: str | None) -> Traces:
    """Traces that go to an OTLP collector, such as http://localhost:4318, or nowhere."""
    if endpoint is None:
        return NoTraces()
    try:
        from holdfast.server.telemetry.otel import OtelTraces
    except ImportError as error:
        raise ConfigError(
            "traces need OpenTelemetry; install it with: pip install 'holdfast[otel]'"
        ) from error
    return OtelTraces.to(endpoint)


class NoTraces:
    """No collector is configured."""

    def begin(self, headers: Mapping[str, str], request: TracedRequest) -> TraceSpan:
        return _NO_SPAN

    def close(self) -> None:
        pass


class _NoSpan:
    def started(self, queue_seconds: float) -> None:
        pass

    def first_token(self) -> None:
        pass

    def computed_by(self, replicas: Sequence[str]) -> None:
        pass

    def finished(
        self, reasons: Sequence[str], prompt_tokens: int, completion_tokens: int, mode: str, stats: Stats
    ) -> None:
        pass

    def failed(self, code: str, status: int) -> None:
        pass


_NO_SPAN = _NoSpan()
