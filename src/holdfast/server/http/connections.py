"""The open connections of one server, by client, and which of them gives way to another.

    idle, headers, body     it waits for its client's bytes; it gives way when there are too many connections
    response                its client does not read; it gives way when there are too many connections, after
                            all that wait for bytes, or when too many bytes are unsent
    request                 it waits for this server; it gives way last, and only if its client has more than
                            its share of all connections; the newest first, one whose response has begun last

The connection that gives way belongs to the client with the most connections, so that no client takes
the place of one that has fewer. Of that client's connections it is the one with the slowest progress.
A connection counts for its address until its request names a key.
"""

import itertools
import weakref
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Scope

MAX_UNSENT_BYTES = 256 << 20  # of all responses, in this process
STALL_SECONDS = 5.0  # without progress, before a response gives way to a connection
_NUM_COMPARED = 32  # the least recently active connections of a client, whose progress is compared
_STATE = "connection"


class Peer(Hashable, Protocol):
    """What the table asks a connection."""

    def receive_rate(self, now: float) -> float:
        """Bytes per second of the request that is arriving; 0 if there is none."""

    @property
    def may_give_way(self) -> bool:
        """Whether the progress is the client's alone to make."""

    @property
    def sent_at(self) -> float:
        """When the client last took a byte of its response."""

    @property
    def has_response(self) -> bool:
        """Whether a part of the response is sent already."""

    def assign(self, client: Hashable) -> None:
        """The current request turned out to be this client's."""


C = TypeVar("C", bound=Peer)
V = TypeVar("V")


@dataclass(slots=True)
class _Share(Generic[C]):
    """The connections of one client. receiving and unread are ordered by their last activity, busy by
    the arrival of the request; unread has the number of bytes that this process holds.
    """

    connections: set[C] = field(default_factory=set)
    receiving: dict[C, None] = field(default_factory=dict)
    busy: dict[C, None] = field(default_factory=dict)
    unread: dict[C, int] = field(default_factory=dict)


class ConnectionTable(Generic[C]):
    """Used by the server's event loop only."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._clients: dict[C, Hashable] = {}
        self._shares: dict[Hashable, _Share[C]] = {}
        self._num_unsent_bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def is_full(self) -> bool:
        return len(self._clients) >= self._max_connections

    def num_connections(self, client: Hashable) -> int:
        share = self._shares.get(client)
        return 0 if share is None else len(share.connections)

    def add(self, connection: C, client: Hashable) -> None:
        """A new connection. It waits for its client's first request."""
        self._clients[connection] = client
        share = self._shares.setdefault(client, _Share())
        share.connections.add(connection)
        share.receiving[connection] = None

    def remove(self, connection: C) -> None:
        self.set_read(connection)
        share = self._share(connection)
        client = self._clients.pop(connection, None)
        if share is not None:
            share.connections.discard(connection)
            share.receiving.pop(connection, None)
            share.busy.pop(connection, None)
            if not share.connections:
                del self._shares[client]

    def assign(self, connection: C, client: Hashable) -> None:
        """The connection turns out to belong to this client: its request has a key."""
        old = self._share(connection)
        if old is None or self._clients[connection] == client:
            return
        is_receiving, num_unsent_bytes = connection in old.receiving, old.unread.get(connection)
        self.remove(connection)
        self.add(connection, client)
        if not is_receiving:
            self.set_busy(connection)
        if num_unsent_bytes is not None:
            self.set_unread(connection, num_unsent_bytes)

    def set_receiving(self, connection: C) -> None:
        """The connection waits for its client's bytes, or has received some: now it is the most recent."""
        share = self._share(connection)
        if share is not None:
            share.busy.pop(connection, None)
            share.receiving.pop(connection, None)
            share.receiving[connection] = None

    def set_busy(self, connection: C) -> None:
        """The connection has a complete request."""
        share = self._share(connection)
        if share is not None:
            share.receiving.pop(connection, None)
            share.busy[connection] = None

    def set_unread(self, connection: C, num_bytes: int) -> None:
        """The client has left this many bytes of its response: now it is the most recent."""
        share = self._share(connection)
        if share is not None:
            self._num_unsent_bytes += num_bytes - share.unread.pop(connection, 0)
            share.unread[connection] = num_bytes

    def set_read(self, connection: C) -> None:
        """Nothing of the response is left."""
        share = self._share(connection)
        if share is not None:
            self._num_unsent_bytes -= share.unread.pop(connection, 0)

    def find_room(self, client: Hashable, now: float) -> C | None:
        """The connection that gives way to a new one of this client; None if none does.

        It belongs to a client with more connections, or to this client.
        """
        own = self.num_connections(client)
        shares = [one for key, one in self._shares.items() if len(one.connections) > own or key == client]
        for share in _largest_first([one for one in shares if one.receiving]):
            waiting = [one for one in _first(share.receiving) if one.may_give_way and one not in share.unread]
            if waiting:
                return min(waiting, key=lambda one: one.receive_rate(now))
        for share in _largest_first([one for one in shares if one.unread]):
            stalled = [one for one in _first(share.unread) if now - one.sent_at >= STALL_SECONDS]
            if stalled:
                return min(stalled, key=lambda one: one.sent_at)
        return self._find_displaced(client)

    def _find_displaced(self, client: Hashable) -> C | None:
        """The newest request of the client with the most connections, if it has more than an equal part
        of all, and still as many as this client after both changed."""
        largest = max(self._shares, key=lambda one: len(self._shares[one].busy), default=client)
        num_clients = len(self._shares.keys() | {client})
        fair = self._max_connections // num_clients
        num_held = self.num_connections(largest)
        if largest == client or num_held <= max(fair, self.num_connections(client) + 1):
            return None
        newest = list(itertools.islice(reversed(self._shares[largest].busy), _NUM_COMPARED))
        return next((one for one in newest if not one.has_response), newest[0] if newest else None)

    def find_excess(self) -> C | None:
        """The connection whose response gives way because all together are too large; None if they are
        not.

        It belongs to the client with the most unsent bytes.
        """
        if self._num_unsent_bytes <= MAX_UNSENT_BYTES:
            return None
        share = max(self._shares.values(), key=lambda one: sum(one.unread.values()))
        return min(share.unread, key=lambda one: one.sent_at)

    def _share(self, connection: C) -> _Share[C] | None:
        client = self._clients.get(connection)
        return None if client is None else self._shares[client]


def _first(connections: dict[C, V]) -> Iterator[C]:
    return itertools.islice(connections, _NUM_COMPARED)


def _largest_first(shares: Sequence[_Share[C]]) -> Iterator[_Share[C]]:
    """The first is found without sorting; it usually is enough."""
    if shares:
        yield max(shares, key=_size)
        yield from sorted(shares, key=_size, reverse=True)


def _size(share: _Share[Any]) -> int:
    return len(share.connections)


def set_connection(scope: Any, connection: Peer) -> None:
    """For the protocol. The reference is weak: a closed connection is freed at once."""
    scope["state"][_STATE] = weakref.ref(connection)


def assign_connection(scope: Scope, client: Hashable) -> None:
    """Count the request's connection as this client's, once its key is known."""
    connection = scope["state"].get(_STATE, lambda: None)()
    if connection is not None:
        connection.assign(client)
