"""Streams of the routes that generate text, plain ones and those that a client can resume.

Only a stream whose request has `"resumable": true` has event ids and outlives its connection. What
another client abandons costs nothing. Clients that split a stream at empty lines and expect `data: `
at once, such as vLLM's benchmark, would fail at an id.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.api.schema.requests import SamplingFields
from holdfast.server.call import Call
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.responses import EndStream, EventStreamResponse, end_with_error
from holdfast.server.streams.responses import ResumableStreamResponse, ResumedStreamResponse
from holdfast.server.streams.stream_store import HEADER
from holdfast.server.tenants.tenant import tenant_of


def require_resumable(frontend: Frontend, body: SamplingFields) -> None:
    """Refuse `resumable` where it cannot have an effect."""
    if not body.resumable:
        return
    if not body.stream:
        raise ApiError(400, "resumable requires stream to be true", param="resumable", code="invalid_value")
    if not frontend.streams.seconds:
        raise ApiError(
            400,
            "this server keeps no streams (--reconnect-timeout 0); omit resumable",
            param="resumable",
            code="unsupported_value",
        )


async def stream_response(
    request: Request,
    frontend: Frontend,
    body: SamplingFields,
    call: Call,
    events: AsyncIterator[bytes],
    resources: AsyncExitStack,
    end_stream: EndStream = end_with_error,
) -> Response:
    """The response that sends these events of a call."""
    if not body.resumable:
        return EventStreamResponse(events, resources, end_stream, call)
    content, tenant, path = await request.body(), tenant_of(request), request.url.path
    return ResumableStreamResponse(
        events, resources, lambda: frontend.streams.open(tenant, path, content), end_stream
    )


async def resume_stream(request: Request, frontend: Frontend) -> Response | None:
    """The rest of the stream that a Last-Event-ID header names. None: there is no such header."""
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    if len(given) > 1:
        raise ApiError(400, f"there are {len(given)} {HEADER} headers; send one", param=HEADER)
    content, tenant, path = await request.body(), tenant_of(request), request.url.path
    return ResumedStreamResponse(lambda: frontend.streams.resume(given[0], tenant, path, content))
