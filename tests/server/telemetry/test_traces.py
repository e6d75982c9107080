"""One OpenTelemetry span for each request; without an endpoint, none."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from holdfast.core.results import Stats
from holdfast.core.sampling_params import MAX_SEED, SamplingParams
from holdfast.errors import ConfigError
from holdfast.server.telemetry.traces import Traces, collector_url, open_traces

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
PARAMS = SamplingParams(max_tokens=64, temperature=0.8, seed=7, n=2)
STATS = Stats(candidates=9, accepted=7, rolled_back=2, rollbacks=1, windows=3, cached_tokens=16)


def ended_call(**changes):
    """A `Call` that has ended, as far as a trace reads it."""
    metrics = SimpleNamespace(seconds=2.0, first_token_seconds=0.5, queue_seconds=0.25, num_generated=30)
    given = {
        "operation": "chat", "request_id": "chatcmpl-1", "stream": True, "deterministic": True,
        "metrics": metrics, "replicas": ("r1", "r2"), "params": PARAMS, "failure": None,
        "finish_reasons": ("stop", "length"), "num_prompt_tokens": 20, "stats": STATS, "mode": "certified",
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


@pytest.fixture
def record():
    """Returns the span that is made of a call."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="opentelemetry is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter))

    def record(headers=None, **changes):
        traces.record(headers or {}, "smollm2", ended_call(**changes))
        (done,) = exporter.get_finished_spans()
        return done

    yield record
    traces.close()


def test_span_attributes_of_a_request(record):
    done = record()
    assert done.name == "chat smollm2"
    assert done.kind.name == "SERVER"
    assert done.status.status_code.name == "UNSET"
    assert done.parent is None
    assert 2.0 <= (done.end_time - done.start_time) / 1e9 < 60
    assert dict(done.attributes) == {
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
        "gen_ai.response.time_to_first_chunk": 0.5,
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


def test_traceparent_continues_the_trace(record):
    done = record({"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
    assert f"{done.context.trace_id:032x}" == TRACE_ID
    assert f"{done.parent.span_id:016x}" == PARENT_ID


@pytest.mark.parametrize(
    "header", ["", "00", "00-0-0-01", f"ff-{TRACE_ID}-{PARENT_ID}-01", "x" * 8000, "\x00"]
)
def test_invalid_traceparent_starts_a_new_trace(record, header):
    assert record({"traceparent": header, "tracestate": "a=b," * 200}).parent is None


@pytest.mark.parametrize(
    ("status", "verdict"), [(400, "UNSET"), (429, "UNSET"), (500, "ERROR"), (504, "ERROR")]
)
def test_failed_request(record, status, verdict):
    done = record(failure=("some_code", status), params=None, finish_reasons=())
    assert done.attributes["error.type"] == "some_code"
    assert done.attributes["http.response.status_code"] == status
    assert done.status.status_code.name == verdict
    assert "holdfast.mode" not in done.attributes


def test_client_values_do_not_break_the_encoding(record):
    done = record(request_id="id-\ud800\x00", params=SamplingParams(seed=MAX_SEED, stop=["secret"]))
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    sent = encode_spans([done]).SerializeToString()
    assert b"chat smollm2" in sent
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
        traces.record({}, "smollm2", ended_call())
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
def test_collector_url(given, url):
    assert collector_url(given) == url


@pytest.mark.parametrize(
    "given", ["", "localhost:4318", "ftp://x", "http://", "grpc://x:1", "http://u:hidden@[", "http://x:99999"]
)
def test_invalid_endpoint_is_refused(given):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="opentelemetry is not installed")
    with pytest.raises(ConfigError, match="http or https") as caught:
        open_traces(given)
    assert "hidden" not in str(caught.value)


def test_missing_packages_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[otel\]'"):
        open_traces("http://localhost:4318")


def test_without_endpoint_opentelemetry_is_not_imported():
    code = (
        "import sys; from holdfast.server.telemetry.traces import open_traces; assert open_traces(None) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
