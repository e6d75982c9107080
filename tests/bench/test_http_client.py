"""The small client: a stream heard to its end, left, cut off, refused; connections kept and replaced."""

import asyncio
import json
from contextlib import suppress

import pytest

from holdfast.bench.serve.http_client import Client, Heard, Leaving, note_event
from holdfast.bench.serve.http_connection import Address, BrokenStream, Refused, error_message
from holdfast.errors import ConfigError
from support.fake_server import FakeServer

PATH = "/v1/completions"
ASKED = {"prompt": [1, 2], "seed": 3, "max_tokens": 5}


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running


def hear(server, body=ASKED, leaving=None, **options) -> Heard:
    return listen(server, [(body, leaving)], **options)[0]


def listen(server, questions, **options) -> list[Heard]:
    async def run():
        async with Client(Address.parse(server.url), **options) as client:
            return [await client.stream(PATH, *one) for one in questions]

    return asyncio.run(run())


def test_a_stream_is_heard_to_its_end(server):
    heard = hear(server)
    assert heard.error is None and not heard.left
    assert heard.text == "".join(server.pieces(ASKED))
    assert (heard.num_tokens, heard.finish_reason) == (5, "length")
    assert heard.holdfast["stats"]["rolled_back"] == 1
    assert len(heard.arrivals) == 5
    assert heard.sent <= heard.arrivals[0] <= heard.arrivals[-1] <= heard.ended
    assert server.asked[0].body == ASKED


def test_a_connection_is_kept_for_the_next_question(server):
    assert all(heard.error is None for heard in listen(server, [(ASKED, None)] * 3))
    assert server.num_connections == 1


def test_a_connection_the_server_closed_meanwhile_is_replaced(server):
    server.keep_alive = False
    assert all(heard.error is None for heard in listen(server, [(ASKED, None)] * 3))
    assert server.num_connections == 3


def test_a_client_that_leaves_takes_so_many_pieces_and_is_missed(server):
    server.hold = True
    heard = hear(server, leaving=Leaving(1))
    assert heard.left and heard.error is None
    assert len(heard.arrivals) == 1
    assert server.left.acquire(timeout=20)


def test_a_client_that_waits_for_nothing_leaves_before_the_first_text():
    async def run():
        missed = asyncio.Event()

        async def keep_silent(reader, writer):
            with suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            missed.set()

        async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as silent:
            port = silent.sockets[0].getsockname()[1]
            async with Client(Address("127.0.0.1", port)) as client:
                heard = await client.stream(PATH, ASKED, Leaving(0, 0.05))
                await missed.wait()
                return heard

    heard = asyncio.run(run())
    assert heard.left and heard.error is None and not heard.arrivals


def test_who_leaves_later_than_the_answer_ends_has_heard_it_all(server):
    heard = hear(server, leaving=Leaving(50))
    assert not heard.left and heard.finish_reason == "length"


def test_an_answer_that_never_ends_is_a_time_out(server):
    server.hold = True
    heard = hear(server, timeout=0.2)
    assert heard.error == "time-out" and not heard.left
    assert len(heard.arrivals) == 1


def test_a_broken_connection_is_an_error(server):
    server.cut_after = 2
    heard = hear(server)
    assert heard.error == "broken stream"
    assert len(heard.arrivals) == 2


def test_an_error_in_the_stream_is_an_error(server):
    server.error = {"message": "a pass failed", "type": "server_error"}
    heard = hear(server)
    assert (heard.error, heard.detail) == ("error in the stream", "a pass failed")


def test_a_refusal_is_told_in_one_line(server):
    server.status = 429
    heard = hear(server)
    assert (heard.error, heard.detail) == ("status 429", "the server says 429: we are busy")


def test_the_key_goes_with_every_question(server):
    server.api_key = "secret"
    assert hear(server).error == "status 401"
    assert hear(server, api_key="secret").error is None


@pytest.mark.parametrize("key", ["a\r\nX: y", " a", "ä"])
def test_a_key_that_would_break_a_header_is_refused(key):
    with pytest.raises(ConfigError, match="API key"):
        Client(Address("127.0.0.1", 1), key)


def test_nobody_there_is_an_error_that_says_where():
    async def run():
        async with Client(Address("127.0.0.1", 1)) as client:
            with pytest.raises(BrokenStream, match=r"http://127\.0\.0\.1:1"):
                await client.ask("GET", "/health")
            return await client.stream(PATH, ASKED)

    assert asyncio.run(run()).error == "broken stream"


def test_plain_questions(server):
    async def run():
        async with Client(Address.parse(server.url)) as client:
            with pytest.raises(Refused, match="404: no such route"):
                await client.ask("GET", "/nothing")
            return json.loads(await client.ask("GET", "/v1/models"))

    assert asyncio.run(run())["data"][0]["id"] == "fake"


def test_many_at_once(server):
    async def run():
        async with Client(Address.parse(server.url)) as client:
            return await asyncio.gather(*(client.stream(PATH, ASKED | {"seed": seed}) for seed in range(50)))

    assert [heard.text for heard in asyncio.run(run())] == [
        "".join(server.pieces(ASKED | {"seed": seed})) for seed in range(50)
    ]


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
def test_addresses(url, address):
    assert Address.parse(url) == address
    assert Address.parse(address.url) == address


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://a:b", ""])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="no address"):
        Address.parse(url)


def test_tokens_are_counted_where_the_server_names_them():
    heard = Heard(0.0)
    note_event(heard, b'{"choices": [{"text": "ab", "token_ids": [1, 2, 3]}]}', 1.0)
    note_event(heard, b'{"choices": [{"text": "", "token_ids": [4]}]}', 2.0)
    assert (heard.num_tokens, heard.arrivals) == (4, [1.0])


@pytest.mark.parametrize("event", [b"{", b"3", b'{"choices": 3}', b'{"choices": [3]}', b'{"usage": 3}'])
def test_an_event_that_is_no_chunk_is_an_error(event):
    heard = Heard(0.0)
    note_event(heard, event, 1.0)
    assert heard.error == "broken stream"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"message": "c"}', "c"),
        (b"<html>", "<html>"),
        (b"[]", "[]"),
    ],
)
def test_error_messages_of_any_server(body, said):
    assert error_message(body) == said
