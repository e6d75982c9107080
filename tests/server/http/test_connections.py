"""Which connection gives way: of the client with the most, the one with the slowest progress."""

from dataclasses import dataclass, field

import pytest

from holdfast.server.http import connections as module
from holdfast.server.http.connections import STALL_SECONDS, ConnectionTable

NOW = 1000.0


@dataclass(eq=False)
class FakeConnection:
    rate: float = 0.0
    sent_at: float = NOW
    may_give_way: bool = True
    has_response: bool = False
    clients: list[object] = field(default_factory=list)

    def receive_rate(self, now: float) -> float:
        return self.rate

    def assign(self, client: object) -> None:
        self.clients.append(client)


Table = ConnectionTable[FakeConnection]


def fill(table: Table, client: str, num: int) -> list[FakeConnection]:
    added = [FakeConnection() for _ in range(num)]
    for one in added:
        table.add(one, client)
    return added


def test_oldest_connection_of_the_largest_client_gives_way() -> None:
    table = Table(6)
    small = fill(table, "small", 2)
    large = fill(table, "large", 4)
    assert table.is_full
    assert table.find_room("new", NOW) is large[0]
    table.set_receiving(large[0])  # it received bytes
    assert table.find_room("new", NOW) is large[1]
    for one in large:
        table.set_busy(one)
    assert table.find_room("new", NOW) is small[0]  # requests that are complete give way last


def test_newest_request_of_a_client_above_its_share_gives_way() -> None:
    table = Table(12)
    honest, first, second = (fill(table, name, num) for name, num in (("honest", 2), ("a", 6), ("b", 4)))
    for one in (*honest, *first, *second):
        table.set_busy(one)
    assert table.find_room("new", NOW) is first[-1]
    first[-1].has_response = True
    assert table.find_room("new", NOW) is first[-2]
    for one in first:
        one.has_response = True  # every stream has begun: the newest is cut off
    assert table.find_room("new", NOW) is first[-1]


def test_no_client_within_its_share_gives_way() -> None:
    table = Table(12)
    for one in (*fill(table, "a", 4), *fill(table, "b", 4), *fill(table, "c", 4)):
        table.set_busy(one)
    assert table.find_room("a", NOW) is None  # it has as many as each other
    assert table.find_room("d", NOW) is not None  # 12 connections for 4 clients are 3 for each
    table = Table(12)
    for one in (*fill(table, "a", 3), *fill(table, "b", 3), *fill(table, "c", 3), *fill(table, "e", 3)):
        table.set_busy(one)
    assert table.find_room("a", NOW) is None
    assert len(table) == 12


def test_slowest_progress_gives_way_first() -> None:
    table = Table(3)
    slow, slower, fast = fill(table, "a", 3)
    slow.rate, slower.rate, fast.rate = 2.0, 1.0, 1000.0
    assert table.find_room("b", NOW) is slower
    slower.may_give_way = False  # this server has stopped reading it
    assert table.find_room("b", NOW) is slow


def test_larger_client_does_not_displace_a_smaller_one() -> None:
    table = Table(4)
    fill(table, "small", 1)
    large = fill(table, "large", 3)
    for one in large:
        table.set_busy(one)
    assert table.find_room("large", NOW) is None
    table.set_receiving(large[2])
    assert table.find_room("large", NOW) is large[2]  # its own


def test_unread_response_gives_way_last_and_only_without_progress() -> None:
    table = Table(3)
    recent, stalled, waiting = fill(table, "a", 3)
    recent.sent_at, stalled.sent_at = NOW - STALL_SECONDS / 2, NOW - STALL_SECONDS
    for one in (recent, stalled):
        table.set_unread(one, 10)  # idle, but with unsent output
    assert table.find_room("b", NOW) is waiting
    table.set_busy(waiting)
    assert table.find_room("b", NOW) is stalled
    table.set_read(stalled)
    assert table.find_room("b", NOW) is stalled  # it is idle again
    table.set_busy(stalled)
    assert table.find_room("a", NOW) is None


def test_too_many_unsent_bytes_end_a_response_of_the_client_with_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 100)
    table = Table(9)
    (small,) = fill(table, "small", 1)
    older, newer = fill(table, "large", 2)
    small.sent_at, older.sent_at, newer.sent_at = 0.0, 1.0, 2.0
    for one, num in ((small, 40), (newer, 30), (older, 30)):
        table.set_unread(one, num)
    assert table.find_excess() is None
    table.set_unread(newer, 31)
    assert table.find_excess() is older
    table.remove(older)
    assert table.find_excess() is None
    table.set_read(newer)
    table.set_unread(small, 101)
    assert table.find_excess() is small


def test_connection_moves_to_the_client_that_its_request_names() -> None:
    table = Table(4)
    first, second = fill(table, "address", 2)
    table.set_busy(first)
    table.set_unread(first, 7)
    table.assign(first, "key")
    table.assign(second, "key")
    assert (table.num_connections("address"), table.num_connections("key")) == (0, 2)
    assert table.find_room("b", NOW) is second
    assert table._num_unsent_bytes == 7
    for one in (first, second):
        table.remove(one)
        table.remove(one)
        table.assign(one, "other")  # it is gone
    assert (len(table), table._shares, table._num_unsent_bytes) == (0, {}, 0)
