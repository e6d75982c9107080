"""Who may ask: whoever has one of the API keys. Only /health needs none.

`Authorization: Bearer KEY` is what OpenAI's clients send. Basic with the key as password is what a browser asks its user for,
so that the page can be opened; the user's name does not matter.
"""

import base64
import binascii
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError

_OPEN = frozenset({"/health"})
_PAGE = "/inspector/"


class ApiKeyMiddleware:
    """Without keys in the settings, everybody passes."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._keys = [key.encode("ascii") for key in config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in _OPEN:
            self._require_key(scope)
        await self.app(scope, receive, send)

    def _require_key(self, scope: Scope) -> None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        is_page = scope["path"] == "/" or scope["path"].startswith(_PAGE)
        challenge = {"WWW-Authenticate": 'Basic realm="holdfast"' if is_page else "Bearer"}
        if not given:
            message = "You didn't provide an API key. Send it in an Authorization header: Bearer YOUR_KEY."
            raise ApiError(401, message, code="missing_api_key", headers=challenge)
        if len(given) > 1 or not self._is_known(_key_of(given[0])):
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)

    def _is_known(self, key: bytes) -> bool:
        """Takes as long for a key that is nearly right as for any other."""
        return sum(hmac.compare_digest(key, one) for one in self._keys) > 0


def _key_of(authorization: bytes) -> bytes:
    """Empty, which no key is, where there is none in it."""
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
