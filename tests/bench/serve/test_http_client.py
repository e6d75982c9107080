"""The client of the load generator: streams, disconnects, errors, and reuse of connections."""

import asyncio
import json
import random
from contextlib import suppress

import pytest

from holdfast.bench.serve.http_client import Client, Disconnect, EventParser, StreamResult, add_event
from holdfast.bench.serve.http_connection import Address, BadStatus, BrokenStream, error_message
from holdfast.errors import ConfigError
from support.fake_server import FakeServer

PATH = "/v1/completions"
BODY = {"prompt": [1, 2], "seed": 3, "max_tokens": 5}
EVENTS = (b'{"a": 1}', b"two\nlines", "ünï".encode(), b"[DONE]")
STREAM = (
    b'data: {"a": 1}\n\n: still here\n\ndata:two\r\ndata: lines\r\n\r\n'
    b"event: x\ndata: \xc3\xbcn\xc3\xaf\n\ndata: [DONE]\n\n"
)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running


def stream(server, body=BODY, disconnect=None, **options) -> StreamResult:
    return stream_all(server, [(body, disconnect)], **options)[0]


def stream_all(server, requests, **options) -> list[StreamResult]:
    async def run():
        async with Client(Address.parse(server.url), **options) as client:
            return [await client.stream(PATH, *one) for one in requests]

    return asyncio.run(run())


def request_from(*writes: bytes, close: bool = False) -> bytes:
    """The body that the client reads from a server that sends these bytes, one write after the
    other.
    """

    async def run():
        async def serve(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                for data in writes:
                    writer.write(data)
                    await asyncio.sleep(0)
                if not close:
                    await reader.read()
            finally:
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with Client(Address("127.0.0.1", port)) as client:
                return await client.request("GET", "/")

    return asyncio.run(run())


def chunked(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


def test_stream_is_read_to_its_end(server):
    result = stream(server)
    assert result.error is None and not result.disconnected
    assert result.text == "".join(server.deltas(BODY))
    assert (result.num_tokens, result.finish_reason) == (5, "length")
    assert result.holdfast["stats"]["rolled_back"] == 1
    assert len(result.arrivals) == 5
    assert result.sent <= result.arrivals[0] <= result.arrivals[-1] <= result.ended
    assert server.received[0].body == BODY


def test_connection_is_reused_for_the_next_request(server):
    assert all(result.error is None for result in stream_all(server, [(BODY, None)] * 3))
    assert server.num_connections == 1


def test_connection_closed_by_the_server_is_replaced(server):
    server.keep_alive = False
    assert all(result.error is None for result in stream_all(server, [(BODY, None)] * 3))
    assert server.num_connections == 3


def test_disconnect_after_deltas_closes_the_connection(server):
    server.hold = True
    result = stream(server, disconnect=Disconnect(1))
    assert result.disconnected and result.error is None
    assert len(result.arrivals) == 1
    assert server.disconnected.acquire(timeout=20)


def test_disconnect_comes_after_its_delta_if_the_whole_answer_arrives_at_once():
    """As on a machine that is too busy to read them one by one."""
    deltas = b"".join(b'data: {"choices": [{"text": "%d"}]}\n\n' % number for number in range(5))

    async def run():
        closed = asyncio.Event()

        async def send_at_once(reader, writer):
            writer.write(HEAD + chunked(deltas + b"data: [DONE]\n\n", 1000))
            with suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            closed.set()

        async with await asyncio.start_server(send_at_once, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with Client(Address("127.0.0.1", port)) as client:
                result = await client.stream(PATH, BODY, Disconnect(2))
            await closed.wait()
            return result

    result = asyncio.run(run())
    assert result.disconnected and result.error is None and result.text == "01"


def test_disconnect_before_the_first_text_closes_the_connection():
    async def run():
        closed = asyncio.Event()

        async def send_nothing(reader, writer):
            with suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            closed.set()

        async with await asyncio.start_server(send_nothing, "127.0.0.1", 0) as silent:
            port = silent.sockets[0].getsockname()[1]
            async with Client(Address("127.0.0.1", port)) as client:
                result = await client.stream(PATH, BODY, Disconnect(0, 0.05))
                await closed.wait()
                return result

    result = asyncio.run(run())
    assert result.disconnected and result.error is None and not result.arrivals


def test_disconnect_later_than_the_end_reads_the_whole_answer(server):
    result = stream(server, disconnect=Disconnect(50))
    assert not result.disconnected and result.finish_reason == "length"


def test_stream_without_an_end_times_out(server):
    server.hold = True
    result = stream(server, timeout=0.2)
    assert result.error == "time-out" and not result.disconnected
    assert len(result.arrivals) == 1


def test_broken_connection_is_an_error(server):
    server.break_after = 2
    result = stream(server)
    assert result.error == "broken stream"
    assert len(result.arrivals) == 2


def test_error_event_is_an_error(server):
    server.error = {"message": "a pass failed", "type": "server_error"}
    result = stream(server)
    assert (result.error, result.detail) == ("error in the stream", "a pass failed")


def test_error_status_has_the_servers_message_in_one_line(server):
    server.status = 429
    result = stream(server)
    assert (result.error, result.detail) == ("status 429", "the server says 429: we are busy")


def test_api_key_is_sent(server):
    server.api_key = "secret"
    assert stream(server).error == "status 401"
    assert stream(server, api_key="secret").error is None


@pytest.mark.parametrize("key", ["a\r\nX: y", " a", "ä"])
def test_invalid_api_key_is_refused(key):
    with pytest.raises(ConfigError, match="API key"):
        Client(Address("127.0.0.1", 1), key)


def test_refused_connection_names_the_address():
    async def run():
        async with Client(Address("127.0.0.1", 1)) as client:
            with pytest.raises(BrokenStream, match=r"http://127\.0\.0\.1:1"):
                await client.request("GET", "/health")
            return await client.stream(PATH, BODY)

    assert asyncio.run(run()).error == "broken stream"


def test_plain_requests(server):
    async def run():
        async with Client(Address.parse(server.url)) as client:
            with pytest.raises(BadStatus, match="404: no such route"):
                await client.request("GET", "/nothing")
            return json.loads(await client.request("GET", "/v1/models"))

    assert asyncio.run(run())["data"][0]["id"] == "fake"


def test_concurrent_streams(server):
    async def run():
        async with Client(Address.parse(server.url)) as client:
            return await asyncio.gather(*(client.stream(PATH, BODY | {"seed": seed}) for seed in range(50)))

    assert [result.text for result in asyncio.run(run())] == [
        "".join(server.deltas(BODY | {"seed": seed})) for seed in range(50)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_events_do_not_depend_on_where_the_bytes_are_split(seed):
    rng = random.Random(seed)
    data, writes = HEAD + chunked(STREAM, rng.randint(1, 40)), []
    while data:
        at = rng.randint(1, 12)
        writes.append(data[:at])
        data = data[at:]
    assert request_from(*writes) == STREAM
    parser, found, rest = EventParser(), [], STREAM
    while rest:
        at = rng.randint(1, 12)
        found += parser.feed(rest[:at])
        rest = rest[at:]
    assert found == list(EVENTS)


def test_event_is_returned_when_it_is_complete():
    parser = EventParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [b"1"]


@pytest.mark.parametrize(
    "wire",
    [
        b"nonsense\r\n\r\n",
        HEAD + b"zz\r\n",
        HEAD + b"2\r\nabcd\r\n",
        HEAD + b"5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"",
    ],
)
def test_invalid_or_incomplete_response_is_an_error(wire):
    with pytest.raises(BrokenStream):
        request_from(wire, close=True)


def test_body_with_a_length_ends_there():
    assert request_from(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", b"de") == b"abcde"


def test_body_without_a_length_ends_with_the_connection():
    assert request_from(b"HTTP/1.1 200 OK\r\n\r\nabc", b"de", close=True) == b"abcde"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:8000", Address("a", 8000)),
        ("a:8000", Address("a", 8000)),
        ("http://a", Address("a", 80)),
        ("https://a/v1/", Address("a", 443, "", True)),
        ("http://[::1]:9/x/v1", Address("::1", 9, "/x")),
    ],
)
def test_address_is_parsed(url, address):
    assert Address.parse(url) == address
    assert Address.parse(address.url) == address


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://a:b", ""])
def test_invalid_address_is_refused(url):
    with pytest.raises(ConfigError, match="no address"):
        Address.parse(url)


def test_tokens_are_counted_by_their_ids():
    result = StreamResult(0.0)
    add_event(result, b'{"choices": [{"text": "ab", "token_ids": [1, 2, 3]}]}', 1.0)
    add_event(result, b'{"choices": [{"text": "", "token_ids": [4]}]}', 2.0)
    assert (result.num_tokens, result.arrivals) == (4, [1.0])


@pytest.mark.parametrize("event", [b"{", b"3", b'{"choices": 3}', b'{"choices": [3]}', b'{"usage": 3}'])
def test_event_that_is_no_completion_is_an_error(event):
    result = StreamResult(0.0)
    add_event(result, event, 1.0)
    assert result.error == "broken stream"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"message": "c"}', "c"),
        (b"<html>", "<html>"),
        (b"[]", "[]"),
    ],
)
def test_error_message_of_any_server(body, message):
    assert error_message(body) == message
