"""The tenant of a key. Every route but /health requires an API key, if any are configured.

OpenAI's clients send `Authorization: Bearer KEY`, Anthropic's `X-Api-Key: KEY`. A browser that opens
the inspector or /docs sends Basic with the key as password; the user name is ignored. Starlette's
`AuthenticationMiddleware` only attaches a user to the request: each route would have to require one, and
a new route without that would be open.
"""

import base64
import binascii
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.errors import ApiError, is_anthropic
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import Tenant, given_tenant, set_tenant

_KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})
_PUBLIC = frozenset({"/health"})
_PAGES = frozenset({"/", "/docs"})
_PAGE_FILES = "/inspector/"


class TenantMiddleware:
    """Passes every request if no keys are configured."""

    def __init__(self, app: ASGIApp, tenants: TenantDirectory) -> None:
        self.app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (given := given_tenant(scope)) is not None:
            set_tenant(scope, given)
        elif scope["type"] == "http" and self._tenants.has_keys and scope["path"] not in _PUBLIC:
            set_tenant(scope, self._require_key(scope))
        await self.app(scope, receive, send)

    def _require_key(self, scope: Scope) -> Tenant:
        """One header with a known key is enough; a proxy may have added the other. Keys of two
        tenants are refused."""
        headers = _key_headers(scope)
        is_page = scope["path"] in _PAGES or scope["path"].startswith(_PAGE_FILES)
        challenge = {"WWW-Authenticate": 'Basic realm="holdfast"' if is_page else "Bearer"}
        if not headers:
            how = "X-Api-Key: YOUR_KEY" if is_anthropic(scope["path"]) else "Authorization: Bearer YOUR_KEY"
            message = f"You didn't provide an API key. Send it as {how}: every route but /health needs one."
            raise ApiError(401, message, code="missing_api_key", headers=challenge)
        tenant = _find_tenant(headers, self._tenants)
        if tenant is None:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)
        return tenant


def _find_tenant(headers: Sequence[tuple[bytes, bytes]], tenants: TenantDirectory) -> Tenant | None:
    """Return the tenant of these keys. None: a wrong one, or keys of two tenants."""
    if len({name for name, _ in headers}) < len(headers):
        return None
    keys = [value.strip() if name == b"x-api-key" else _key_of(value) for name, value in headers]
    found = {tenant for key in keys if (tenant := tenants.by_key(key)) is not None}
    return found.pop() if len(found) == 1 else None


def _key_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name in _KEY_HEADERS]


def _key_of(authorization: bytes) -> bytes:
    """Return the key in an Authorization header; empty, which is never valid, if it has none."""
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
