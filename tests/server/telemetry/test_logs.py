"""Log records are one line each, whatever their values contain."""

import io
import json
import logging
import subprocess
import sys
import warnings
from datetime import UTC, datetime

import pytest

from holdfast.server.middleware.request_log import AccessLogEntry
from holdfast.server.telemetry.logs import MAX_VALUE_CHARS, configure_logging, current_request_id, escape

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


def test_value_cannot_forge_fields(lines):
    read = lines("text")
    log.info("x", extra={"client": 'a" level=error b="'})
    assert read()[0].endswith(r'x client="a\" level=error b=\""')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_values_are_truncated(lines, log_format):
    read = lines(log_format)
    log.info("x", extra={"path": "a" * 100_000})
    assert len(read()[0]) < MAX_VALUE_CHARS + 200


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


def test_traceback_is_a_json_field(lines):
    read = lines("json")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("it broke")
    (line,) = read()
    assert json.loads(line)["exception"].endswith("ValueError: first\nsecond")


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


def test_level_filters_records(lines):
    read = lines("text", "warning")
    log.info("no")
    log.warning("yes")
    assert len(read()) == 1


def test_last_configuration_applies(lines):
    first, second = lines("text"), lines("json")
    log.info("x")
    assert first() == []
    assert len(second()) == 1


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


def test_warnings_are_logged(lines):
    read = lines("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    (line,) = read()
    assert "UserWarning: old" in json.loads(line)["message"]


def test_infinity_is_written_as_text(lines):
    read = lines("json")
    log.info("x", extra={"rate": float("nan"), "most": float("inf")})
    assert json.loads(read()[0], parse_constant=pytest.fail)["rate"] == "nan"


def test_record_with_wrong_arguments_is_still_logged(lines):
    read = lines("text")
    log.info("%d of them", "many")
    assert read()[0].endswith("%d of them")


def test_escape_keeps_printable_text():
    assert escape("größer – 你好 🙂") == "größer – 你好 🙂"
    assert escape("a\tb") == r"a\tb"


# Access log

WHOLE = AccessLogEntry(
    "/v1/chat/completions",
    200,
    request_id="chatcmpl-1",
    client="127.0.0.1",
    deterministic=True,
    mode="certified",
    prompt_tokens=12,
    completion_tokens=34,
    first_token_ms=56.789,
    total_ms=1234.5678,
    finish_reason="stop",
)


def test_access_log_line(lines):
    read = lines("json")
    WHOLE.write()
    (line,) = read()
    found = json.loads(line)
    del found["time"]
    assert found == {
        "level": "info",
        "logger": "holdfast.access",
        "message": "request",
        "route": "/v1/chat/completions",
        "status": 200,
        "request_id": "chatcmpl-1",
        "client": "127.0.0.1",
        "deterministic": True,
        "mode": "certified",
        "prompt_tokens": 12,
        "completion_tokens": 34,
        "first_token_ms": 56.8,
        "total_ms": 1234.6,
        "finish_reason": "stop",
    }


def test_access_log_omits_unknown_fields(lines):
    read = lines("text")
    AccessLogEntry("/health", 200, total_ms=1).write()
    assert read()[0].endswith("info    holdfast.access: request route=/health status=200 total_ms=1")


@pytest.mark.parametrize(
    ("status", "level"), [(200, "info"), (404, "info"), (500, "warning"), (503, "warning")]
)
def test_access_log_level_depends_on_status(lines, status, level):
    read = lines("json")
    AccessLogEntry("/v1/completions", status).write()
    assert json.loads(read()[0])["level"] == level


def test_default_stream_is_stderr():
    code = (
        "import logging; from holdfast.server.telemetry.logs import configure_logging; configure_logging('json', 'info');"
        "logging.getLogger('holdfast.engine').info('up')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert json.loads(done.stderr)["message"] == "up"
