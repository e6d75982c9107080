"""One OpenTelemetry span for each request; without an endpoint, none."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.core.results import Stats
from holdfast.core.sampling_params import MAX_SEED, SamplingParams
from holdfast.errors import ConfigError
from holdfast.server.telemetry.traces import TracedRequest, open_traces

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
STATS = Stats(candidates=9, accepted=7, rolled_back=2, rollbacks=1, windows=3, cached_tokens=16)


def traced_request(**changes):
    params = changes.pop("params", SamplingParams(max_tokens=64, temperature=0.8, seed=7, n=2))
    return TracedRequest("chat", "smollm2", "chatcmpl-1", params, **changes)


@pytest.fixture
def otel():
    """Traces that store their spans, and a function that returns the ended ones."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="opentelemetry is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from holdfast.server.telemetry.traces import OtelTraces

    exporter = InMemorySpanExporter()
    traces = OtelTraces(SimpleSpanProcessor(exporter))
    yield traces, exporter.get_finished_spans
    traces.close()


def test_span_attributes_of_a_request(otel):
    traces, ended = otel
    span = traces.begin({}, traced_request(stream=True, deterministic=True))
    span.started(0.25)
    span.first_token()
    assert ended() == ()
    span.computed_by(["r1", "r2"])
    span.finished(["stop", "length"], 20, 30, "certified", STATS)
    (done,) = ended()
    assert done.name == "chat smollm2"
    assert done.kind.name == "SERVER"
    assert done.status.status_code.name == "UNSET"
    assert done.parent is None
    attributes = dict(done.attributes)
    assert attributes.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": "smollm2",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.8,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "smollm2",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "holdfast.deterministic": True,
        "holdfast.mode": "certified",
        "holdfast.queue_seconds": 0.25,
        "holdfast.replicas": ("r1", "r2"),
        "holdfast.candidates": 9,
        "holdfast.accepted": 7,
        "holdfast.rolled_back": 2,
        "holdfast.rollbacks": 1,
        "holdfast.windows": 3,
        "holdfast.preemptions": 0,
    }


def test_traceparent_continues_the_trace(otel):
    traces, ended = otel
    span = traces.begin({"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}, traced_request())
    span.finished(["stop"], 1, 1, "none", Stats())
    (done,) = ended()
    assert f"{done.context.trace_id:032x}" == TRACE_ID
    assert f"{done.parent.span_id:016x}" == PARENT_ID


@pytest.mark.parametrize(
    "header", ["", "00", "00-0-0-01", f"ff-{TRACE_ID}-{PARENT_ID}-01", "x" * 8000, "\x00"]
)
def test_invalid_traceparent_starts_a_new_trace(otel, header):
    traces, ended = otel
    traces.begin({"traceparent": header, "tracestate": "a=b," * 200}, traced_request()).failed("x", 400)
    assert ended()[0].parent is None


@pytest.mark.parametrize(
    ("status", "verdict"), [(400, "UNSET"), (429, "UNSET"), (500, "ERROR"), (504, "ERROR")]
)
def test_failed_request(otel, status, verdict):
    traces, ended = otel
    traces.begin({}, traced_request()).failed("some_code", status)
    (done,) = ended()
    assert done.attributes["error.type"] == "some_code"
    assert done.attributes["http.response.status_code"] == status
    assert done.status.status_code.name == verdict


def test_span_ends_once(otel):
    traces, ended = otel
    span = traces.begin({}, traced_request())
    span.finished(["stop"], 1, 1, "none", Stats())
    span.failed("late", 500)
    (done,) = ended()
    assert "error.type" not in done.attributes
    assert done.status.status_code.name == "UNSET"


def test_client_values_do_not_break_the_encoding(otel):
    traces, ended = otel
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    params = SamplingParams(seed=MAX_SEED, stop=["secret"])
    traces.begin({}, TracedRequest("chat", "m", "id-\ud800\x00", params)).finished(
        ["stop"], 1, 1, "none", Stats()
    )
    sent = encode_spans(ended()).SerializeToString()
    assert b"chat m" in sent
    assert b"secret" not in sent


# Export


class Collector(BaseHTTPRequestHandler):
    """Stores what it receives."""

    received: list

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_spans_reach_a_collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="opentelemetry is not installed")
    received = []
    handler = type("Kept", (Collector,), {"received": received})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        traces = open_traces(f"http://127.0.0.1:{server.server_port}")
        traces.begin({}, traced_request()).finished(["stop"], 1, 1, "certified", Stats())
        traces.close()  # sends the remaining spans
        server.shutdown()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"chat smollm2" in body
    assert b"holdfast.mode" in body


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector:4318/otlp/v1/traces", "http://collector:4318/otlp/v1/traces"),
    ],
)
def test_collector_url(otel, given, url):
    from holdfast.server.telemetry.traces import collector_url

    assert collector_url(given) == url


@pytest.mark.parametrize(
    "given", ["", "localhost:4318", "ftp://x", "http://", "grpc://x:1", "http://u:hidden@[", "http://x:99999"]
)
def test_invalid_endpoint_is_refused(otel, given):
    with pytest.raises(ConfigError, match="http or https") as caught:
        open_traces(given)
    assert "hidden" not in str(caught.value)


def test_missing_packages_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[otel\]'"):
        open_traces("http://localhost:4318")


# Without traces


def test_without_endpoint_opentelemetry_is_not_imported():
    code = (
        "import sys; from holdfast.server.telemetry.traces import TracedRequest, open_traces;"
        "from holdfast.core.results import Stats;"
        "traces = open_traces(None); span = traces.begin({'traceparent': 'x'}, TracedRequest('chat', 'm', 'id'));"
        "span.started(1); span.first_token(); span.computed_by(['r']);"
        "span.finished(['stop'], 1, 1, 'none', Stats()); span.failed('x', 500);"
        "traces.close(); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
