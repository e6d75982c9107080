"""Which web pages may send requests: the server's own, and those of the allowed origins.

Programs send no Origin header.

Requests from pages of other origins are refused. Otherwise any page the user opens could use a
server on the user's machine. A page can also cause requests without an Origin header, such as those
of an image; browsers mark them with Sec-Fetch-Site. They are refused as well, except links and forms
that open a page of this server by GET. A server without API keys on a loopback address also checks the Host
header, because a page can let its own host name resolve to this machine (DNS rebinding): IP
addresses and localhost are accepted, other names only if an allowed origin has them.

CORS headers and preflights are Starlette's `CORSMiddleware`, which only adds headers: a request from a
disallowed origin would still reach the routes. Its `TrustedHostMiddleware` compares with a list of
names and cannot accept every IP address.
"""

import re

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import error_response
from holdfast.server.tenants.addresses import is_loopback, parse_address

_OWN_SITES = frozenset({"same-origin", "none"})  # none: the user typed the address
_WATCHING = frozenset({"/inspector/events"})  # GET routes that cost the server more than an answer
_PORTS = {"http": 80, "https": 443}
_HOST_AND_PORT = r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
_HOST = re.compile(_HOST_AND_PORT)
_ORIGIN = re.compile(r"(?P<scheme>https?)://" + _HOST_AND_PORT)


class OriginMiddleware:
    """Refuses other origins and hosts, answers preflights, and adds CORS headers for allowed origins."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._allowed = {origin.lower().rstrip("/") for origin in config.allowed_origins}
        self._allows_all = "*" in self._allowed
        self._cors = CORSMiddleware(
            app,
            allow_origins=("*",) if self._allows_all else (),
            allow_origin_regex=None if self._allows_all else ".*",  # others do not come here
            allow_methods=("GET", "HEAD", "POST", "OPTIONS"),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=("x-request-id", "retry-after"),
        )
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
        else:
            await self._cors(scope, receive, send)

    def _is_cross_site(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a page of another origin caused a request without saying which."""
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
            name in self._host_names or name.endswith(".localhost") or parse_address(name) is not None
        )


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


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether an origin is the one that the Host header names. The scheme's default port may be omitted."""
    theirs, ours = _ORIGIN.fullmatch(origin.lower()), _HOST.fullmatch(host.lower())
    if theirs is None or ours is None:
        return False
    port = _PORTS[theirs["scheme"]]
    return theirs["name"] == ours["name"] and int(theirs["port"] or port) == int(ours["port"] or port)


def _host_name(host: str) -> str | None:
    """Return a host without its port; None if it is malformed."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["name"].strip("[]")
