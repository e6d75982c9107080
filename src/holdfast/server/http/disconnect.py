"""Work for a client, for as long as it is there. Whoever leaves is noticed at once, not when there is something to send.

The request's body must have been read: what is received here is only looked at for the end of the connection.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed the connection; there is nobody to answer."""


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. If the client leaves first, the work is cancelled, has ended, and `ClientLeft` is raised."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(has_left(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def has_left(receive: Receive) -> None:
    """Returns when the client has left, or the answer is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass
