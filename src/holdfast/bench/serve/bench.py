"""`holdfast bench serve`: a load on a server, watched from outside, and the same load on the offline engine.

First every prompt of the pool is answered alone; then the load runs; then the server must become idle and hold nothing.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import Address, BrokenStream, Refused
from holdfast.bench.serve.load import Pace, Speaker
from holdfast.bench.serve.monitor import watching
from holdfast.bench.serve.report import Report, sum_up
from holdfast.bench.serve.server_process import serving
from holdfast.bench.serve.workload import Jobs, Shape, corpus
from holdfast.errors import ConfigError

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A running server, and what to call it. pid is known if it is our own child."""

    name: str
    address: Address
    api_key: str | None = None
    timeout: float = 600.0
    pid: int | None = None

    def client(self) -> Client:
        return Client(self.address, self.api_key, self.timeout)


@dataclass(frozen=True)
class Served:
    """What is served: the model's name, and a corpus in its tokens."""

    model: str
    corpus_ids: tuple[int, ...]


@asynccontextmanager
async def reach(
    url: str | None, arguments: Sequence[str], api_key: str | None = None, timeout: float = 600.0
) -> AsyncIterator[Target]:
    """The server at this address; without one, a server of our own, started with these arguments."""
    if url is not None:
        address = Address.parse(url)
        yield Target(address.url, address, api_key, timeout)
        return
    async with serving(arguments, api_key) as child:
        yield Target(" ".join(("holdfast serve", *arguments)), child.address, api_key, timeout, child.pid)


async def look(client: Client, shape: Shape) -> Served:
    """Ask the server what it serves, and to tokenise the corpus. Raises `ConfigError` if it cannot be measured."""
    try:
        model = str(json.loads(await client.ask("GET", "/v1/models"))["data"][0]["id"])
        corpus_ids: list[int] = []
        for line in corpus(shape.seed):
            asked = {"model": model, "prompt": line, "add_special_tokens": False}
            found = json.loads(await client.ask("POST", "/tokenize", asked))
            corpus_ids += map(int, found["tokens"])
    except (BrokenStream, Refused) as error:
        raise ConfigError(f"the server at {client.address.url} cannot be measured: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(
            f"what answers at {client.address.url} is no server we know: /v1/models or /tokenize says something else"
        ) from None
    longest, room = shape.prompt_tokens.high + shape.output_tokens.high, found.get("max_model_len")
    if isinstance(room, int) and longest > room:
        raise ConfigError(f"prompt and answer have up to {longest} tokens, and the model has room for {room}")
    if not corpus_ids:
        raise ConfigError("the server makes no tokens of text")
    return Served(model, tuple(corpus_ids))


async def measure(target: Target, shape: Shape, pace: Pace, tell: Tell) -> tuple[Report, Served]:
    """The whole load on one server."""
    async with target.client() as client:
        served = await look(client, shape)
        jobs = Jobs(shape, served.corpus_ids)
        speaker = Speaker(client, served.model)
        tell(f"{served.model}, {target.name}: every prompt of the pool alone")
        alone = [await speaker.speak(job) for job in jobs.pool] if shape.deterministic_share else []
        tell(f"{pace}; {describe(shape)}")
        async with watching(client, target.pid) as watched:
            spent = time.process_time()
            load = await speaker.put(jobs, pace)
            spent = time.process_time() - spent
    from holdfast.bench.machine import (
        machine_name,  # imports torch, which a client that is measured does without
    )

    names = (target.name, str(pace), describe(shape))
    report = sum_up(
        load,
        alone,
        machine=machine_name(),
        model=served.model,
        names=names,
        client_cpu_seconds=spent,
        watched=watched,
    )
    return report, served


def describe(shape: Shape) -> str:
    """A load's requests in a few words."""
    return (
        f"{shape.prompt_tokens} + {shape.output_tokens} tokens, {shape.deterministic_share:.0%} deterministic, "
        f"{shape.disconnect_share:.0%} leave"
    )
