"""How both processes log: one line a record on stderr, as text or as one JSON object.

    2026-03-01T12:00:00.123Z info    holdfast.access: request route=/v1/completions status=200 request_id=cmpl-1
    {"time": "2026-03-01T12:00:00.123Z", "level": "info", "logger": "holdfast.access", "message": "request", ...}

What a client sent may be in a value. It cannot end the line, begin another or steer a terminal: whatever is not printable is
written as its escape, values are cut, and the lines of a traceback are marked. API keys are blotted out wherever they appear.
"""

import json
import logging
import math
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

MAX_VALUE_CHARS = 1000
MAX_TEXT_CHARS = 20_000
_MARK = "    | "
_BLOT = "***"

# Whatever is logged while this is set belongs to that request.
current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}
_PLAIN = frozenset("-_.:/+@*")  # besides letters and digits, what a value may hold without quotes


def configure_logging(
    log_format: str, log_level: str, *, secrets: Sequence[str] = (), stream: TextIO | None = None
) -> None:
    """Send every logger of this process through one handler. May be called again; the last call counts."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(secrets) if log_format == "json" else TextFormatter(secrets))
    logging.basicConfig(handlers=[handler], level=log_level.upper(), force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        theirs = logging.getLogger(name)
        theirs.handlers.clear()
        theirs.propagate = name != "uvicorn.access"  # our own access line says more
        theirs.setLevel(logging.NOTSET)
    logging.getLogger("uvicorn.error").setLevel(
        max(logging.WARNING, logging.getLogger().level)
    )  # we say ourselves when we are up
    logging.captureWarnings(True)
    for name in ("asyncio", "urllib3"):  # at debug they tell of every packet
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


class _Lines(logging.Formatter):
    """What both formats share: the fields of a record, as values that are safe to show."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)  # a key may hold a shorter one

    def _head(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._blot(_message(record), MAX_TEXT_CHARS),
        }

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What was given by `extra`, and the request it belongs to."""
        given = {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if current_request_id.get() is not None:
            given.setdefault("request_id", current_request_id.get())
        return {name: self._value(value) for name, value in given.items() if value is not None}

    def _value(self, value: object) -> Any:
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, list | tuple):
            return [self._value(one) for one in value[:MAX_VALUE_CHARS]]
        return self._blot(str(value), MAX_VALUE_CHARS)

    def _trace(self, record: logging.LogRecord) -> str | None:
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [record.stack_info] if record.stack_info else []
        return self._blot("\n".join(parts), MAX_TEXT_CHARS) if parts else None

    def _blot(self, text: str, most: int) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _BLOT)
        return text if len(text) <= most else f"{text[:most]}…"


class JsonFormatter(_Lines):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        head = self._head(record) | ({"exception": trace} if trace else {})
        return json.dumps(
            {**head, **self._fields(record), **head}
        )  # the head comes first, and no field replaces it


class TextFormatter(_Lines):
    """Time, level, logger, message, then the fields as name=value; a traceback on marked lines below."""

    def format(self, record: logging.LogRecord) -> str:
        head = self._head(record)
        fields = "".join(f" {escape(name)}={_quoted(value)}" for name, value in self._fields(record).items())
        line = (
            f"{head['time']} {head['level']:<7} {escape(head['logger'])}: {escape(head['message'])}{fields}"
        )
        trace = self._trace(record)
        below = "".join(f"\n{_MARK}{escape(one)}" for one in trace.split("\n")) if trace else ""
        return line + below


def escape(text: str) -> str:
    """The text with everything unprintable as its escape: controls, line ends of every kind, direction marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _quoted(value: object) -> str:
    """A field's value; in quotes where it could be taken for anything else."""
    if isinstance(value, str):
        plain = value != "" and all(one.isascii() and (one.isalnum() or one in _PLAIN) for one in value)
        return value if plain else escape(json.dumps(value, ensure_ascii=False))
    if isinstance(value, list):
        return f"[{','.join(map(_quoted, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a message that cannot be made must not lose the record
        return str(record.msg)
