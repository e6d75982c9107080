"""The resumable streams of one server: their ids, who may read them, how long and how much is kept.

An event id is TOKEN-NUMBER. The token is random, followed by an HMAC of it, its owner and its route
with a secret of this process:

    the HMAC is another one   404. The id was invented, or is of another key, route or server
    it is right               a stream that is not kept is a 410. Nothing need be remembered for that

The owner is the tenant of the API key. Without keys the token alone admits: a client may come back
from another address, as a phone does.

Memory is bounded. The tenant that holds most gives way first: its streams without a reader, the one
that has had none for longest first; then the events that its readers were given already.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from holdfast.server.errors import ApiError
from holdfast.server.streams.event_log import EventLog, LogReader
from holdfast.server.telemetry.stream_metrics import StreamMetrics
from holdfast.server.tenants.tenant import Tenant

_PART_BYTES = 12  # of the random part, and of the HMAC: 32 characters in base64
_EVENT_ID = re.compile(r"([A-Za-z0-9_-]{32})-([0-9]{1,9})")
HEADER = "Last-Event-ID"


@dataclass(eq=False)
class _KeptStream:
    log: EventLog
    tenant: str  # whose memory it is
    body_digest: bytes
    num_bytes: int = 0  # as counted last
    expiry: asyncio.TimerHandle | None = None  # while it has no reader


class StreamStore:
    """seconds is how long a stream without a reader is kept; 0: no stream can be resumed."""

    def __init__(self, seconds: float, max_bytes: int, metrics: StreamMetrics) -> None:
        self.seconds = seconds
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._secret = secrets.token_bytes(32)
        self._streams: dict[str, _KeptStream] = {}  # by token; those without a reader in order of its loss
        self._num_bytes: dict[str, int] = {}  # by tenant that has any
        self._total_bytes = 0

    def open(self, tenant: Tenant, path: str, body: bytes) -> tuple[EventLog, LogReader]:
        """A log for the stream that answers this body, and its first reader."""
        random = secrets.token_bytes(_PART_BYTES)
        token = base64.urlsafe_b64encode(random + self._mac(random, tenant, path)).decode()
        log = EventLog(token, self._update)
        reader = log.attach(0)
        self._streams[token] = _KeptStream(log, tenant.id, _digest(body))
        self._update(log)
        return log, reader

    def resume(self, event_id: str, tenant: Tenant, path: str, body: bytes) -> LogReader:
        """A reader of the events after this one. Raises an `ApiError` if they are not kept.

        The body is that of the first request again, or empty.
        """
        matched = _EVENT_ID.fullmatch(event_id)
        if matched is None or not self._is_own(matched[1], tenant, path):
            raise _not_found()
        kept, start = self._streams.get(matched[1]), int(matched[2]) + 1
        if kept is None or start < kept.log.first:
            raise self._gone()
        if body and not hmac.compare_digest(kept.body_digest, _digest(body)):
            raise _other_body()
        if start > kept.log.num_events:
            raise _error(400, "invalid_value", f"the stream has had {kept.log.num_events} events so far")
        self._metrics.resumed.inc()
        return kept.log.attach(start)

    def measure(self) -> None:
        """Set the gauges."""
        streams = self._streams.values()
        self._metrics.kept.set(len(streams))
        self._metrics.num_bytes.set(self._total_bytes)
        self._metrics.detached.set(sum(one.expiry is not None and not one.log.is_over for one in streams))

    def _gone(self) -> ApiError:
        return _error(
            410,
            "stream_gone",
            f"the rest of this stream is not kept any more. Streams are kept for {self.seconds:g} seconds after "
            "their connection was lost or their answer was complete, or less while memory is short; send the "
            f"request again, without {HEADER}",
        )

    def _update(self, log: EventLog) -> None:
        """The size of a log, its reader or its end changed."""
        kept = self._streams.get(log.token)
        if kept is None:
            return
        self._count(kept, log.num_bytes)
        if log.reader is not None:
            _cancel_expiry(kept)
        elif kept.expiry is None:
            kept.expiry = asyncio.get_running_loop().call_later(self.seconds, self._drop, kept)
            self._streams[log.token] = self._streams.pop(log.token)  # the last one
        while self._total_bytes > self._max_bytes and self._free():
            pass

    def _count(self, kept: _KeptStream, num_bytes: int) -> None:
        added, kept.num_bytes = num_bytes - kept.num_bytes, num_bytes
        self._total_bytes += added
        held = self._num_bytes[kept.tenant] = self._num_bytes.get(kept.tenant, 0) + added
        if not held:
            del self._num_bytes[kept.tenant]

    def _free(self) -> bool:
        """Free memory of the tenant that holds most, or else of another one. False: there is none."""
        for tenant in sorted(self._num_bytes, key=self._num_bytes.__getitem__, reverse=True):
            own = [kept for kept in self._streams.values() if kept.tenant == tenant]
            idle = next((kept for kept in own if kept.expiry is not None), None)
            if idle is not None:
                self._drop(idle)
                return True
            before = self._total_bytes
            for kept in own:
                kept.log.forget_read()
                self._count(kept, kept.log.num_bytes)
            if self._total_bytes < before:
                return True
        return False

    def _drop(self, kept: _KeptStream) -> None:
        """Forget a stream. If its answer is not complete, it is aborted."""
        del self._streams[kept.log.token]
        self._count(kept, 0)
        _cancel_expiry(kept)
        if not kept.log.is_over:
            self._metrics.abandoned.inc()
            kept.log.abandon()
            kept.log.end()

    def _is_own(self, token: str, tenant: Tenant, path: str) -> bool:
        parts = base64.urlsafe_b64decode(token)
        return hmac.compare_digest(parts[_PART_BYTES:], self._mac(parts[:_PART_BYTES], tenant, path))

    def _mac(self, random: bytes, tenant: Tenant, path: str) -> bytes:
        owner = tenant.id if tenant.has_key else ""
        message = random + f"{path}\0{owner}".encode()
        return hmac.digest(self._secret, message, hashlib.sha256)[:_PART_BYTES]


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _cancel_expiry(kept: _KeptStream) -> None:
    if kept.expiry is not None:
        kept.expiry.cancel()
        kept.expiry = None


def _error(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, message, param=HEADER, code=code)


def _not_found() -> ApiError:
    return _error(
        404,
        "stream_not_found",
        f"no stream of this client on this route has this event id; send {HEADER} to the route of the lost stream, "
        "with the same API key",
    )


def _other_body() -> ApiError:
    return _error(
        400,
        "invalid_value",
        f"the stream of this {HEADER} answers another body; send the same body again or none, or omit {HEADER} to "
        "send a new request",
    )
