"""An OpenAI-compatible server to talk to: which model it has, and one streamed answer at a time.

The standard library's client: somebody who types needs no other.
"""

import http.client
import json
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.bench.serve.http_body import Events
from holdfast.bench.serve.http_client import Heard, note_event
from holdfast.bench.serve.http_connection import Address, BrokenStream, Refused, key_header
from holdfast.core.results import Thought
from holdfast.errors import ServerError

Show = Callable[[str, Sequence[Thought]], None]

_TIMEOUT = 300.0  # seconds without a byte


class ChatServer:
    """Where it is, and the key it wants."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._address = Address.parse(url)
        self._headers = {"Content-Type": "application/json", **key_header(api_key)}

    def first_model(self) -> str:
        """What it calls the first of its models."""
        connection = self._connect()
        try:
            data = self._send(connection, "GET", "/v1/models").read()
            return str(json.loads(data)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise ServerError(
                f"the server at {self._address.url} names no model; give one with --model"
            ) from None
        finally:
            connection.close()

    def stream(self, body: dict[str, Any], show: Show) -> Heard:
        """One answer, its text and its thoughts shown as they come.

        Ctrl-C ends it: the connection is closed, which the server sees. Raises `ServerError` if there is no answer. What
        goes wrong inside one is noted in it.
        """
        heard = Heard(0.0)
        connection = self._connect()
        try:
            response = self._send(connection, "POST", "/v1/chat/completions", json.dumps(body))
            events = Events()
            while data := response.read1(1 << 16):
                for event in events.feed(data):
                    _take(heard, event, show)
            if heard.finish_reason is None and heard.error is None:
                raise http.client.IncompleteRead(b"")
        except KeyboardInterrupt:
            heard.finish_reason = "abort"
        except (OSError, http.client.HTTPException) as error:
            failure = self._failure(error)
            if not heard.text:
                raise failure from None
            heard.error, heard.detail = "broken stream", str(failure)
        finally:
            connection.close()
        return heard

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.secure else http.client.HTTPConnection
        return kind(self._address.host, self._address.port, timeout=_TIMEOUT)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        connection.request(method, self._address.path + path, body, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Refused(response.status, response.read(1 << 16))
        return response

    def _failure(self, error: Exception) -> ServerError:
        if isinstance(error, http.client.HTTPException):
            return BrokenStream(f"the server at {self._address.url} ended the connection inside an answer")
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return BrokenStream(f"the server at {self._address.url} cannot be reached: {why}")


def _take(heard: Heard, event: bytes, show: Show) -> None:
    if event != b"[DONE]":
        before = len(heard.text)
        note_event(heard, event, 0.0)
        show(heard.text[before:], () if heard.error is not None else _thoughts(event))


def _thoughts(event: bytes) -> tuple[Thought, ...]:
    """Those of one event, of a server like ours; nobody else has them."""
    if b'"thoughts"' not in event:
        return ()
    try:
        told = json.loads(event)["holdfast"]["thoughts"]
        return tuple(
            Thought(
                int(one["chunk"]), int(one["position"]), str(one["text"]), tuple(map(int, one["token_ids"]))
            )
            for one in told
        )
    except (ValueError, KeyError, TypeError):
        return ()
