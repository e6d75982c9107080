"""Log formatting of both processes: one line for each record on stderr, as text or as one JSON
object.

    2026-03-01T12:00:00.123Z info    holdfast.access: request route=/v1/completions status=200 request_id=cmpl-1
    {"time": "2026-03-01T12:00:00.123Z", "level": "info", "logger": "holdfast.access", "message": "request", ...}

Values may contain text from clients. Such text cannot break a line, forge another or control a
terminal: unprintable characters are escaped, values are truncated, and the lines of a traceback
have a prefix. API keys are redacted everywhere.

A formatter of our own, because neither `logging` nor a JSON log library escapes, truncates and
redacts all of these.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

MAX_VALUE_CHARS = 1000
MAX_TEXT_CHARS = 20_000
_TRACEBACK_PREFIX = "    | "
_REDACTED = "***"

# The request that log records of this context belong to.
current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
# The model that they are about, if a server has several.
current_model: ContextVar[str | None] = ContextVar("current_model", default=None)

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}
_UNQUOTED = re.compile(r"[A-Za-z0-9_.:/+@*-]+")  # values that need no quotes


def configure_logging(
    log_format: str,
    log_level: str,
    *,
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
    model: str | None = None,
) -> None:
    """Send every logger of this process through one handler. A later call replaces an earlier one.

    secrets: what is redacted. model: what the records are about, if a server has several.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    handler.setFormatter(formatter(secrets, model))
    logging.basicConfig(handlers=[handler], level=log_level.upper(), force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        uvicorn_logger = logging.getLogger(name)
        uvicorn_logger.handlers.clear()
        uvicorn_logger.propagate = name != "uvicorn.access"  # `middleware.request_log` replaces it
        uvicorn_logger.setLevel(logging.NOTSET)
    # The server logs its own start and stop.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.captureWarnings(True)
    for name in ("asyncio", "urllib3"):  # at debug level they log every packet
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


class _SafeFormatter(logging.Formatter):
    """The fields of a record, as values that are safe to print."""

    def __init__(self, secrets: Sequence[str] = (), model: str | None = None) -> None:
        super().__init__()
        self._model = model
        # Longest first: a key may contain a shorter one.
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)

    def _head(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redact(_message(record), MAX_TEXT_CHARS),
        }

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the `extra` fields, the model and the request id. Names with an underscore are those of libraries that mark
        every record, as ray does."""
        given = {
            name: value
            for name, value in record.__dict__.items()
            if name not in _STANDARD_FIELDS and not name.startswith("_")
        }
        given.setdefault("model", current_model.get() or self._model)
        given.setdefault("request_id", current_request_id.get())
        return {name: self._value(value) for name, value in given.items() if value is not None}

    def _value(self, value: object) -> Any:
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, list | tuple):
            return [self._value(one) for one in value[:MAX_VALUE_CHARS]]
        return self._redact(str(value), MAX_VALUE_CHARS)

    def _trace(self, record: logging.LogRecord) -> str | None:
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [record.stack_info] if record.stack_info else []
        return self._redact("\n".join(parts), MAX_TEXT_CHARS) if parts else None

    def _redact(self, text: str, most: int) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        return text if len(text) <= most else f"{text[:most]}…"


class JsonFormatter(_SafeFormatter):
    """One JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        head = self._head(record) | ({"exception": trace} if trace else {})
        # The head comes first, and no field replaces it.
        return json.dumps({**head, **self._fields(record), **head})


class TextFormatter(_SafeFormatter):
    """Time, level, logger, message, fields as name=value; then the lines of a traceback, each with
    a prefix.
    """

    def format(self, record: logging.LogRecord) -> str:
        head = self._head(record)
        fields = "".join(f" {escape(name)}={_quoted(value)}" for name, value in self._fields(record).items())
        line = (
            f"{head['time']} {head['level']:<7} {escape(head['logger'])}: {escape(head['message'])}{fields}"
        )
        trace = self._trace(record)
        below = "".join(f"\n{_TRACEBACK_PREFIX}{escape(one)}" for one in trace.split("\n")) if trace else ""
        return line + below


def escape(text: str) -> str:
    """Escape unprintable characters: controls, line ends of every kind, direction marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _quoted(value: object) -> str:
    """Return a field's value, quoted where it would be ambiguous."""
    if isinstance(value, str):
        return value if _UNQUOTED.fullmatch(value) else escape(json.dumps(value, ensure_ascii=False))
    if isinstance(value, list):
        return f"[{','.join(map(_quoted, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # wrong arguments must not lose the record
        return str(record.msg)
