"""Stop working for a client as soon as it disconnects.

Starlette's `Request.is_disconnected` must be polled, and its `StreamingResponse` notices a
disconnect only when the next chunk cannot be sent. Generation would go on for a client that is no
longer connected. Here the work is cancelled at once.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel it, await its end, raise
    `ClientDisconnect`. The body must have been read before: messages that arrive here are lost."""
    working = asyncio.create_task(work)
    disconnecting = asyncio.create_task(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        disconnecting.cancel()
        await asyncio.gather(working, disconnecting, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected, or the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass
