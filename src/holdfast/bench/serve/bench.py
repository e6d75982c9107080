"""`holdfast bench serve`: run a load on a server and observe the server from outside.

First every pool prompt is answered alone. Then the load runs. Then the server must become idle and
hold no KV pages.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import Address, BadStatus, BrokenStream
from holdfast.bench.serve.load import ArrivalConfig, LoadGenerator
from holdfast.bench.serve.monitor import monitor_server
from holdfast.bench.serve.report import ServeReport, make_report
from holdfast.bench.serve.server_process import start_server
from holdfast.bench.serve.workload import Workload, WorkloadConfig, corpus
from holdfast.errors import ConfigError


@dataclass(frozen=True)
class TargetServer:
    """A running server. pid is known if it is our own child process."""

    name: str
    address: Address
    api_key: str | None = None
    timeout: float = 600.0
    pid: int | None = None

    def client(self) -> Client:
        return Client(self.address, self.api_key, self.timeout)


@dataclass(frozen=True)
class ServedModel:
    """The model of a server: its name, and the corpus in its tokens."""

    name: str
    corpus_ids: tuple[int, ...]


@asynccontextmanager
async def connect_or_start(
    url: str | None, arguments: Sequence[str], api_key: str | None = None, timeout: float = 600.0
) -> AsyncIterator[TargetServer]:
    """The server at this URL, or else a server of our own, started with these arguments."""
    if url is not None:
        address = Address.parse(url)
        yield TargetServer(address.url, address, api_key, timeout)
        return
    async with start_server(arguments, api_key) as child:
        name = " ".join(("holdfast serve", *arguments))
        yield TargetServer(name, child.address, api_key, timeout, child.pid)


async def inspect_model(client: Client, config: WorkloadConfig) -> ServedModel:
    """Ask the server for its model and for the tokens of the corpus.

    Raises `ConfigError` if it cannot be measured.
    """
    try:
        model = str(json.loads(await client.request("GET", "/v1/models"))["data"][0]["id"])
        corpus_ids: list[int] = []
        for line in corpus(config.seed):
            body = {"model": model, "prompt": line, "add_special_tokens": False}
            found = json.loads(await client.request("POST", "/tokenize", body))
            corpus_ids += map(int, found["tokens"])
    except (BrokenStream, BadStatus) as error:
        raise ConfigError(f"the server at {client.address.url} cannot be measured: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(
            f"the server at {client.address.url} is of no known kind: unexpected answer from /v1/models or /tokenize"
        ) from None
    longest, max_len = config.prompt_tokens.high + config.output_tokens.high, found.get("max_model_len")
    if isinstance(max_len, int) and longest > max_len:
        raise ConfigError(
            f"prompt and answer have up to {longest} tokens, the context of the model {max_len}"
        )
    if not corpus_ids:
        raise ConfigError("the server tokenizes the corpus to nothing")
    return ServedModel(model, tuple(corpus_ids))


async def measure(
    target: TargetServer, config: WorkloadConfig, arrivals: ArrivalConfig, log: Callable[[str], None]
) -> tuple[ServeReport, ServedModel]:
    """Run the whole load on one server."""
    async with target.client() as client:
        model = await inspect_model(client, config)
        workload = Workload(config, model.corpus_ids)
        generator = LoadGenerator(client, model.name)
        log(f"{model.name}, {target.name}: every pool prompt alone")
        alone = [await generator.send(one) for one in workload.pool] if config.deterministic_share else []
        log(f"{arrivals}; {config}")
        async with monitor_server(client, target.pid) as observed:
            cpu_seconds = time.process_time()
            run = await generator.run(workload, arrivals)
            cpu_seconds = time.process_time() - cpu_seconds
    from holdfast.bench.machine import machine_name  # imports torch, which the measured client does not need

    report = make_report(
        run,
        alone,
        machine=machine_name(),
        model=model.name,
        names=(target.name, str(arrivals), str(config)),
        client_cpu_seconds=cpu_seconds,
        observed=observed,
    )
    return report, model
