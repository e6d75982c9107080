"""Which web pages may ask: our own, and those of the origins in the settings. Programs send no Origin and are not meant here.

A page of another origin is refused outright: without that, any page a user looks at could use a server on the user's machine.
A server without keys on a loopback address also looks at the name it was called by, since a page can have its own name
point here (DNS rebinding): addresses and localhost are fine, other names only if an allowed origin has them.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.failures import ApiError
from holdfast.server.last_resort import error_answer

_METHODS = "GET, HEAD, POST, OPTIONS"
_HEADERS = "authorization, content-type, x-request-id"
_EXPOSED = "x-request-id, retry-after"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?: *, *[A-Za-z0-9_-]{1,64}){0,63}")
_PORTS = {"http": 80, "https": 443}


class Origins:
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
            await error_answer(_STRANGE_NAME)(scope, receive, send)
        elif not origins or (len(origins) == 1 and _is_same(origins[0], headers.get("host", ""))):
            await self.app(scope, receive, send)
        elif len(origins) > 1 or not self._is_allowed(origins[0]):
            await error_answer(_FOREIGN)(scope, receive, send)
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
        name = _host_of(f"//{host}")
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
    403, "Pages of this origin may not use this server; see --allowed-origins.", code="origin_not_allowed"
)
_STRANGE_NAME = ApiError(
    403,
    "This server does not go by that name. Use its address or localhost, or name it in --allowed-origins.",
    code="host_not_allowed",
)


def _names_of(config: ServerConfig) -> frozenset[str]:
    if config.api_keys or not _is_loopback(config.host):
        return frozenset()
    origins = (_host_of(origin) for origin in config.allowed_origins)
    return frozenset({"localhost", config.host.lower(), *filter(None, origins)})


def _is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the server that is called this. Its port may go without saying."""
    scheme = origin.partition("://")[0].lower()
    if scheme not in _PORTS or not host:
        return False
    theirs, ours = _place_of(origin, _PORTS[scheme]), _place_of(f"//{host}", _PORTS[scheme])
    return theirs is not None and theirs == ours


def _place_of(url: str, default_port: int) -> tuple[str, int] | None:
    name = _host_of(url)
    try:
        return None if name is None else (name, urlsplit(url).port or default_port)
    except ValueError:
        return None


def _host_of(url: str) -> str | None:
    """In lower case; None for what no browser would send."""
    try:
        parts = urlsplit(url)
        if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
            return None
        return parts.hostname
    except ValueError:
        return None
