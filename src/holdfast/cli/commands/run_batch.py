"""`holdfast run-batch`: answer a file of requests, one a line, with this machine or a server."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import StageBars, note
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    import httpx

    from holdfast.batches.journal import Journal


@grouped()
def run_batch(
    context: typer.Context,
    requests: Annotated[
        Path,
        typer.Argument(
            help="A file with one request a line: custom_id, url (such as /v1/chat/completions) and body.",
        ),
    ],
    output: Annotated[Path, typer.Argument(help="The file of responses.")],
    model: o.ModelOption = None,
    receipts: Annotated[
        Path | None,
        typer.Option(help="The file of receipts. Default: OUTPUT with the ending .receipts.jsonl."),
    ] = None,
    ordinary: Annotated[
        bool,
        typer.Option("--ordinary", help="Give the guarantee only to lines that ask for it."),
    ] = False,
    concurrency: Annotated[int, typer.Option(help="Requests that are sent at once.", min=1)] = 64,
    url: o.UrlOption = None,
    api_key: o.ApiKeyOption = None,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Answer every line of a batch file, in the form of OpenAI's and vLLM's batches.

    Answers are kept in OUTPUT.partial as they come. After a crash the same command goes on, and gives the
    file of a run without a crash. Each line gets a receipt in a file of its own. A line that cannot be
    answered has its error in the output.
    """
    engine = replace(engine, model=model)
    if not requests.is_file():
        raise ConfigError(f"there is no file {requests}")
    o.check_server(context, engine, url)
    from holdfast.batches.lines import LineParser
    from holdfast.batches.runner import BatchRunner
    from holdfast.bench.serve import connect

    async def answer() -> None:
        async with connect(url, o.serve_arguments(engine), o.first_key(api_key)) as client:
            journal = await _open_journal(client, requests, output, deterministic=not ordinary)
            total = _num_lines(requests)
            if len(journal):
                note(f"{len(journal)} of {total} lines are answered already")
            with StageBars() as bars:
                runner = BatchRunner(
                    client,
                    journal,
                    LineParser(deterministic=not ordinary),
                    concurrency=concurrency,
                    on_answer=lambda output: bars("Answering", len(journal), total),
                )
                await runner.run(requests)
            num_failed = _write(journal, output, receipts or _receipts_path(output))
            note(f"{len(journal)} lines answered, {num_failed} of them with an error")
            journal.remove()

    asyncio.run(answer())


async def _open_journal(
    client: "httpx.AsyncClient", requests: Path, output: Path, *, deterministic: bool
) -> "Journal":
    """Open the journal beside the output. Another input or another fingerprint is another batch."""
    import httpx

    from holdfast.batches.journal import Journal

    try:
        fingerprint = await _fingerprint(client, requests)
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"the server at {client.base_url} has no fingerprint: {error}") from None
    with requests.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {"input": digest, "fingerprint": fingerprint, "default of deterministic": deterministic}
    return Journal(output.with_name(f"{output.name}.partial"), about)


async def _fingerprint(client: "httpx.AsyncClient", requests: Path) -> str:
    """Return the server's fingerprint; of a server of several models those that the lines name, in its order."""
    from holdfast.batches.lines import models_of

    listed = (await client.get("/v1/models")).raise_for_status().json()["data"]
    models = [*dict.fromkeys(one["root"] for one in listed)]
    if len(models) > 1:
        named = models_of(requests)
        models = [*dict.fromkeys(one["root"] for one in listed if one["id"] in named)] or models[:1]
    digests = []
    for model in models:
        answer = await client.get("/v1/certificate", params={"model": model})
        digests.append(str(answer.raise_for_status().json()["fingerprint"]["digest"]))
    return " ".join(digests)


def _num_lines(path: Path) -> int:
    from holdfast.batches.lines import read_lines

    return sum(1 for _ in read_lines(path))


def _receipts_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.receipts.jsonl")


def _write(journal: "Journal", output: Path, receipts_file: Path) -> int:
    """Write both files. Return the number of lines that ended with an error."""
    from holdfast.batches.journal import replacing, to_json

    num_failed = 0
    with replacing(output) as answers, replacing(receipts_file) as receipts:
        for record in journal.records():
            written = record["output"]
            num_failed += written["response"]["status_code"] != 200
            answers.write(to_json(written) + b"\n")
            for receipt in record["receipts"]:
                receipts.write(to_json({"custom_id": written["custom_id"], "receipt": receipt}) + b"\n")
    return num_failed
