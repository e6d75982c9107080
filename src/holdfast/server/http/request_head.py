"""Checks of a request's head beyond the HTTP parser: size, one Host header, unambiguous body
framing.

The parser rejects what is not HTTP. These checks reject valid HTTP that a proxy and this server
could read differently, which is how request smuggling works.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus

from holdfast.server.errors import ApiError

MAX_HEADER_BYTES = 32 << 10  # with the request line
MAX_HEADERS = 100

HEADERS_TOO_LARGE = ApiError(
    431,
    f"The headers are too large: at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes are allowed.",
    code="headers_too_large",
)

Headers = Sequence[tuple[bytes, bytes]]


def bad_request(why: str) -> ApiError:
    return ApiError(400, f"The request is not valid: {why}.", code="bad_request")


def body_framing(headers: Headers) -> Headers:
    """The headers that say where the body ends."""
    return [one for one in headers if one[0] in (b"content-length", b"transfer-encoding")]


def find_head_error(url: bytes, headers: Headers, version: str) -> ApiError | None:
    """The first problem that the parser accepts but this server does not.

    Header names are in lower case.
    """
    if version not in ("1.0", "1.1"):
        return ApiError(505, "Only HTTP/1.0 and HTTP/1.1 are supported.", code="http_version_not_supported")
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        return HEADERS_TOO_LARGE
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        return bad_request("it must have exactly one Host header")
    framing = body_framing(headers)
    if len(framing) > 1:
        return bad_request("it has more than one Content-Length or Transfer-Encoding header")
    for name, value in framing:
        if name == b"content-length" and not value.isdigit():
            return bad_request("its Content-Length is not a number")
        if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            return bad_request("the only supported Transfer-Encoding is chunked, in HTTP/1.1")
    return None


def encode_response(error: ApiError, default_headers: Headers, url: bytes = b"") -> bytes:
    """A complete error response as bytes, for errors below the application, in the shape of the API
    at this URL."""
    body = json.dumps(error.body_for(url.partition(b"?")[0].decode("latin-1"), None)).encode()
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in default_headers]
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **error.headers,
    }
    lines += [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", body])
