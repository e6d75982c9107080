"""Every response has a request id and is not cached."""

import re

import pytest
from starlette.types import Receive, Scope, Send

from holdfast.server.middleware.response_headers import ResponseHeadersMiddleware
from holdfast.server.telemetry.logs import current_request_id
from support.asgi import call_app


async def tell(scope: Scope, receive: Receive, send: Send) -> None:
    assert current_request_id.get() == scope["state"]["request_id"]
    headers = [(b"cache-control", b"max-age=60")] if scope["path"] == "/kept" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["state"]["request_id"].encode()})


def request_id(*given: str | bytes) -> str:
    answer = call_app(ResponseHeadersMiddleware(tell), headers=[("X-Request-Id", one) for one in given])
    assert answer.headers["x-request-id"] == answer.body.decode()
    assert current_request_id.get() is None
    return answer.body.decode()


@pytest.mark.parametrize("given", ["a", "My.id_7-x", "x" * 64])
def test_safe_request_id_is_kept(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\n", "<b>", "é", b"\xff", "../x", "a,b"])
def test_unsafe_request_id_is_replaced(given: str | bytes) -> None:
    assert re.fullmatch("[0-9a-f]{32}", request_id(given))


def test_new_request_ids_differ() -> None:
    assert len({request_id() for _ in range(100)}) == 100
    assert request_id("a", "b") not in ("a", "b")


def test_responses_are_not_cached_unless_the_route_allows_it() -> None:
    answer = call_app(ResponseHeadersMiddleware(tell))
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == (
        "no-store",
        "nosniff",
    )
    assert call_app(ResponseHeadersMiddleware(tell), path="/kept").headers["cache-control"] == "max-age=60"
