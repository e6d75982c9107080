"""Which web pages may send requests: the server's own, and those of the allowed origins.

Programs send no Origin header.

Requests from pages of other origins are refused. Otherwise any page the user opens could use a
server on the user's machine. A page can also cause requests without an Origin header, such as those
of an image; browsers mark them with Sec-Fetch-Site. They are refused as well, except links and forms
that open a page of this server by GET. A server without API keys on a loopback address also checks the Host
header, because a page can let its own host name resolve to this machine (DNS rebinding): IP
addresses and localhost are accepted, other names only if an allowed origin has them.

Starlette's middleware does not do this. `CORSMiddleware` only adds headers: a request from a
disallowed origin still reaches the routes. It also echoes any Access-Control-Request-Headers, and
its preflight errors are plain text. `TrustedHostMiddleware` compares with a list of names and
cannot accept every IP address.
"""

import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import error_response
from holdfast.server.tenants.addresses import is_loopback

_ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
_ALLOWED_HEADERS = "authorization, content-type, x-request-id"
_EXPOSED_HEADERS = "x-request-id, retry-after"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?: *, *[A-Za-z0-9_-]{1,64}){0,63}")
_OWN_SITES = frozenset({"same-origin", "none"})  # none: the user typed the address
_WATCHING = frozenset({"/inspector/events"})  # GET routes that cost the server more than an answer
_PORTS = {"http": 80, "https": 443}
_HOST_AND_PORT = r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
_HOST = re.compile(_HOST_AND_PORT)
_ORIGIN = re.compile(r"(?P<scheme>https?)://" + _HOST_AND_PORT)


class OriginMiddleware:
    """Refuses other origins and hosts, answers preflights, and adds CORS headers for allowed
    origins.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._allowed = {origin.lower().rstrip("/") for origin in config.allowed_origins}
        self._allows_all = "*" in self._allowed
        self._host_names = _host_names(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origins = headers.getlist("origin")
        if not self._is_known_host(headers.get("host", "")):
            await error_response(_UNKNOWN_HOST, scope)(scope, receive, send)
        elif not origins and self._is_cross_site(scope, headers):
            await error_response(_OTHER_ORIGIN, scope)(scope, receive, send)
        elif not origins or (len(origins) == 1 and _is_same_origin(origins[0], headers.get("host", ""))):
            await self.app(scope, receive, send)
        elif len(origins) > 1 or not self._is_allowed(origins[0]):
            await error_response(_OTHER_ORIGIN, scope)(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers=self._preflight(origins[0], headers))(
                scope, receive, send
            )
        else:
            await self.app(scope, receive, self._with_cors_headers(origins[0], send))

    def _is_cross_site(self, scope: Scope, headers: Headers) -> bool:
        """Whether a page of another origin caused a request without saying which."""
        if self._allows_all or headers.get("sec-fetch-site", "none").lower() in _OWN_SITES:
            return False
        opens_page = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in ("GET", "HEAD")
        return not opens_page or headers.get("sec-fetch-dest") != "document" or scope["path"] in _WATCHING

    def _is_allowed(self, origin: str) -> bool:
        return self._allows_all or origin.lower() in self._allowed

    def _is_known_host(self, host: str) -> bool:
        """Without a set of names every host is accepted."""
        if not host or self._allows_all or not self._host_names:
            return True
        name = _host_name(host)
        return name is not None and (
            name in self._host_names or name.endswith(".localhost") or _is_address(name)
        )

    def _cors_headers(self, origin: str) -> dict[str, str]:
        return {"Access-Control-Allow-Origin": "*" if self._allows_all else origin, "Vary": "Origin"}

    def _preflight(self, origin: str, headers: Headers) -> dict[str, str]:
        requested = headers.get("access-control-request-headers", "")
        return {
            **self._cors_headers(origin),
            "Access-Control-Allow-Methods": _ALLOWED_METHODS,
            "Access-Control-Allow-Headers": requested
            if _HEADER_NAMES.fullmatch(requested)
            else _ALLOWED_HEADERS,
            "Access-Control-Max-Age": "600",
            **_PRIVATE_NETWORK.get(headers.get("access-control-request-private-network", ""), {}),
        }

    def _with_cors_headers(self, origin: str, send: Send) -> Send:
        async def send_with_cors_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._cors_headers(origin))
                headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
            await send(message)

        return send_with_cors_headers


_PRIVATE_NETWORK = {"true": {"Access-Control-Allow-Private-Network": "true"}}
_OTHER_ORIGIN = ApiError(
    403,
    "Web pages of this origin may not use this server; start it with --allowed-origin to permit them.",
    code="origin_not_allowed",
)
_UNKNOWN_HOST = ApiError(
    403,
    "The Host header is not a name of this server. Use its IP address or localhost, or start it with an "
    "--allowed-origin of that name.",
    code="host_not_allowed",
)


def _host_names(config: ServerConfig) -> frozenset[str]:
    if config.has_keys or not is_loopback(config.host):
        return frozenset()
    origins = (_ORIGIN.fullmatch(origin.lower().rstrip("/")) for origin in config.allowed_origins)
    return frozenset({"localhost", config.host.lower(), *(match["name"] for match in origins if match)})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_origin(origin: str, host: str) -> bool:
    """Whether an origin is the one that the Host header names.

    The scheme's default port may be omitted.
    """
    theirs, ours = _ORIGIN.fullmatch(origin.lower()), _HOST.fullmatch(host.lower())
    if theirs is None or ours is None:
        return False
    port = _PORTS[theirs["scheme"]]
    return theirs["name"] == ours["name"] and int(theirs["port"] or port) == int(ours["port"] or port)


def _host_name(host: str) -> str | None:
    """A host without its port; None if it is malformed."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["name"].strip("[]")
