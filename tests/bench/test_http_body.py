"""Bodies in pieces: wherever they are cut, the same comes out."""

import random

import pytest

from holdfast.bench.serve.http_body import BodyError, Chunked, Counted, Events

EVENTS = (b'{"a": 1}', b"two\nlines", "ünï".encode(), b"[DONE]")
STREAM = (
    b'data: {"a": 1}\n\n: still here\n\ndata:two\r\ndata: lines\r\n\r\n'
    b"event: x\ndata: \xc3\xbcn\xc3\xaf\n\ndata: [DONE]\n\n"
)


def chunked(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("seed", range(20))
def test_wherever_a_stream_is_cut_the_same_events_come_out(seed):
    rng = random.Random(seed)
    wire = chunked(STREAM, rng.randint(1, 40))
    body, events, found = Chunked(), Events(), []
    while wire:
        at = rng.randint(1, 12)
        piece, wire = wire[:at], wire[at:]
        assert not body.done
        found += events.feed(body.feed(piece))
    assert body.done
    assert found == list(EVENTS)


@pytest.mark.parametrize(
    "wire", [b"zz\r\n", b"-5\r\nabcde\r\n", b"1_0\r\n", b"2\r\nabcd\r\n", b"\r\n", b"1" * 70_000]
)
def test_what_is_no_chunk_is_refused(wire):
    body = Chunked()
    with pytest.raises(BodyError):
        body.feed(wire)


def test_an_event_is_not_told_before_it_is_complete():
    events = Events()
    assert events.feed(b"data: 1\n") == []
    assert events.feed(b"\n") == [b"1"]


def test_a_counted_body_ends_with_its_count():
    body = Counted(5)
    assert (body.feed(b"abc"), body.done) == (b"abc", False)
    assert (body.feed(b"defg"), body.done) == (b"de", True)
    assert not body.may_end


def test_a_body_without_a_length_ends_with_the_connection():
    body = Counted(None)
    assert body.feed(b"abc") == b"abc"
    assert body.may_end and not body.done
