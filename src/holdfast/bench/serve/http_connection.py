"""One connection to an HTTP/1.1 server, and the two ways in which it fails: it breaks, or the server says no."""

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.bench.serve.http_body import Chunked, Counted, Decoder
from holdfast.errors import ConfigError, ServerError

_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 15


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    path: str = ""
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Of http://host:port, or with a path in front of the routes; a last /v1 is left out."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if secure else 80), path, secure)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}{self.path}"

    @property
    def authority(self) -> str:
        """What the Host header holds."""
        return self.url.split("/")[2]


class Refused(ServerError):
    """The server answered with an error. The message is its own, in one line; so is the code, if there is one."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server says {status}: {error_message(body)}")
        self.status = status
        self.code = _error_code(body) or self.code


class BrokenStream(ServerError):
    """The connection ended, or said something that is no HTTP, before the answer was complete."""


def error_message(body: bytes) -> str:
    """What an error body says, in OpenAI's shape or in any other."""
    try:
        error = json.loads(body)
        said = error["error"]["message"] if isinstance(error.get("error"), dict) else error["message"]
    except (ValueError, KeyError, TypeError, AttributeError):
        said = body[:200].decode(errors="replace")
    return " ".join(str(said).split())


def _error_code(body: bytes) -> str | None:
    try:
        code = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def key_header(api_key: str | None) -> dict[str, str]:
    """The header that carries a key. A key that would break it is refused."""
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ConfigError("an API key is printable ASCII without spaces around it")
    return {"Authorization": f"Bearer {api_key}"}


class Connection:
    """A connection, and the head of the answer on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.keep = True
        self.body: Decoder = Counted(0)

    @classmethod
    async def open(cls, address: Address) -> "Connection":
        try:
            reader, writer = await asyncio.open_connection(
                address.host, address.port, limit=_HEAD_BYTES, ssl=address.secure or None
            )
        except OSError as error:
            raise BrokenStream(f"no connection to {address.url}: {error.strerror or error}") from error
        return cls(reader, writer)

    async def read_head(self) -> None:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise BrokenStream("the head of an answer has no end") from error
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        try:
            self.status = int(lines[0].split(" ")[1])
            length = headers.get("content-length")
            known = None if length is None else int(length)
        except (IndexError, ValueError):
            raise BrokenStream(f"{lines[0][:80]!r} is no answer in HTTP") from None
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self.body = Chunked() if chunked else Counted(known)
        self.keep = headers.get("connection", "").lower() != "close" and (chunked or known is not None)

    async def read_piece(self) -> bytes:
        """The body's next bytes; nothing once it is complete."""
        while not self.body.done:
            data = await self.reader.read(_READ_BYTES)
            if not data:
                if self.body.may_end:
                    return b""
                raise BrokenStream("the connection ended inside an answer")
            piece = self.body.feed(data)
            if piece:
                return piece
        return b""

    def close(self) -> None:
        self.writer.transport.abort()  # what is still on its way is nobody's
