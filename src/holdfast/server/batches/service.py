"""The work on batches: one batch of each tenant at a time, in the order they came.

A batch's lines are requests to this server's own application, in the name of a tenant that stands beside the
batch's owner: with its limits, in a background share. So a batch uses what other requests leave.

    validating -> in_progress -> finalizing -> completed
         |             |---> cancelling ---> cancelled
         |             |-------------------> expired
         '---> failed
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.batches.journal import Journal, to_json
from holdfast.batches.lines import BadLine, LineParser, error_body, models_of, output_line, read_lines
from holdfast.batches.runner import BatchRunner
from holdfast.errors import ConfigError, EngineStopped, HoldfastError, NotReady
from holdfast.server.batches.objects import BatchError, BatchErrors, StoredBatch
from holdfast.server.batches.store import Store
from holdfast.server.tenants.tenant import Tenant, address_tenant, give_tenant

if TYPE_CHECKING:
    from holdfast.server.frontend import Frontend
    from holdfast.server.served_models import ServedModels

_log = logging.getLogger("holdfast.server")
MAX_LINES = 50_000
_ROOM_BYTES = 64 << 20  # that must be left while a batch is answered
_START_SECONDS = 0.2  # until it is asked again for an engine
_SAVE_LINES = 100  # after which the counts are written
_KINDS = ("output", "error", "receipts")


class BatchFailed(HoldfastError):
    """A batch that ends as a whole."""

    code = "batch_failed"


class BatchService:
    """Runs the batches of a store. `run` begins with those that a server before left."""

    def __init__(self, models: "ServedModels", app: ASGIApp, store: Store) -> None:
        self.store = store
        self._models = models
        self._app = app
        self._workers: dict[str, asyncio.Task[None]] = {}  # by owner
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch
        self._stopped = False

    def start(self) -> None:
        """Go on with all batches that have not ended."""
        for stored in self.store.batches.values():
            if not stored.is_ended:
                self.wake(stored.owner)

    def wake(self, owner: str) -> None:
        """Have the batches of an owner worked on."""
        if not self._stopped and (owner not in self._workers or self._workers[owner].done()):
            self._workers[owner] = asyncio.create_task(self._work(owner))

    async def stop(self) -> None:
        """Stop for the end of the server. What is answered is kept, and the next server goes on."""
        self._stopped = True
        for task in self._workers.values():
            task.cancel()
        await asyncio.gather(*self._workers.values(), return_exceptions=True)
        self.store.close()

    def cancel(self, stored: StoredBatch) -> None:
        """Have a batch end with what it has. One that has ended stays as it is."""
        if stored.is_ended or stored.content.status in ("cancelling", "finalizing"):
            return
        stored.set_status("cancelling", self.store.now)
        self.store.save_batch(stored)
        running = self._running.get(stored.content.id)
        if running is not None:
            running.cancel()
        self.wake(stored.owner)

    async def _work(self, owner: str) -> None:
        while waiting := [one for one in self.store.batches_of(owner) if not one.is_ended]:
            stored = waiting[-1]
            try:
                await self._finish(stored)
            except Exception as error:  # a full disk, or a bug: the batch ends, the next one is worked on
                if not isinstance(error, BatchFailed):
                    _log.exception("the batch %s failed", stored.content.id)
                self._fail(stored, error)

    async def _finish(self, stored: StoredBatch) -> None:
        """Bring one batch to its end."""
        batch, store = stored.content, self.store
        journal = await self._open_journal(stored)
        try:
            if batch.status in ("validating", "in_progress"):
                await self._answer(stored, journal)
            end = {"cancelling": "cancelled", "in_progress": "expired"}.get(batch.status, "completed")
            if end == "completed":
                stored.set_status("finalizing", store.now)
                store.save_batch(stored)
            await asyncio.to_thread(self._write_files, stored, journal, is_expired=end == "expired")
            stored.set_status(end, store.now)  # type: ignore[arg-type]
            store.save_batch(stored)
            journal.remove()
        finally:
            journal.close()

    async def _answer(self, stored: StoredBatch, journal: Journal) -> None:
        """Answer lines until all are answered (finalizing), it is time (in_progress) or it is cancelled."""
        batch, store = stored.content, self.store
        batch.request_counts.total = await asyncio.to_thread(self._count_lines, batch.input_file_id)
        if batch.status == "cancelling":
            return
        stored.set_status("in_progress", store.now)
        store.save_batch(stored)
        task = self._running[batch.id] = asyncio.create_task(self._run_lines(stored, journal))
        try:
            done, _ = await asyncio.wait((task,), timeout=max(0, batch.expires_at - store.now))
            if not done:
                return
            with contextlib.suppress(asyncio.CancelledError):
                task.result()
                batch.status = "finalizing"
        finally:
            del self._running[batch.id]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_lines(self, stored: StoredBatch, journal: Journal) -> None:
        batch = stored.content
        tenant = self._tenant(stored.owner)
        transport = httpx.ASGITransport(_InTheNameOf(self._app, tenant), raise_app_exceptions=False)
        frontends = await self._frontends(stored)
        is_deterministic = frontends[0].engine.determinism != "off"  # the same for all models
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=None
        ) as client:
            runner = BatchRunner(
                client,
                journal,
                LineParser(deterministic=is_deterministic, endpoint=batch.endpoint),
                concurrency=max(one.admission.max_running for one in frontends),
                on_answer=lambda output: self._count(stored, output),
            )
            await runner.run(self.store.path_of(batch.input_file_id))

    def _count(self, stored: StoredBatch, output: dict[str, Any]) -> None:
        counts = stored.content.request_counts
        if _kind_of(output) == "output":
            counts.completed += 1
        else:
            counts.failed += 1
        if not (counts.completed + counts.failed) % _SAVE_LINES:
            self.store.save_batch(stored)
            if not self.store.has_room(_ROOM_BYTES):
                raise BatchFailed("there is no room for the answers; delete files and send the batch again")

    async def _open_journal(self, stored: StoredBatch) -> Journal:
        """Open the journal, and count what it has. Another model than before is an error."""
        batch = stored.content
        fingerprint = " ".join([await _fingerprint(one) for one in await self._frontends(stored)])
        try:
            journal = Journal(self.store.journal_of(batch.id), {"fingerprint": fingerprint})
        except ConfigError as error:
            raise BatchFailed(f"the batch was begun with another model: {error}") from None
        kinds = [_kind_of(record["output"]) for record in journal.records()]
        batch.request_counts.completed = kinds.count("output")
        batch.request_counts.failed = kinds.count("error")
        return journal

    async def _frontends(self, stored: StoredBatch) -> Sequence["Frontend"]:
        """Return the models that a batch's lines name, or the first if they name none that is served."""
        models = self._models
        if not models.has_several:
            return models.frontends
        named = await asyncio.to_thread(models_of, self.store.path_of(stored.content.input_file_id))
        return [one for one in models.frontends if named & {*one.names}] or models.frontends[:1]

    def _count_lines(self, file_id: str) -> int:
        num_lines = sum(1 for _ in read_lines(self.store.path_of(file_id)))
        if not 1 <= num_lines <= MAX_LINES:
            raise BatchFailed(f"the file has {num_lines} requests; 1 to {MAX_LINES} are possible")
        return num_lines

    def _write_files(self, stored: StoredBatch, journal: Journal, *, is_expired: bool) -> None:
        """Write the files of a batch. Their ids follow from the batch's: written twice, they are the same."""
        with contextlib.ExitStack() as stack:
            files = {kind: stack.enter_context(tempfile.TemporaryFile()) for kind in _KINDS}
            for record in journal.records():
                output = record["output"]
                files[_kind_of(output)].write(to_json(output) + b"\n")
                for receipt in record["receipts"]:
                    files["receipts"].write(
                        to_json({"custom_id": output["custom_id"], "receipt": receipt}) + b"\n"
                    )
            for output in self._expired(stored, journal) if is_expired else ():
                files["error"].write(to_json(output) + b"\n")
                stored.content.request_counts.failed += 1
            for kind, file in files.items():
                if file.tell():
                    file.seek(0)
                    setattr(stored.content, f"{kind}_file_id", self._add(stored, kind, file))

    def _add(self, stored: StoredBatch, kind: str, file: BinaryIO) -> str:
        id_ = stored.content.id
        made = self.store.add_file(
            file,
            stored.owner,
            f"{id_}_{kind}.jsonl",
            "batch_output",
            id_=f"file-{id_.removeprefix('batch_')}-{kind}",
        )
        return made.id

    def _expired(self, stored: StoredBatch, journal: Journal) -> Iterator[dict[str, Any]]:
        """Yield the lines of the error file for requests that were not answered in time."""
        why = BadLine("the request was not answered before the completion window ended", code="batch_expired")
        parser = LineParser(endpoint=stored.content.endpoint)
        for line in read_lines(self.store.path_of(stored.content.input_file_id)):
            custom_id, _ = parser.parse(line)
            if line.number not in journal:
                output, _ = output_line(line, custom_id, 408, error_body(why))
                yield {**output, "response": None, "error": output["response"]["body"]["error"]}

    def _fail(self, stored: StoredBatch, error: Exception) -> None:
        said = str(error) if isinstance(error, HoldfastError) else "internal error; see the server's log"
        stored.content.errors = BatchErrors([BatchError("batch_failed", said, None, None)])
        stored.set_status("failed", self.store.now)
        self.store.journal_of(stored.content.id).unlink(missing_ok=True)
        self.store.save_batch(stored)

    def _tenant(self, owner: str) -> Tenant:
        """Return who a batch of this owner runs as."""
        tenants = self._models.tenants
        found = next((one for one in tenants.tenants if one.id == owner), None)
        if found is None and not tenants.has_keys:
            found = address_tenant(owner.removeprefix("address:"))
        if found is None:
            raise BatchFailed("the API key of the batch is no longer known")
        return replace(found, id=f"batch:{owner}", is_background=True)


class _InTheNameOf:
    """The application for requests of this process, which have a tenant and no key."""

    def __init__(self, app: ASGIApp, tenant: Tenant) -> None:
        self._app = app
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        give_tenant(scope, self._tenant)
        await self._app(scope, receive, send)


def _kind_of(output: dict[str, Any]) -> str:
    return "output" if output["response"]["status_code"] == 200 else "error"


async def _fingerprint(frontend: "Frontend") -> str:
    """Return the engine's fingerprint, once there is an engine, or "none" if there will be none."""
    while True:
        try:
            return (await frontend.engines.requests.wait_for_fingerprint()).digest
        except (NotReady, EngineStopped):
            if frontend.is_given_up:
                return "none"
            await asyncio.sleep(_START_SECONDS)


def open_service(models: "ServedModels", app: ASGIApp, folder: str, max_bytes: int) -> BatchService:
    return BatchService(models, app, Store(Path(folder), max_bytes))
