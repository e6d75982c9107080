"""OpenAI's routes of files and batches. Without `--files-dir` they say that there are none."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from holdfast.server.api.schema.openapi import BODY_ERRORS, GET_ERRORS, documented
from holdfast.server.api.schema.requests import RequestModel
from holdfast.server.batches.objects import (
    Batch,
    BatchList,
    FileDeleted,
    FileList,
    FileObject,
    RequestCounts,
    StoredBatch,
)
from holdfast.server.batches.service import BatchService
from holdfast.server.batches.store import FILE_SECONDS, new_batch_id
from holdfast.server.errors import ApiError, invalid_value
from holdfast.server.http.body import parse_body
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels
from holdfast.server.tenants.tenant import tenant_of

_MAX_UPLOADS = 4  # at once; each may take a file's size of disk
_WINDOW = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_WINDOW = 30 * 86400
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": 3600,
                            "maximum": FILE_SECONDS,
                        },
                    },
                }
            }
        },
    }
}

After = Annotated[str | None, Query(max_length=128)]
Limit = Annotated[int, Query(ge=1, le=10_000)]
Entry = TypeVar("Entry", FileObject, Batch)


class BatchBody(RequestModel):
    """POST /v1/batches"""

    input_file_id: str = Field(max_length=128)
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/score"]
    completion_window: str = Field(
        max_length=16, description='How long the batch may take, such as "24h"; then it expires.'
    )
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = (
        Field(None, max_length=16)
    )


def batch_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["batches"])
    uploads = asyncio.Semaphore(_MAX_UPLOADS)
    document = documented(FileObject, (*BODY_ERRORS, 429))
    document["openapi_extra"] |= _UPLOAD

    @router.post("/v1/files", **document)
    async def upload_file(request: Request) -> Response:
        """Upload a file with the requests of a batch, one a line."""
        service, owner = _service(models), tenant_of(request).id
        service.store.require_room(int(request.headers.get("content-length", 0)), owner)
        if uploads.locked():
            raise ApiError(
                429,
                "too many files are being uploaded; ask again",
                code="too_many_uploads",
                headers={"Retry-After": "5"},
            )
        async with uploads, _form_of(request) as form:
            file, lifetime = form.get("file"), _lifetime(form.get("expires_after[seconds]"))
            if not isinstance(file, UploadFile):
                raise invalid_value("file", "a part named file, with a filename, is expected")
            if form.get("purpose") != "batch":
                raise invalid_value("purpose", "only batch is possible")
            service.store.require_room(file.size or 0, owner)
            name = (file.filename or "file")[:256]
            return JSONResponse(
                await asyncio.to_thread(
                    service.store.add_file, file.file, owner, name, "batch", lifetime=lifetime
                )
            )

    @router.get("/v1/files", **documented(FileList, (*GET_ERRORS, 400, 404)))
    async def list_files(
        request: Request,
        after: After = None,
        limit: Limit = 10_000,
        purpose: Annotated[str | None, Query(max_length=64)] = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """List your files."""
        files = _service(models).store.files(tenant_of(request).id)
        kept = [one for one in files if purpose in (None, one.purpose)]
        return JSONResponse(FileList(*_page(kept if order == "desc" else kept[::-1], after, limit)))

    @router.get("/v1/files/{file_id}", **documented(FileObject, (*GET_ERRORS, 404)))
    async def file(request: Request, file_id: str) -> Response:
        """Return what a file is."""
        return JSONResponse(_service(models).store.file(file_id, tenant_of(request).id))

    @router.get(
        "/v1/files/{file_id}/content", response_class=PlainTextResponse, **documented((), (*GET_ERRORS, 404))
    )
    async def file_content(request: Request, file_id: str) -> Response:
        """Return the bytes of a file."""
        store = _service(models).store
        found = store.file(file_id, tenant_of(request).id)
        return FileResponse(store.path_of(found.id), media_type="application/octet-stream")

    @router.delete("/v1/files/{file_id}", **documented(FileDeleted, (*GET_ERRORS, 404, 409)))
    async def delete_file(request: Request, file_id: str) -> Response:
        """Delete a file. The input of a batch that runs stays."""
        _service(models).store.delete_file(file_id, tenant_of(request).id)
        return JSONResponse(FileDeleted(file_id, True))

    @router.post("/v1/batches", **documented(Batch, BODY_ERRORS, body=BatchBody))
    async def create_batch(request: Request) -> Response:
        """Begin a batch."""
        service, owner = _service(models), tenant_of(request).id
        body = parse_body(await request.body(), BatchBody)
        return JSONResponse(_begin(service, owner, body).content)

    @router.get("/v1/batches", **documented(BatchList, (*GET_ERRORS, 400, 404)))
    async def list_batches(request: Request, after: After = None, limit: Limit = 20) -> Response:
        """List your batches, the newest first."""
        found = _service(models).store.batches_of(tenant_of(request).id)
        return JSONResponse(BatchList(*_page([one.content for one in found], after, limit)))

    @router.get("/v1/batches/{batch_id}", **documented(Batch, (*GET_ERRORS, 404)))
    async def batch(request: Request, batch_id: str) -> Response:
        """Return where a batch stands."""
        return JSONResponse(_service(models).store.batch(batch_id, tenant_of(request).id).content)

    @router.post("/v1/batches/{batch_id}/cancel", **documented(Batch, (*GET_ERRORS, 404)))
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """End a batch with what is answered so far."""
        service = _service(models)
        stored = service.store.batch(batch_id, tenant_of(request).id)
        service.cancel(stored)
        return JSONResponse(stored.content)

    return router


@asynccontextmanager
async def _form_of(request: Request) -> AsyncIterator[FormData]:
    try:
        form = await request.form(max_files=1, max_fields=8)
    except HTTPException as error:
        raise ApiError(400, f"the form cannot be read: {error.detail}", code="invalid_form") from None
    try:
        yield form
    finally:
        await form.close()


def _service(models: ServedModels) -> BatchService:
    if models.batches is None:
        raise ApiError(
            404,
            "this server keeps no files and batches; its operator can start it with --files-dir",
            code="not_served",
        )
    return models.batches


def _begin(service: BatchService, owner: str, body: BatchBody) -> StoredBatch:
    store = service.store
    seconds = _window_seconds(body.completion_window)
    store.require_room(0, owner)
    if store.file(body.input_file_id, owner).purpose != "batch":
        raise invalid_value("input_file_id", "it must be a file with the purpose batch")
    batch = Batch(
        id=new_batch_id(),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=store.now,
        expires_at=store.now + seconds,
        request_counts=RequestCounts(0, 0, 0),
        metadata=body.metadata,
    )
    stored = StoredBatch(owner, batch)
    store.add_batch(stored)
    service.wake(owner)
    return stored


def _window_seconds(text: str) -> int:
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match else 0
    if not 0 < seconds <= _MAX_WINDOW:
        raise invalid_value(
            "completion_window", 'it must be a number and s, m, h or d, such as "24h", up to 30 days'
        )
    return seconds


def _lifetime(given: Any) -> int:
    """Return the seconds that a file is kept."""
    if given is None:
        return FILE_SECONDS
    if (
        not isinstance(given, str)
        or not re.fullmatch("[0-9]{1,9}", given)
        or not 3600 <= int(given) <= FILE_SECONDS
    ):
        raise invalid_value("expires_after[seconds]", f"it must be a number from 3600 to {FILE_SECONDS}")
    return int(given)


def _page(
    entries: list[Entry], after: str | None, limit: int
) -> tuple[list[Entry], str | None, str | None, bool]:
    """Return the entries after the one with this id, the first and the last id, and whether there are more."""
    ids = [one.id for one in entries]
    if after is not None and after not in ids:
        raise invalid_value("after", "there is no such id")
    rest = entries[ids.index(after) + 1 :] if after is not None else entries
    page = rest[:limit]
    return page, page[0].id if page else None, page[-1].id if page else None, len(rest) > limit
