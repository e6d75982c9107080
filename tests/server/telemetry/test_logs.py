"""Log records are one line each, whatever their values contain."""

import io
import json
import logging
from datetime import UTC, datetime

import pytest

from holdfast.server.middleware.request_log import AccessLogEntry
from holdfast.server.telemetry.logs import configure_logging, current_request_id

NASTY = {
    "line feed": "a\n2026-01-01T00:00:00.000Z info    forged: b",
    "carriage return": "a\rb",
    "both": "a\r\nb",
    "escape": "a\x1b[2Jb",
    "bell": "a\x07b",
    "null": "a\x00b",
    "c1": "a\x85b\x9bb",
    "line separator": "a\u2028b\u2029c",
    "direction": "a\u202eb\u2066c",
    "surrogate": "a\ud800b",
    "quotes": 'a" level=error b="',
}


@pytest.fixture
def lines():
    """`lines("json")` configures logging and returns a function that reads what was logged."""
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def begin(log_format, level="info", secrets=()):
        stream = io.StringIO()
        configure_logging(log_format, level, secrets=secrets, stream=stream)

        def read():
            text = stream.getvalue()
            assert text == "" or text.endswith("\n")
            return text.splitlines()  # at every kind of line end

        return read

    yield begin
    logging.captureWarnings(False)
    root.handlers[:], level = before
    root.setLevel(level)


log = logging.getLogger("holdfast.server")


def test_text_format(lines):
    read = lines("text")
    log.info(
        "up at %s", "http://127.0.0.1:8000", extra={"port": 8000, "inspector": True, "note": "all is well"}
    )
    (line,) = read()
    time, rest = line.split(" ", 1)
    assert rest == (
        'info    holdfast.server: up at http://127.0.0.1:8000 port=8000 inspector=true note="all is well"'
    )
    assert time.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()) < 60


def test_json_format(lines):
    read = lines("json")
    log.warning("late", extra={"request_id": "cmpl-1", "seconds": 1.5, "nothing": None, "many": ("a", 2)})
    (line,) = read()
    found = json.loads(line)
    assert list(found)[:4] == ["time", "level", "logger", "message"]
    assert datetime.fromisoformat(found.pop("time")).tzinfo == UTC
    assert found == {
        "level": "warning",
        "logger": "holdfast.server",
        "message": "late",
        "request_id": "cmpl-1",
        "seconds": 1.5,
        "many": ["a", 2],
    }


def test_extra_fields_do_not_replace_the_head(lines):
    read = lines("json")
    log.info("true", extra={"level": "false", "time": "never", "logger": "forged"})
    (line,) = read()
    found = json.loads(line)
    assert (found["level"], found["logger"]) == ("info", "holdfast.server")
    assert found["time"] != "never"


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_values_cannot_forge_a_line(lines, log_format, value):
    read = lines(log_format)
    log.info("it said %s", value, extra={"client": value, "several": [value, value], value: 1})
    (line,) = read()
    assert line.isprintable()
    if log_format == "json":
        found = json.loads(line)
        assert found["client"] == value
        assert found["message"] == f"it said {value}"


def test_traceback_lines_have_a_prefix(lines):
    read = lines("text")
    try:
        raise ValueError("first\n2026-01-01T00:00:00.000Z info    forged: x\r\x1b[31m")
    except ValueError:
        log.exception("it broke")
    head, *below = read()
    assert "it broke" in head
    assert below[0] == "    | Traceback (most recent call last):"
    assert all(line.startswith("    | ") and line.isprintable() for line in below)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_api_keys_are_redacted_everywhere(lines, log_format):
    read = lines(log_format, secrets=("key-1", "key-1-and-longer"))
    try:
        raise ValueError("Bearer key-1")
    except ValueError:
        log.exception("got %s", "key-1-and-longer", extra={"header": "Bearer key-1", "all": ["key-1"]})
    text = "\n".join(read())
    assert "key-1" not in text
    assert "and-longer" not in text
    assert text.count("***") == 5  # the traceback contains the source line


def test_record_contains_the_current_request_id(lines):
    read = lines("json")
    token = current_request_id.set("chatcmpl-7")
    try:
        log.info("inside")
        log.info("its own", extra={"request_id": "other"})
    finally:
        current_request_id.reset(token)
    log.info("outside")
    assert [json.loads(line).get("request_id") for line in read()] == ["chatcmpl-7", "other", None]


def test_uvicorn_logs_through_the_handler_without_access_lines(lines):
    theirs = logging.getLogger("uvicorn")
    theirs.addHandler(logging.StreamHandler(io.StringIO()))
    theirs.propagate = False
    read = lines("json")
    logging.getLogger("uvicorn.error").warning("Started", extra={"color_message": "\x1b[1mStarted"})
    logging.getLogger("uvicorn.access").info("GET /secret?api_key=1")
    (line,) = read()
    found = json.loads(line)
    assert (found["logger"], found["message"]) == ("uvicorn.error", "Started")
    assert "color_message" not in found
    assert theirs.handlers == []


# Access log


def test_access_log_line_has_the_known_fields_only(lines):
    read = lines("json")
    AccessLogEntry("/v1/chat/completions", 200, deterministic=True, first_token_ms=56.789, total_ms=1).write()
    (line,) = read()
    found = json.loads(line)
    del found["time"]
    assert found == {
        "level": "info",
        "logger": "holdfast.access",
        "message": "request",
        "route": "/v1/chat/completions",
        "status": 200,
        "deterministic": True,
        "first_token_ms": 56.8,
        "total_ms": 1,
    }
