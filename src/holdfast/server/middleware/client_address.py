"""Finds a client's address and the tenant it belongs to.

Behind a trusted proxy the address is the one that the proxy reports; it replaces `scope["client"]`.
The tenant is that of the address. `ApiKeyMiddleware` replaces it by the tenant of the key.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import set_tenant


class ClientAddressMiddleware:
    """Must be outside of every layer that asks who the client is. Never refuses a request."""

    def __init__(self, app: ASGIApp, tenants: TenantDirectory) -> None:
        self.app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            peer = scope.get("client") or ("", 0)
            address = self._tenants.address(peer[0], scope["headers"])
            if address is not None and str(address) != peer[0]:
                scope["client"] = (str(address), 0)
            set_tenant(scope, self._tenants.by_address(address))
        await self.app(scope, receive, send)
