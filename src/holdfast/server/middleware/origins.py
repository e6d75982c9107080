"""Which web pages may ask: our own, and those of the origins in the settings. Programs send no Origin and are not meant here.

A page of another origin is refused outright: without that, any page a user looks at could use a server on the user's machine.
A server without keys on a loopback address also looks at the name it was called by, since a page can have its own name
point here (DNS rebinding): addresses and localhost are fine, other names only if an allowed origin has them.
"""

import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import error_response

_METHODS = "GET, HEAD, POST, OPTIONS"
_HEADERS = "authorization, content-type, x-request-id"
_EXPOSED = "x-request-id, retry-after"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?: *, *[A-Za-z0-9_-]{1,64}){0,63}")
_PORTS = {"http": 80, "https": 443}
_PLACE = r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
_HOST = re.compile(_PLACE)
_ORIGIN = re.compile(r"(?P<scheme>https?)://" + _PLACE)


class OriginMiddleware:
    """Answers preflights itself, and puts what a browser looks for on answers to allowed origins."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._allowed = {origin.lower().rstrip("/") for origin in config.allowed_origins}
        self._is_open = "*" in self._allowed
        self._names = _names_of(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origins = headers.getlist("origin")
        if not self._is_known_name(headers.get("host", "")):
            await error_response(_STRANGE_NAME)(scope, receive, send)
        elif not origins or (len(origins) == 1 and _is_same(origins[0], headers.get("host", ""))):
            await self.app(scope, receive, send)
        elif len(origins) > 1 or not self._is_allowed(origins[0]):
            await error_response(_FOREIGN)(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers=self._preflight(origins[0], headers))(
                scope, receive, send
            )
        else:
            await self.app(scope, receive, self._marked(origins[0], send))

    def _is_allowed(self, origin: str) -> bool:
        return self._is_open or origin.lower() in self._allowed

    def _is_known_name(self, host: str) -> bool:
        """An empty set of names: any will do."""
        if not host or self._is_open or not self._names:
            return True
        name = _name_in(host)
        return name is not None and (name in self._names or name.endswith(".localhost") or _is_address(name))

    def _marks(self, origin: str) -> dict[str, str]:
        return {"Access-Control-Allow-Origin": "*" if self._is_open else origin, "Vary": "Origin"}

    def _preflight(self, origin: str, headers: Headers) -> dict[str, str]:
        wanted = headers.get("access-control-request-headers", "")
        return {
            **self._marks(origin),
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": wanted if _HEADER_NAMES.fullmatch(wanted) else _HEADERS,
            "Access-Control-Max-Age": "600",
            **_PRIVATE.get(headers.get("access-control-request-private-network", ""), {}),
        }

    def _marked(self, origin: str, send: Send) -> Send:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._marks(origin))
                headers["Access-Control-Expose-Headers"] = _EXPOSED
            await send(message)

        return send_marked


_PRIVATE = {"true": {"Access-Control-Allow-Private-Network": "true"}}
_FOREIGN = ApiError(
    403, "Pages of this origin may not use this server; see --allowed-origin.", code="origin_not_allowed"
)
_STRANGE_NAME = ApiError(
    403,
    "This server does not go by that name. Use its address or localhost, or name it in an --allowed-origin.",
    code="host_not_allowed",
)


def _names_of(config: ServerConfig) -> frozenset[str]:
    if config.api_keys or not _is_loopback(config.host):
        return frozenset()
    origins = (_ORIGIN.fullmatch(origin.lower().rstrip("/")) for origin in config.allowed_origins)
    return frozenset({"localhost", config.host.lower(), *(match["name"] for match in origins if match)})


def _is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the server that is called this. A usual port may go without saying."""
    theirs, ours = _ORIGIN.fullmatch(origin.lower()), _HOST.fullmatch(host.lower())
    if theirs is None or ours is None:
        return False
    port = _PORTS[theirs["scheme"]]
    return theirs["name"] == ours["name"] and int(theirs["port"] or port) == int(ours["port"] or port)


def _name_in(host: str) -> str | None:
    """A host without its port; None for what no browser would send."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["name"].strip("[]")
