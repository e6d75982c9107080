"""What a request's head may say: bounded, for one host, and of one mind about where the body ends.

The parser refuses what is not HTTP. This refuses what is HTTP and which two readers could read in two ways.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus

from holdfast.server.errors import ApiError

MAX_HEADER_BYTES = 32 << 10  # with the request line
MAX_HEADERS = 100

HEADERS_TOO_LARGE = ApiError(
    431,
    f"The headers are too large: at most {MAX_HEADERS} of them and {MAX_HEADER_BYTES} bytes are allowed.",
    code="headers_too_large",
)

Headers = Sequence[tuple[bytes, bytes]]


def bad_request(why: str) -> ApiError:
    return ApiError(400, f"This is not a request we can read: {why}.", code="bad_request")


def framing_of(headers: Headers) -> Headers:
    """What they say about where the body ends."""
    return [one for one in headers if one[0] in (b"content-length", b"transfer-encoding")]


def fault_of(url: bytes, headers: Headers, version: str) -> ApiError | None:
    """What the parser lets through and we do not. Names are in lower case."""
    if version not in ("1.0", "1.1"):
        return ApiError(505, "Only HTTP/1.1 is spoken here.", code="http_version_not_supported")
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        return HEADERS_TOO_LARGE
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        return bad_request("it must have one Host header")
    framing = framing_of(headers)
    if len(framing) > 1:
        return bad_request("it says more than once where its body ends")
    for name, value in framing:
        if name == b"content-length" and not value.isdigit():
            return bad_request("its Content-Length is not a number")
        if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            return bad_request("the only Transfer-Encoding is chunked, in HTTP/1.1")
    return None


def written(error: ApiError, default_headers: Headers) -> bytes:
    """A whole answer, as it goes out where there is no application to give one."""
    body = json.dumps(error.body()).encode()
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
