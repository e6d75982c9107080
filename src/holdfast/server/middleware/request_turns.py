"""Requests start in turns between tenants.

The event loop runs what is ready in the order of arrival. A tenant with hundreds of requests a second
would make the request of another wait for all of them. So only a few requests start in one pass of the
event loop, and tenants take turns (round robin): once its head is read, a request waits for at most one
of each other tenant. Before that it has no tenant: connections are accepted and read in their order.

Starlette and uvicorn start every request at once.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.middleware.api_keys import find_tenant
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import tenant_of
from holdfast.server.work.fair_queue import FairQueue

_STARTS_PER_PASS = 2  # of the event loop


class RequestTurns:
    """The requests that wait to start. Used by the event loop only."""

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(quantum=1.0)
        self._num_started = 0  # in this pass of the event loop
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, client: str) -> None:
        """Return when it is this client's turn: at once, if few requests start now."""
        self._schedule()
        if not self._waiting and self._num_started < _STARTS_PER_PASS:
            self._num_started += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.push(client, turn, 1.0)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(client, turn)
            raise

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        """Start the next requests, once in each pass of the event loop."""
        self._is_scheduled = False
        self._num_started = 0
        while self._num_started < _STARTS_PER_PASS and (turn := self._waiting.pop()) is not None:
            if not turn.done():
                turn.set_result(None)
                self._num_started += 1
        if self._num_started:
            self._schedule()


class RequestTurnMiddleware:
    """Outside of the layers whose work is to be shared; the client's address must be known."""

    def __init__(self, app: ASGIApp, tenants: TenantDirectory) -> None:
        self.app = app
        self._tenants = tenants
        self._turns = RequestTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._turns.wait((find_tenant(scope, self._tenants) or tenant_of(scope)).id)
        await self.app(scope, receive, send)
