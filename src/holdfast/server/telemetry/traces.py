"""Traces: one span a request, if the server was told where to send them. Otherwise nothing is imported and nothing costs.

    traces = open_traces(config.otlp_endpoint)
    span = traces.begin(headers, asked)      -> first_token() -> finished(...) or failed(...)

What a span says follows OpenTelemetry's conventions for generative models (`gen_ai.*`); what is ours is `holdfast.*`. A
span never holds a prompt or an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.core.results import Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import ConfigError

Operation = Literal["chat", "text_completion", "score", "replay"]


@dataclass(frozen=True)
class TracedRequest:
    """What a client asked for, as far as a trace may know it."""

    operation: Operation
    model: str
    request_id: str
    params: SamplingParams | None = None
    stream: bool = False
    deterministic: bool = False


class TraceSpan(Protocol):
    """One request under way. It ends once: what is said of it afterwards is not told."""

    def started(self, queue_seconds: float) -> None:
        """It left the queue after so long."""

    def first_token(self) -> None:
        """The first token of any choice is there; further calls change nothing."""

    def finished(
        self, reasons: Sequence[str], prompt_tokens: int, completion_tokens: int, mode: str, stats: Stats
    ) -> None:
        """It has its answers: why each ended, and how they were made."""

    def failed(self, code: str, status: int) -> None:
        """It got an error instead."""


class Traces(Protocol):
    """Where spans come from."""

    def begin(self, headers: Mapping[str, str], asked: TracedRequest) -> TraceSpan:
        """A request has arrived; its traceparent header says which trace it belongs to."""

    def close(self) -> None:
        """Send what is left, but wait only a little for it."""


def open_traces(endpoint: str | None) -> Traces:
    """Spans to an OTLP collector, such as http://localhost:4318, or none."""
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
    """Nobody wants to know."""

    def begin(self, headers: Mapping[str, str], asked: TracedRequest) -> TraceSpan:
        return _NO_SPAN

    def close(self) -> None:
        pass


class _NoSpan:
    def started(self, queue_seconds: float) -> None:
        pass

    def first_token(self) -> None:
        pass

    def finished(
        self, reasons: Sequence[str], prompt_tokens: int, completion_tokens: int, mode: str, stats: Stats
    ) -> None:
        pass

    def failed(self, code: str, status: int) -> None:
        pass


_NO_SPAN = _NoSpan()
