"""uvicorn's HTTP/1.1, except for the host of an absolute target and for clients that leave.

Pipelined requests are answered one after the other, in their order. A client that closes its side of
the connection has left: the end of what it sends is all that a server sees of either.
"""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._earlier: list[RequestResponseCycle] = []  # before the last of several pipelined requests

    def on_headers_complete(self) -> None:
        target = httptools.parse_url(self.url)
        if target.host is not None:
            self._replace_host(target.host, target.port)
        if self.cycle is not None:
            self._earlier.append(self.cycle)
        self._earlier = [one for one in self._earlier if not one.response_complete]
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # tells the last request
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()

    def _replace_host(self, host: bytes, port: int | None) -> None:
        """Let the host of `GET http://host/path` count, whatever the Host header says (RFC 9112, 3.2.2)."""
        name = b"[%b]" % host if b":" in host else host
        value = name if port is None else b"%b:%d" % (name, port)
        self.headers[:] = [one for one in self.headers if one[0] != b"host"] + [(b"host", value)]
