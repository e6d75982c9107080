"""The load generator counts what a server sends, and the report divides it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.bench.frontend.bench import FrontendLoad, measure_frontend, shares_of
from holdfast.bench.frontend.load_process import LoadFigures, StreamLoad, run_load
from holdfast.bench.frontend.report import FrontendCell, FrontendReport
from holdfast.bench.frontend.sleeping_runner import StepTime
from holdfast.bench.frontend.sleeping_server import SleepingServer
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError

NUM_TOKENS = 5


@contextlib.asynccontextmanager
async def stream_server(status: bytes = b"200 OK") -> AsyncIterator[int]:
    """Answers every request with a role and NUM_TOKENS events, in chunks that split events anywhere."""
    event = b'data: {"id":1}\n\n'
    body = event * (1 + NUM_TOKENS) + b"data: [DONE]\n\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                writer.write(b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
                chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
                for at in range(0, len(chunks), 11):
                    writer.write(chunks[at : at + 11])
                    await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def load(status: bytes = b"200 OK") -> LoadFigures:
    async def run() -> LoadFigures:
        async with stream_server(status) as port:
            return await run_load(StreamLoad(port, 3, NUM_TOKENS, seconds=0.2, warm_up=0.05))

    return asyncio.run(run())


def test_every_token_is_counted_once() -> None:
    figures = load()
    assert figures.errors == []
    assert figures.num_requests > 3
    # Streams are cut at both ends of the time that counts.
    assert abs(figures.num_tokens - NUM_TOKENS * figures.num_requests) <= 2 * 3 * NUM_TOKENS
    assert abs(len(figures.first_token) - figures.num_requests) <= 3
    assert figures.cpu_seconds["client"] > 0


def test_refused_request_is_an_error() -> None:
    figures = load(b"429 Too Many Requests")
    assert figures.num_requests == 0 and figures.num_tokens == 0
    assert len(figures.errors) == 3 and all("429" in one for one in figures.errors)


def test_report_divides_by_tokens_and_requests() -> None:
    figures = LoadFigures(2.0, 1000, 10, [], 500, [0.1], [0.2], {"frontend": 0.5, "client": 0.1})
    cell = FrontendCell.of(StreamLoad(1, 4, 100, 2.0), figures)
    assert (cell.tokens_per_second, cell.requests_per_second, cell.tokens_per_read) == (500.0, 5.0, 2.0)
    assert cell.cpu_us_per_token["frontend"] == 500.0 and cell.cpu_us_per_request["client"] == 10_000.0
    assert cell.cpu_shares["frontend"] == 0.25
    report = FrontendReport("", "", 0.0, 0.0, 0, [cell], request_us=1000.0, token_us=1000.0)
    assert report.tokens_per_core == pytest.approx(1000.0)
    json.dumps(asdict(report))


def test_profile_counts_the_event_loop_only() -> None:
    stacks = [
        "main;run_event_loop (a.py:1);f (b.py:2) 3",
        "main;run_event_loop (a.py:1);g (b.py:9) 1",
        "f (b.py:2) 9",
    ]
    shares = dict(shares_of(stacks))
    assert shares["f (b.py)"] == 0.75 and shares["g (b.py)"] == 0.25


def test_loads_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="from 1"):
        FrontendLoad(streams=(0,))
    with pytest.raises(ConfigError, match="at least 2"):
        FrontendLoad(num_tokens=1)


def test_server_settings_survive_their_command() -> None:
    import msgspec

    settings = SleepingServer(StepTime(0.008, 1e-5), engine=EngineConfig(model="m", max_num_seqs=3))
    assert msgspec.json.decode(settings.command[-1], type=SleepingServer) == settings


@pytest.mark.long
def test_frontend_is_measured(tiny_llama: Path) -> None:
    config = EngineConfig(model=str(tiny_llama))
    report = measure_frontend(config, StepTime(), FrontendLoad((1, 8), 16, 1.0), lambda _: None)
    assert report.is_good and [one.num_streams for one in report.cells] == [1, 8]
    assert report.tokens_per_core is not None and report.tokens_per_core > 0
    assert all(
        one.cpu_us_per_token[name] > 0 for one in report.cells for name in ("frontend", "engine", "client")
    )
